"""How tokens are taken, and what each method can be set to, in the papers' terms."""

from __future__ import annotations

from tasks.settings import setting, settings

DRAFTERS = ("small", "unigram", "bigram", "copy", "random", "early_layer", "heads")
TABLES = ("unigram", "bigram")
"""The drafters that are counted from the calibration set."""
ORACLES = ("bild_oracle", "diff_oracle")
"""Methods that run both models at every step: they show what a rule could do, and are never worth deploying."""
INFINITY = float("inf")
CASCADE_BOUNDS = {
    "chow": (0.0, 1.0),
    "chow_log": (-INFINITY, INFINITY),
    "diff": (0.0, 1.0),
    "diff_log": (-INFINITY, INFINITY),
    "opt": (0.0, 1.0),
    "opt_log": (-INFINITY, INFINITY),
    "token_v1": (0.0, 1.0),
    "token_v2": (0.0, 1.0),
    "token_v3": (0.0, 1.0),
    "bild": (0.0, INFINITY),
}
"""Smallest and largest α of each deferral rule: they compare probabilities, entropies or, bild, a distance in nats."""
CASCADE_RULES = tuple(CASCADE_BOUNDS)


@settings
class SamplingSettings:
    """How a token is taken from a model's softmax: the transform from *scores* to *dist*."""

    temperature: float = setting("Softmax temperature; 0 is greedy.", default=0.0, ge=0)
    top_k: int = setting("Keep the k likeliest tokens; 0 keeps all.", default=0, ge=0)
    top_p: float = setting("Keep the smallest set of tokens with this probability.", default=1.0, gt=0, le=1)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@settings
class VanillaSettings:
    """One model alone: nothing to set."""


@settings
class DraftingSettings:
    """What every method that drafts has in common."""

    drafter: str = setting(
        "What proposes tokens: the small model, tables counted from the calibration set, copies from the context, random "
        "tokens, the large model's own first layers, or heads trained on it.",
        default="small",
        choices=DRAFTERS,
    )


@settings
class BildSettings(DraftingSettings):
    """Big Little Decoder: fallback and rollback (BiLD, Algorithm 1).

    `fallback_threshold` 0 is the ablation without fallback (7.3: a fixed window of 3 to 10), `rollback_threshold` infinity
    the one without rollback.
    """

    fallback_threshold: float = setting(
        "The small model keeps going while its top probability is above this; 0: as long as max_draft lets it.",
        default=0.6,
        ge=0,
        le=1,
    )
    rollback_threshold: float = setting(
        "Largest distance -log p(y) at which a small token is kept; infinity never rolls back.", default=2.0, unit="nats", ge=0
    )
    max_draft: int = setting("Small tokens in a row before a forced fallback.", default=10, unit="tokens", ge=1, le=64)
    large_first: bool = setting("The authors' code: the first token comes from the large model.", default=False)
    keep_agreed: bool = setting("The authors' code: no rollback where the large model would put the same token.", default=False)


@settings
class BildOracleSettings:
    """The oracle study: both models at every step (BiLD, 3.1 and Figure 2)."""

    rollback_threshold: float = setting(
        "Largest distance -log p(y) at which the small model's token is kept.", default=2.0, unit="nats", ge=0
    )


@settings
class SpeculativeSettings(DraftingSettings):
    """Speculative decoding (SD, Algorithm 1): exact for greedy and for sampling."""

    draft_length: int = setting("Tokens drafted before each run of the large model.", default=5, unit="tokens", ge=1, le=64)


@settings
class LenientSettings(SpeculativeSettings):
    """Speculative decoding with lenience (SD, A.5)."""

    lenience: float = setting(
        "Sampling: the large model's probability counts 1/l times; greedy: tokens with p(x) ≥ l max p stay. 1 is exact.",
        default=0.5,
        gt=0,
        le=1,
    )


@settings
class LossySettings(SpeculativeSettings):
    """Lossy speculative decoding (SpecCascade, section 2, after Tran-Thien, 2023)."""

    lossiness: float = setting("α: tokens are kept with probability p / ((1 - α) q).", default=0.2, ge=0, lt=1)
    tuned: bool = setting("β of the residual max(0, p/β - q) by its equation, not 1.", default=False)


@settings
class ConfidentSettings(DraftingSettings):
    """Speculative decoding whose window ends where the drafter becomes unsure."""

    max_draft: int = setting("Longest window.", default=10, unit="tokens", ge=1, le=64)
    stop_below: float = setting(
        "A window ends with the token at which the product of the drafter's top probabilities falls under this.",
        default=0.4,
        gt=0,
        lt=1,
    )


