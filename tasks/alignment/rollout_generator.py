"""Text written while training, by the drafter as it is then: on-policy distillation.

A drafter that learns on its own text learns where its own mistakes lead (DistillSpec, Zhou et al., 2023, section 4; generalised
knowledge distillation, Agarwal et al., 2024, Algorithm 1).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tasks.alignment.interleaving import interleaved
from tasks.alignment.settings import AlignSettings
from tasks.decoding.decoder import AUTO, REFERENCE, Decoder, Rows
from tasks.decoding.generation import Generation
from tasks.decoding.method import DecodingMethod, Pair, Request
from tasks.decoding.registry import build_method
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.settings import SamplingSettings, SpeculativeSettings, VanillaSettings

_SIDE_BY_SIDE = 64

MethodFactory = Callable[[Pair, Request], DecodingMethod]
"""Puts the way in which a text is written together."""


def drafter_only(pair: Pair, request: Request) -> DecodingMethod:
    """The drafter's own text."""
    return build_method("vanilla_small", VanillaSettings(), pair, request)


def speculative(pair: Pair, request: Request) -> DecodingMethod:
    """The large model's text, with the drafter drafting: the proposers of its tokens tell which drafts were rejected."""
    return build_method("speculative", SpeculativeSettings(), pair, request)


def on_policy_method(settings: AlignSettings) -> MethodFactory:
    """How the writer of the settings writes."""
    if settings.writer == "drafter":
        return drafter_only
    return functools.partial(interleaved, top_k=settings.interleave_top_k)


class RolloutGenerator:
    """Writes with a drafter in training, and with the large model where a text needs both."""

    def __init__(self, drafter: Any, large: Any, vocabulary: int, limit: int, settings: AlignSettings) -> None:
        """Takes the two models on one device.

        Args:
            drafter: Of `transformers`, with its whole weights.
            large: Of its kind, in evaluation mode.
            vocabulary: The number of ids that both predict over.
            limit: Most tokens of a text; one that is cut there has no end token.
            settings: The temperature.
        """
        self._drafter, self._large_model, self._vocabulary, self._limit = drafter, large, vocabulary, limit
        self._sampling = SamplingSettings(temperature=settings.writing_temperature)
        # Fused PyTorch records its graphs anew for new weights, which takes longer than a pool of text.
        self._runtime = AUTO if drafter.device.type == "cpu" else REFERENCE

    def generate(self, composed: MethodFactory, sources: Rows, numbers: Sequence[int], seed: int) -> list[Generation]:
        """A text for each source, by the drafter's weights as they are.

        Args:
            composed: How.
            sources: Token ids of each source.
            numbers: A number for each that keys its random draws, with the seed.
            seed: Another for each pool of texts.
        """
        with _evaluating(self._drafter):
            # Fast runtimes pack copies of the weights: a decoder is as old as its opening, and takes as much room again.
            small = open_decoder(self._drafter, "small", self._vocabulary, self._runtime)
            pair = Pair(small, small if composed is drafter_only else self._large)
            strategy = composed(pair, Request(self._limit, self._sampling, seed))
            return _side_by_side(strategy, sources, numbers, self._limit)

    @functools.cached_property
    def _large(self) -> Decoder:
        return open_decoder(self._large_model, "large", self._vocabulary, self._runtime)


@contextlib.contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Without dropout, as decoding is; afterwards as before."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _side_by_side(strategy: DecodingMethod, sources: Rows, numbers: Sequence[int], limit: int) -> list[Generation]:
    """Decodes in batches of like length, in the order given."""
    order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
    done: dict[int, Generation] = {}
    for begin in range(0, len(order), _SIDE_BY_SIDE):
        batch = order[begin : begin + _SIDE_BY_SIDE]
        found = strategy.run([sources[row] for row in batch], [numbers[row] for row in batch], limit)
        done.update(zip(batch, found, strict=True))
    return [done[row] for row in range(len(sources))]
