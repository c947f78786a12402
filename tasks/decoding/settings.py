"""Settings of the decoding methods, in the papers' terms."""

from __future__ import annotations

from tasks.settings import knob, settings


@settings
class SamplingSettings:
    """How a token is taken from a model's softmax: the transform from *scores* to *dist*."""

    temperature: float = knob(0.0, "Softmax temperature; 0 is greedy.", ge=0)
    top_k: int = knob(0, "Keep the k likeliest tokens; 0 keeps all.", ge=0)
    top_p: float = knob(1.0, "Keep the smallest set of tokens with this probability.", gt=0, le=1)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@settings
class VanillaSettings:
    """One model alone: nothing to set."""


@settings
class BildSettings:
    """Big Little Decoder: fallback and rollback (BiLD, Algorithm 1)."""

    fallback_threshold: float = knob(0.6, "The small model keeps going while its top probability is above this.", ge=0, le=1)
    rollback_threshold: float = knob(
        2.0, "Largest distance -log p(y) at which a small token stays; infinity never rolls back.", unit="nats", ge=0
    )
    max_draft: int = knob(10, "Small tokens in a row before a forced fallback.", unit="tokens", ge=1, le=64)
    large_first: bool = knob(False, "The authors' code: the first token comes from the large model.")
    keep_agreed: bool = knob(False, "The authors' code: no rollback where the large model would put the same token.")


@settings
class SpeculativeSettings:
    """Speculative decoding (SD, Algorithm 1): exact for greedy and for sampling."""

    draft_length: int = knob(5, "Tokens drafted before each run of the large model.", unit="tokens", ge=1, le=64)


@settings
class CalibrateSettings:
    """How the large model labels the training inputs."""

    batch_size: int = knob(128, "Inputs decoded side by side.", unit="examples", ge=1)


METHOD_SETTINGS: dict[str, type] = {
    "vanilla_large": VanillaSettings,
    "vanilla_small": VanillaSettings,
    "bild": BildSettings,
    "speculative": SpeculativeSettings,
}
"""The settings of each method of the registry in `strategies`, for whoever must not load torch to read them."""
