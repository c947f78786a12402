"""Generates texts during training with the drafter's current weights: on-policy distillation and replay of rejections.

A drafter that is trained on its own texts learns to continue after its own mistakes (DistillSpec, Zhou et al., 2023, section 4;
generalised knowledge distillation, Agarwal et al., 2024, Algorithm 1). Online speculative decoding (Liu et al., 2023, Algorithm
2) distils the drafter at positions where its proposals were rejected. Here this is done in rounds, each on newly generated
proposals.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tasks.alignment.interleaving import interleaved
from tasks.alignment.settings import AlignSettings
from tasks.decoding.decoder import AUTO, REFERENCE, Decoder, Rows
from tasks.decoding.generation import CORRECTED, Generation
from tasks.decoding.method import DecodingMethod, Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import build_method
from tasks.decoding.runtimes.choose import open_decoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BATCH_SIZE = 64

MethodFactory = Callable[[Pair, Request], DecodingMethod]
"""Builds the decoding method that generates a text."""


def drafter_only(pair: Pair, request: Request) -> DecodingMethod:
    """The drafter decodes alone."""
    return build_method("vanilla_small", VanillaSettings(), pair, request)


def speculative(pair: Pair, request: Request) -> DecodingMethod:
    """The large model decodes with the drafter drafting; the proposers of tokens show which drafts were rejected."""
    return build_method("speculative", SpeculativeSettings(), pair, request)


def on_policy_method(settings: AlignSettings) -> MethodFactory:
    """Return the method for a value of `align.writer`."""
    if settings.writer == "drafter":
        return drafter_only
    return functools.partial(interleaved, top_k=settings.interleave_top_k)


def rejection_weights(generation: Generation, kept: float) -> list[float]:
    """Return the weight of each token in the loss: 1 where it replaced a rejected draft token, `kept` elsewhere."""
    return [1.0 if proposer == CORRECTED else kept for proposer in generation.proposers]


class RolloutGenerator:
    """Generates texts with a drafter in training and, for methods that need it, the large model."""

    def __init__(
        self, drafter: PreTrainedModel, large: PreTrainedModel, vocabulary: int, limit: int, settings: AlignSettings
    ) -> None:
        """Take the two models, which are on one device.

        Args:
            drafter: A model of `transformers`, with its complete weights.
            large: A model of the same architecture, in evaluation mode.
            vocabulary: Number of ids that both predict over.
            limit: Most tokens of a text; a text cut there has no end token.
            settings: The sampling temperature.
        """
        self._drafter, self._large_model, self._vocabulary, self._limit = drafter, large, vocabulary, limit
        self._sampling = SamplingSettings(temperature=settings.writing_temperature)
        # The fused runtime would record its graphs again for new weights, which takes longer than generating a window.
        self._runtime = AUTO if drafter.device.type == "cpu" else REFERENCE

    def generate(self, method_of: MethodFactory, sources: Rows, numbers: Sequence[int], seed: int) -> list[Generation]:
        """Generate a text for each source with the drafter's current weights.

        Args:
            method_of: Builds the decoding method.
            sources: Token ids of each source.
            numbers: A number for each source that keys its random draws, with the seed.
            seed: Seed of this window of steps.
        """
        with _evaluating(self._drafter):
            # Fast runtimes copy the weights when they open a model, so the drafter is opened again for each window.
            small = open_decoder(self._drafter, "small", self._vocabulary, self._runtime)
            pair = Pair(small, small if method_of is drafter_only else self._large)
            strategy = method_of(pair, Request(self._limit, self._sampling, seed))
            return _decode_in_batches(strategy, sources, numbers, self._limit)

    @functools.cached_property
    def _large(self) -> Decoder:
        return open_decoder(self._large_model, "large", self._vocabulary, self._runtime)


@contextlib.contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Switch the model to evaluation mode, and back to its mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _decode_in_batches(strategy: DecodingMethod, sources: Rows, numbers: Sequence[int], limit: int) -> list[Generation]:
    """Decode in batches of similar length; results are in the order of the sources."""
    order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
    done: dict[int, Generation] = {}
    for begin in range(0, len(order), _BATCH_SIZE):
        batch = order[begin : begin + _BATCH_SIZE]
        found = strategy.run([sources[row] for row in batch], [numbers[row] for row in batch], limit)
        done.update(zip(batch, found, strict=True))
    return [done[row] for row in range(len(sources))]
