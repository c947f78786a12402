"""Confident Adaptive Language Modeling (Schuster et al., 2022), as BiLD is compared with it (7.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.decoding.method import DecodingMethod, Pair, Request, method, preset
from tasks.decoding.methods.baselines import single_model_method
from tasks.settings import setting, settings

if TYPE_CHECKING:
    from tasks.decoding.decoder import Decoder, Rows
    from tasks.decoding.generation import Generation


@settings
class CalmSettings:
    """Early exit: each token leaves at the first layer that is confident enough (CALM; BiLD, 7.2)."""

    confidence: str = setting(
        "Top-1 minus top-2 probability, cosine similarity of successive hidden states, or a trained classifier.",
        default="softmax",
        choices=("softmax", "saturation", "classifier"),
    )
    threshold: float = setting("λ of the decaying threshold.", default=0.9, ge=0, le=1)
    decay: float = setting("t of the decaying threshold clip(0.9 λ + 0.1 exp(-t i / N), 0, 1).", default=4.0, ge=0)


@dataclass(frozen=True)
class EarlyExit:
    """The large model alone with early exits; the threshold decays over the maximum length of a text."""

    large: Decoder
    settings: CalmSettings
    request: Request

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        from tasks.decoding.drafters.layers import EarlyExitDecoder

        settings = self.settings
        # The threshold decays by position over N, the limit, which is known only here.
        decoder = EarlyExitDecoder(self.large, settings.confidence, settings.threshold, settings.decay, limit)
        return single_model_method(decoder, self.request).run(sources, examples, limit)


@method("calm", CalmSettings, "Schuster et al., 2022; Kim et al., 2023, 7.2", t5_only=True, large_only=True)
@preset(
    "paper",
    "BiLD, 7.2.1: λ from 0.7 to 0.98, steps ours; these t",
    confidence=("saturation",),
    threshold=(0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98),
    decay=(0.0, 1.0, 2.0, 4.0, 8.0),
)
def calm(pair: Pair, settings: CalmSettings, request: Request) -> DecodingMethod:
    from tasks.decoding.drafters.layers import EarlyExitDecoder

    # Refuses a model here, not at the first text.
    EarlyExitDecoder(pair.large, settings.confidence, settings.threshold, settings.decay, limit=1)
    return EarlyExit(pair.large, settings, request)
