"""Settings of Confident Adaptive Language Modeling (Schuster et al., 2022)."""

from __future__ import annotations

from tasks.settings import setting, settings


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


METHODS: dict[str, type] = {"calm": CalmSettings}
"""The settings of each method of this family, by the method's name."""
