"""Settings of the decoding methods, in the papers' terms."""

from __future__ import annotations

from tasks.settings import knob, settings


@settings
class SamplingSettings:
    """How a token is taken from a model's softmax: the transform from *scores* to *dist*."""

    temperature: float = knob("Softmax temperature; 0 is greedy.", default=0.0, ge=0)
    top_k: int = knob("Keep the k likeliest tokens; 0 keeps all.", default=0, ge=0)
    top_p: float = knob("Keep the smallest set of tokens with this probability.", default=1.0, gt=0, le=1)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@settings
class VanillaSettings:
    """One model alone: nothing to set."""


@settings
class BildSettings:
    """Big Little Decoder: fallback and rollback (BiLD, Algorithm 1)."""

    fallback_threshold: float = knob(
        "The small model keeps going while its top probability is above this.", default=0.6, ge=0, le=1
    )
    rollback_threshold: float = knob(
        "Largest distance -log p(y) at which a small token stays; infinity never rolls back.", default=2.0, unit="nats", ge=0
    )
    max_draft: int = knob("Small tokens in a row before a forced fallback.", default=10, unit="tokens", ge=1, le=64)
    large_first: bool = knob("The authors' code: the first token comes from the large model.", default=False)
    keep_agreed: bool = knob("The authors' code: no rollback where the large model would put the same token.", default=False)


@settings
class SpeculativeSettings:
    """Speculative decoding (SD, Algorithm 1): exact for greedy and for sampling."""

    draft_length: int = knob("Tokens drafted before each run of the large model.", default=5, unit="tokens", ge=1, le=64)


@settings
class CalibrateSettings:
    """How the large model labels the training inputs."""

    batch_size: int = knob("Inputs decoded side by side.", default=128, unit="examples", ge=1)


METHOD_SETTINGS: dict[str, type] = {
    "vanilla_large": VanillaSettings,
    "vanilla_small": VanillaSettings,
    "bild": BildSettings,
    "speculative": SpeculativeSettings,
}
"""The settings of each method of the registry in `strategies`, for whoever must not load torch to read them."""
