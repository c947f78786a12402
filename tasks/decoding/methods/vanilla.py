"""One model alone."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.acceptance_rules import accept_all
from tasks.decoding.decoder import ContinuingDecoder, Decoder, Rows, StopRule, can_continue
from tasks.decoding.drafters.base import NoDrafter
from tasks.decoding.drafting import DraftRule
from tasks.decoding.generation import LARGE, SMALL, Counts, Generation
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.method import DecodingMethod, MethodSpec, Pair
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings, VanillaSettings


@dataclass(frozen=True)
class GreedyContinuation:
    """One model's greedy text, made without a decision in between where its runtime can: what the loop gives, sooner."""

    model: ContinuingDecoder
    loop: SpeculativeLoop

    @property
    def scored(self) -> bool:
        """Whether texts carry the log-probability of each token."""
        return self.loop.scored

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        if len(sources) > 1:
            return self.loop.run(sources, examples, limit)
        (start,) = self.model.start(self.model.encode(sources))
        # A softmax is given where a rule asks for it; none is this small.
        until = StopRule(confidence=sys.float_info.min) if self.scored else StopRule()
        found = self.model.continue_greedily(start, limit, until, with_logits=False)
        tokens = found.tokens
        counts = Counts(tokens=len(tokens), large_calls=len(tokens), verified=Counter({1: len(tokens)}))
        scores = [math.log(min(1.0, confidence)) for confidence in found.confidence] if self.scored else []
        return [Generation(tokens, LARGE * len(tokens), counts, scores)]


def single_model_method(
    model: Decoder, sampling: SamplingSettings, source: TokenSource, *, scored: bool = False
) -> DecodingMethod:
    """One model: the loop with nothing drafted."""
    loop = SpeculativeLoop(model, accept_all, sampling, source, NoDrafter(), DraftRule(window=0), scored)
    return GreedyContinuation(model, loop) if sampling.greedy and can_continue(model) else loop


@dataclass(frozen=True)
class SmallModelMethod:
    """The small model as the loop's target, its runs counted as the small model's."""

    method: DecodingMethod

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        return [_as_small(one) for one in self.method.run(sources, examples, limit)]


def _as_small(generation: Generation) -> Generation:
    counts = generation.counts
    renamed = Counts(tokens=counts.tokens, small_steps=counts.large_calls, verified=Counter())
    return Generation(generation.tokens, SMALL * counts.tokens, renamed, generation.log_probabilities)


def small_model_method(
    pair: Pair, sampling: SamplingSettings, source: TokenSource, *, scored: bool = False
) -> SmallModelMethod:
    """The small model of a pair."""
    return SmallModelMethod(single_model_method(pair.small, sampling, source, scored=scored))


def _large(pair: Pair, settings: VanillaSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return single_model_method(pair.large, sampling, source)


def _small(pair: Pair, settings: VanillaSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return small_model_method(pair, sampling, source)


SPECS = (
    MethodSpec("vanilla_large", "the large model alone", True, _large),
    MethodSpec("vanilla_small", "the small model alone", False, _small),
)
