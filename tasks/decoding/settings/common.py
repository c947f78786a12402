"""Settings that several methods share: how tokens are taken, and what drafts."""

from __future__ import annotations

from tasks.settings import setting, settings

DRAFTERS = {
    "small": "the small model's own next tokens (Leviathan et al., 2023; Kim et al., 2023)",
    "retokenized": "the text of a small model with another tokenizer, in the large one's tokens (Timor et al., 2025: SLEM)",
    "unigram": "tokens by their frequency in the calibration set (Leviathan et al., 2023, section 3.6)",
    "bigram": "tokens by their frequency after the last one in the calibration set (Leviathan et al., 2023, section 3.6)",
    "copy": "what followed the last tokens earlier in source or text (Leviathan et al., 2023, section 3.6: prompt look-up)",
    "suffix": "what most often followed the last tokens, in calibration set or text (Oliaro et al., 2024: SuffixDecoding)",
    "random": "ordinary tokens, each as likely as another (Leviathan et al., 2023, section 3.6)",
    "early_layer": "the large model's own first layers (Kim et al., 2023, sections 4.4 and 7.2.1)",
    "heads": "heads trained on the large model's last state (Stern et al., 2018: blockwise parallel decoding)",
}
"""What each drafter proposes, and the paper."""
OF_SMALL = ("small", "retokenized")
"""The drafters that run the small model."""
LOOK_UPS = ("unigram", "bigram", "copy", "suffix", "random")
"""The drafters that run no model, whose cost ratio c is taken as 0 (SD, section 3.6)."""
CALIBRATED = ("unigram", "bigram", "suffix")
"""The drafters that read the calibration set."""


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
        "What proposes tokens: the small model or its text, n-gram tables of the calibration set, copies from the context, "
        "suffix trees of both, random tokens, the large model's own first layers, or heads trained on it.",
        default="small",
        choices=tuple(DRAFTERS),
    )


METHODS: dict[str, type] = {
    "vanilla_large": VanillaSettings,
    "vanilla_small": VanillaSettings,
}
"""The settings of each method of this family, by the method's name."""
