"""Settings of speculative decoding (Leviathan et al., 2023) and of the methods that loosen or adapt it."""

from __future__ import annotations

from tasks.decoding.settings.common import DraftingSettings
from tasks.settings import setting, settings


@settings
class SpeculativeSettings(DraftingSettings):
    """Speculative decoding (SD, Algorithm 1): exact for greedy and for sampling."""

    draft_length: int = setting("Tokens drafted before each run of the large model.", default=5, unit="tokens", ge=1, le=64)


@settings
class BlockSettings(SpeculativeSettings):
    """Speculative decoding with block verification (Sun et al., 2024): exact, and with more accepted tokens when sampling."""


@settings
class LenientSettings(SpeculativeSettings):
    """Speculative decoding with lenience (SD, A.5)."""

    lenience: float = setting(
        "Sampling multiplies the large model's probability by 1/l; greedy decoding accepts p(x) ≥ l max p. 1 is exact.",
        default=0.5,
        gt=0,
        le=1,
    )


@settings
class LossySettings(SpeculativeSettings):
    """Lossy speculative decoding (SpecCascade, section 2, after Tran-Thien, 2023)."""

    lossiness: float = setting(
        "α: a drafted token is accepted with probability min(1, p / ((1 - α) q)).", default=0.2, ge=0, lt=1
    )
    tuned: bool = setting("Compute β of the residual max(0, p/β - q) from its equation; otherwise β is 1.", default=False)


@settings
class MarginSettings(SpeculativeSettings):
    """Speculative decoding that accepts tokens near the large model's likeliest."""

    margin: float = setting(
        "A token is accepted where its probability is at most this under the highest.", default=0.1, ge=0, lt=1
    )


@settings
class ForgivingSettings(SpeculativeSettings):
    """Speculative decoding that pardons a mismatch behind which the models agree again (FLy)."""

    min_entropy: float = setting(
        "A rejected token is pardoned only where the large model's softmax has at least this entropy.",
        default=0.7,
        unit="nats",
        ge=0,
    )
    window: int = setting(
        "A rejected token is pardoned only where this many drafted tokens behind it are accepted.",
        default=2,
        unit="tokens",
        ge=1,
    )

    def validate(self) -> None:
        if self.window >= self.draft_length:
            raise ValueError(
                f"window is {self.window}, but draft_length is {self.draft_length}, so that no token is ever pardoned; set "
                f"draft_length to at least {self.window + 1}"
            )


@settings
class ConfidentSettings(DraftingSettings):
    """Speculative decoding whose drafts end where the drafter is no longer confident."""

    max_draft: int = setting("Longest draft.", default=10, unit="tokens", ge=1, le=64)
    stop_below: float = setting(
        "A draft ends with the token at which the product of the drafter's top probabilities drops below this.",
        default=0.4,
        gt=0,
        lt=1,
    )


@settings
class EntropySettings(DraftingSettings):
    """Speculative decoding whose drafts end where the drafter's entropy bounds the acceptance too loosely (AdaEDL)."""

    max_draft: int = setting("Longest draft.", default=10, unit="tokens", ge=1, le=64)
    min_acceptance: float = setting(
        "λ: a draft ends with the token at whose position 1 - √(c H) is under this, H being the drafter's entropy in nats.",
        default=0.4,
        ge=0,
        lt=1,
    )
    entropy_factor: float = setting("c of that lower bound on the probability of acceptance.", default=0.2, gt=0)


@settings
class AdaptiveSettings(DraftingSettings):
    """Speculative decoding with the best draft length for the acceptance measured so far (SD, Theorem 3.8)."""

    max_draft: int = setting("Longest draft.", default=10, unit="tokens", ge=1, le=64)
    cost_ratio: float | None = setting(
        "c: time of one drafter run over one large-model run; none: measured before decoding.", default=None, ge=0
    )


METHODS: dict[str, type] = {
    "speculative": SpeculativeSettings,
    "speculative_block": BlockSettings,
    "speculative_lenient": LenientSettings,
    "speculative_lossy": LossySettings,
    "speculative_margin": MarginSettings,
    "speculative_forgiving": ForgivingSettings,
    "speculative_confident": ConfidentSettings,
    "speculative_entropy": EntropySettings,
    "speculative_adaptive": AdaptiveSettings,
}
"""The settings of each method of this family, by the method's name."""
