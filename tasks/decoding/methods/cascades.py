"""Speculative cascades (Narasimhan et al., 2024, section 4)."""

from __future__ import annotations

from tasks.decoding.cascade_rules import cascade_rule
from tasks.decoding.method import DecodingMethod, MethodSpec, Pair
from tasks.decoding.methods.speculative import fixed_window
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings, SpeculativeCascadeSettings


def _speculative_cascade(
    pair: Pair, settings: SpeculativeCascadeSettings, sampling: SamplingSettings, source: TokenSource
) -> DecodingMethod:
    return fixed_window(pair, settings, sampling, source, cascade_rule(settings.rule, settings.deferral_cost))


SPECS = (MethodSpec("speculative_cascade", "Narasimhan et al., 2024, Algorithms 4 to 6", False, _speculative_cascade),)
