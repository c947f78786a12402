"""Settings that several methods share: how tokens are taken, and what drafts."""

from __future__ import annotations

from tasks.settings import setting, settings

DRAFTERS = ("small", "unigram", "bigram", "copy", "random", "early_layer", "heads")
TABLES = ("unigram", "bigram")
"""The drafters that are n-gram tables of the calibration set."""


@settings
class SamplingSettings:
    """How tokens are chosen from a model's softmax: the transform from *scores* to *dist*."""

    temperature: float = setting("Softmax temperature; 0 is greedy.", default=0.0, ge=0)
    top_k: int = setting("Keep the k most probable tokens; 0 keeps all.", default=0, ge=0)
    top_p: float = setting("Keep the smallest set of tokens with at least this probability.", default=1.0, gt=0, le=1)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@settings
class VanillaSettings:
    """One model alone, which has no settings."""


@settings
class DraftingSettings:
    """The settings of every method that drafts."""

    drafter: str = setting(
        "What proposes tokens: the small model, n-gram tables of the calibration set, copies from the context, random "
        "tokens, the large model's own first layers, or heads trained on it.",
        default="small",
        choices=DRAFTERS,
    )


METHODS: dict[str, type] = {
    "vanilla_large": VanillaSettings,
    "vanilla_small": VanillaSettings,
}
"""The settings of each method of this family, by the method's name."""
