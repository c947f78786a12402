"""Confident Adaptive Language Modeling (Schuster et al., 2022), as BiLD is compared with it (7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.decoder import Rows
from tasks.decoding.early_exit import EarlyExitDecoder
from tasks.decoding.generation import Generation
from tasks.decoding.method import DecodingMethod, MethodSpec, Pair
from tasks.decoding.methods.vanilla import single_model_method
from tasks.decoding.randomness import TokenSource
from tasks.decoding.runtimes.loaded_model import LoadedModel
from tasks.decoding.settings import CalmSettings, SamplingSettings
from tasks.errors import InputError


@dataclass(frozen=True)
class EarlyExit:
    """The large model alone, leaving its layers early; the threshold decays over the longest text allowed."""

    large: LoadedModel
    settings: CalmSettings
    sampling: SamplingSettings
    source: TokenSource

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        decoder = EarlyExitDecoder(self.large, self.settings, limit)
        return single_model_method(decoder, self.sampling, self.source).run(sources, examples, limit)


def _calm(pair: Pair, settings: CalmSettings, sampling: SamplingSettings, source: TokenSource) -> DecodingMethod:
    if not isinstance(pair.large, LoadedModel):
        raise InputError(f"calm needs the layers of a T5 or mT5, which the {pair.large.name} model does not give")
    EarlyExitDecoder(pair.large, settings, limit=1)  # raises here, not at the first text
    return EarlyExit(pair.large, settings, sampling, source)


SPECS = (MethodSpec("calm", "Schuster et al., 2022; Kim et al., 2023, 7.2", False, _calm, ("encoder-decoder",)),)
