"""One model alone."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.decoder import Continuing, Decoder, Rows, Stop, can_continue
from tasks.decoding.drafters.base import NoDrafter
from tasks.decoding.drafting import DraftRule
from tasks.decoding.generation import LARGE, SMALL, Counts, Generation
from tasks.decoding.loop import Method
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings, VanillaSettings
from tasks.decoding.strategy import Entry, Pair, Strategy
from tasks.decoding.verdicts import keep_all


@dataclass(frozen=True)
class InOneGo:
    """One model's greedy text, made without a decision in between where its runtime can: what the loop gives, sooner."""

    model: Continuing
    loop: Method

    @property
    def scored(self) -> bool:
        """Whether texts carry the log-probability of each token."""
        return self.loop.scored

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        if len(sources) > 1:
            return self.loop.run(sources, examples, limit)
        (start,) = self.model.start(self.model.encode(sources))
        # A softmax is given where a rule asks for it; none is this small.
        until = Stop(confidence=sys.float_info.min) if self.scored else Stop()
        found = self.model.extend(start, limit, until, with_logits=False)
        tokens = found.tokens
        counts = Counts(tokens=len(tokens), large_calls=len(tokens), verified=Counter({1: len(tokens)}))
        scores = [math.log(min(1.0, confidence)) for confidence in found.confidence] if self.scored else []
        return [Generation(tokens, LARGE * len(tokens), counts, scores)]


def alone(model: Decoder, sampling: SamplingSettings, source: TokenSource, *, scored: bool = False) -> Strategy:
    """One model: the loop with nothing drafted."""
    loop = Method(model, keep_all, sampling, source, NoDrafter(), DraftRule(window=0), scored)
    return InOneGo(model, loop) if sampling.greedy and can_continue(model) else loop


@dataclass(frozen=True)
class SmallAlone:
    """The small model as the loop's target, its runs counted as the small model's."""

    alone: Strategy

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        return [_as_small(one) for one in self.alone.run(sources, examples, limit)]


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
