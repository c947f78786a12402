"""One model alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.acceptance_rules import accept_all
from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.drafters.base import NoDrafter
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.generation import SMALL, Counts, Generation
from tasks.decoding.method import DecodingMethod, MethodSpec, Pair
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings, VanillaSettings
from tasks.decoding.turn import DraftRule


def single_model_method(
    model: Decoder, sampling: SamplingSettings, source: TokenSource, *, scored: bool = False
) -> SpeculativeLoop:
    """Return one model's decoding: the loop with nothing drafted."""
    return SpeculativeLoop(model, accept_all, sampling, source, NoDrafter(), DraftRule(window=0), scored)


@dataclass(frozen=True)
class SmallModelMethod:
    """The small model as the loop's target, its runs counted as the small model's."""

    method: DecodingMethod

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        return [as_small(one) for one in self.method.run(sources, examples, limit)]


def as_small(generation: Generation) -> Generation:
    """Return a generation of the small model as the loop's target, with its runs counted as the small model's."""
    counts = generation.counts
    renamed = Counts(tokens=counts.tokens, small_steps=counts.large_calls)
    return Generation(generation.tokens, SMALL * counts.tokens, renamed, generation.log_probabilities)


def small_model_method(
    pair: Pair, sampling: SamplingSettings, source: TokenSource, *, scored: bool = False
) -> SmallModelMethod:
    """Return the decoding of a pair's small model."""
    return SmallModelMethod(single_model_method(pair.small, sampling, source, scored=scored))


def _large(pair: Pair, settings: VanillaSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return single_model_method(pair.large, sampling, source)


def _small(pair: Pair, settings: VanillaSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    return small_model_method(pair, sampling, source)


SPECS = (
    MethodSpec("vanilla_large", "the large model alone", True, _large),
    MethodSpec("vanilla_small", "the small model alone", False, _small),
)
