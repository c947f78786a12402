"""One model alone: the baselines, and the parts of methods that let one model write a whole text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.generation import SMALL, Counts, Generation
from tasks.decoding.method import DecodingMethod, Pair, Request, method
from tasks.settings import settings

if TYPE_CHECKING:
    from tasks.decoding.decoder import Decoder, Rows
    from tasks.decoding.loop import SpeculativeLoop

VANILLA = "vanilla_large"
"""The baseline of every speed-up."""


@settings
class VanillaSettings:
    """One model alone, which has no settings."""


def single_model_method(model: Decoder, request: Request, *, scored: bool = False) -> SpeculativeLoop:
    """Return one model's decoding: the loop with nothing drafted."""
    from tasks.decoding.drafters.base import NoDrafter
    from tasks.decoding.loop import SpeculativeLoop
    from tasks.decoding.rules import accept_all

    # γ = 0: each turn is one run of the model, whose prediction is the bonus token behind an empty draft.
    return SpeculativeLoop(model, accept_all, request.sampling, request.source, NoDrafter(), DraftRule(window=0), scored)


@dataclass(frozen=True)
class SmallModelMethod:
    """The small model as the loop's target, its runs counted as the small model's."""

    method: DecodingMethod

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        return [as_small(one) for one in self.method.run(sources, examples, limit)]


def as_small(generation: Generation) -> Generation:
    """Return a generation of the small model as the loop's target, with its runs counted as the small model's."""
    counts = generation.counts
    # The loop counted its target, which here is the small model.
    renamed = Counts(tokens=counts.tokens, small_steps=counts.large_calls)
    return Generation(generation.tokens, SMALL * counts.tokens, renamed, generation.log_probabilities)


@method(VANILLA, VanillaSettings, "the large model alone", lossless=True, large_only=True)
def vanilla_large(pair: Pair, _: VanillaSettings, request: Request) -> DecodingMethod:
    return single_model_method(pair.large, request)


@method("vanilla_small", VanillaSettings, "the small model alone")
def vanilla_small(pair: Pair, _: VanillaSettings, request: Request) -> DecodingMethod:
    return SmallModelMethod(single_model_method(pair.small, request))