@settings
class AdaptiveSettings(DraftingSettings):
    """Speculative decoding whose window is the best for the acceptance measured so far (SD, Theorem 3.8)."""

    max_draft: int = setting("Longest window.", default=10, unit="tokens", ge=1, le=64)
    cost_ratio: float | None = setting(
        "c: time of one run of the drafter over one of the large model; none: timed before decoding.", default=None, ge=0
    )


@settings
class BeamSettings:
    """Beam search with the large model alone."""

    beams: int = setting("w: beams kept.", default=4, ge=1, le=64)


@settings
class SpeculativeBeamSettings(BeamSettings):
    """Speculative beam search: identical to beam search with the large model (SD, A.4)."""

    draft_beams: int = setting("u: beams the small model drafts, at least `beams`.", default=6, ge=1, le=64)
    draft_length: int = setting("Tokens drafted before each run of the large model.", default=3, unit="tokens", ge=1, le=64)

    def validate(self) -> None:
        if self.draft_beams < self.beams:
            raise ValueError(f"draft_beams is {self.draft_beams}; it must be at least beams, {self.beams}")


@settings
class SequenceCascadeSettings:
    """The small model answers, or the large one does it all again (SpecCascade, equation 1)."""

    confidence: str = setting(
        "Of the small model's token log-probabilities: their sum, mean, or a quantile.",
        default="mean",
        choices=("sum", "mean", "quantile"),
    )
    quantile: float = setting("Which quantile; 0 is the least sure token.", default=0.0, ge=0, le=1)
    deferral_cost: float = setting(
        "α: the large model answers where the confidence, as a probability, is under 1 - α.", default=0.5, ge=0, le=1
    )


@settings
class TokenCascadeSettings:
    """Small tokens while the small model is sure, then one large token, nothing verified (SpecCascade, Algorithm 2)."""

    deferral_cost: float = setting(
        "α: the small model goes on while its top probability is at least 1 - α.", default=0.5, ge=0, le=1
    )
    max_draft: int = setting("Small tokens in a row at most.", default=10, unit="tokens", ge=1, le=64)


@settings
class DiffOracleSettings:
    """Both models at every step; the large one's token where it is surer by more than α (SpecCascade, Algorithm 3)."""

    deferral_cost: float = setting("α: defer where max q < max p - α.", default=0.1, ge=0, le=1)


@settings
class SpeculativeCascadeSettings(SpeculativeSettings):
    """Speculative cascades: speculative execution of a deferral rule (SpecCascade, Algorithm 5)."""

    rule: str = setting("The deferral rule T(q, p).", default="opt", choices=CASCADE_RULES)
    deferral_cost: float = setting(
        "α of the rule: 0 to 1 where it compares probabilities, at least 0 for bild, any number for entropies (_log).",
        default=0.1,
    )

    def validate(self) -> None:
        least, most = CASCADE_BOUNDS[self.rule]
        broken = f"deferral_cost is {self.deferral_cost}; with the rule {self.rule} it must be"
        if not self.deferral_cost >= least:
            raise ValueError(f"{broken} at least {least:g}")
        if not self.deferral_cost <= most:
            raise ValueError(f"{broken} at most {most:g}")


@settings
class CalmSettings:
    """Early exit a token, at the first layer that is confident enough (CALM; BiLD, 7.2)."""

    confidence: str = setting(
        "Top-1 minus top-2 probability, likeness of successive hidden states, or a trained classifier.",
        default="softmax",
        choices=("softmax", "saturation", "classifier"),
    )
    threshold: float = setting("λ of the decaying threshold.", default=0.9, ge=0, le=1)
    decay: float = setting("t of the decaying threshold clip(0.9 λ + 0.1 exp(-t i / N), 0, 1).", default=4.0, ge=0)


METHOD_SETTINGS: dict[str, type] = {
    "vanilla_large": VanillaSettings,
    "vanilla_small": VanillaSettings,
    "bild": BildSettings,
    "bild_oracle": BildOracleSettings,
    "speculative": SpeculativeSettings,
    "speculative_lenient": LenientSettings,
    "speculative_lossy": LossySettings,
    "speculative_confident": ConfidentSettings,
    "speculative_adaptive": AdaptiveSettings,
    "beam_large": BeamSettings,
    "speculative_beam": SpeculativeBeamSettings,
    "sequence_cascade": SequenceCascadeSettings,
    "token_cascade": TokenCascadeSettings,
    "diff_oracle": DiffOracleSettings,
    "speculative_cascade": SpeculativeCascadeSettings,
    "calm": CalmSettings,
}
"""The settings of each method of the registry (`tasks/decoding/registry.py`), readable without loading torch."""
