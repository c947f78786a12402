"""Confident Adaptive Language Modeling (Schuster et al., 2022), as BiLD is compared with it (7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.early_exit import EarlyExitDecoder
from tasks.decoding.generation import Generation
from tasks.decoding.method import DecodingMethod, MethodSpec, Pair
from tasks.decoding.methods.vanilla import single_model_method
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import CalmSettings, SamplingSettings


@dataclass(frozen=True)
class EarlyExit:
    """The large model alone with early exits; the threshold decays over the maximum length of a text."""

    large: Decoder
    settings: CalmSettings
    sampling: SamplingSettings
    source: TokenSource

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        decoder = EarlyExitDecoder(self.large, self.settings, limit)
        return single_model_method(decoder, self.sampling, self.source).run(sources, examples, limit)


def _calm(pair: Pair, settings: CalmSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    EarlyExitDecoder(pair.large, settings, limit=1)  # to refuse a model here, not at the first text
    return EarlyExit(pair.large, settings, sampling, source)


SPECS = (MethodSpec("calm", "Schuster et al., 2022; Kim et al., 2023, 7.2", False, _calm, ("encoder-decoder",)),)
