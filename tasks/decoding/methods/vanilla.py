"""One model alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.drafters.base import NoDrafter
from tasks.decoding.drafting import DraftRule
from tasks.decoding.generation import SMALL, Counts, Generation
from tasks.decoding.loop import Method
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings, VanillaSettings
from tasks.decoding.strategy import Entry, Pair, Strategy
from tasks.decoding.verdicts import keep_all


def alone(model: Decoder, sampling: SamplingSettings, source: TokenSource, *, scored: bool = False) -> Method:
    """One model: the loop with nothing drafted."""
    return Method(model, keep_all, sampling, source, NoDrafter(), DraftRule(window=0), scored)


@dataclass(frozen=True)
class SmallAlone:
    """The small model as the loop's target, its runs counted as the small model's."""

    method: Method

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        return [_as_small(one) for one in self.method.run(sources, examples, limit)]


def _as_small(generation: Generation) -> Generation:
    counts = generation.counts
    renamed = Counts(tokens=counts.tokens, small_steps=counts.large_calls, verified=Counter())
    return Generation(generation.tokens, SMALL * counts.tokens, renamed, generation.log_probabilities)


def small_alone(pair: Pair, sampling: SamplingSettings, source: TokenSource, *, scored: bool = False) -> SmallAlone:
    """The small model of a pair."""
    return SmallAlone(alone(pair.small, sampling, source, scored=scored))


def _large(pair: Pair, settings: VanillaSettings, sampling: SamplingSettings, source: TokenSource) -> Strategy:
    return alone(pair.large, sampling, source)


def _small(pair: Pair, settings: VanillaSettings, sampling: SamplingSettings, source: TokenSource) -> Strategy:
    return small_alone(pair, sampling, source)


ENTRIES = (
    Entry("vanilla_large", "the large model alone", True, _large),
    Entry("vanilla_small", "the small model alone", False, _small),
)
