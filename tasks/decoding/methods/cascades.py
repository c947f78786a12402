"""Speculative cascades (Narasimhan et al., 2024, section 4)."""

from __future__ import annotations

from tasks.decoding.methods.speculative import fixed_window
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings, SpeculativeCascadeSettings
from tasks.decoding.strategy import Entry, Pair, Strategy
from tasks.decoding.targets import cascaded


def _speculative_cascade(
    pair: Pair, settings: SpeculativeCascadeSettings, sampling: SamplingSettings, source: TokenSource
) -> Strategy:
    return fixed_window(pair, settings, sampling, source, cascaded(settings.rule, settings.deferral_cost))


ENTRIES = (Entry("speculative_cascade", "Narasimhan et al., 2024, Algorithms 4 to 6", False, _speculative_cascade),)
