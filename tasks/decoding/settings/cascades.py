"""Settings of cascades and speculative cascades (Narasimhan et al., 2024)."""

from __future__ import annotations

from tasks.decoding.settings.speculative import SpeculativeSettings
from tasks.settings import setting, settings

INFINITY = float("inf")
CASCADE_BOUNDS = {
    "chow": (-1.0, 1.0),
    "chow_log": (-INFINITY, INFINITY),
    "diff": (-1.0, 1.0),
    "diff_log": (-INFINITY, INFINITY),
    "opt": (-INFINITY, INFINITY),
    "opt_log": (-INFINITY, INFINITY),
    "token_v1": (-1.0, 1.0),
    "token_v2": (-1.0, 1.0),
    "token_v3": (-1.0, 1.0),
    "bild": (0.0, INFINITY),
}
"""Smallest and largest α of each deferral rule: rules compare probabilities, entropies or (bild) a distance in nats.

At its smallest α a rule defers everywhere, which is speculative decoding. The paper varies α from 0 to 1 where probabilities
are compared (E.1); at 0 most of these rules still keep tokens of the small model. OPT multiplies α by D_TV, which may be small.
"""
CASCADE_RULES = tuple(CASCADE_BOUNDS)
_FIT = "-1 to 1 where probabilities are compared, any number where entropies are, in nats (_log)"


def _require_in_bounds(rule: str, cost: float) -> None:
    """Check α of a rule.

    Raises:
        ValueError: it is outside the rule's bounds.
    """
    least, most = CASCADE_BOUNDS[rule]
    broken = f"deferral_cost is {cost}; with the rule {rule} it must be"
    if not cost >= least:
        raise ValueError(f"{broken} at least {least:g}")
    if not cost <= most:
        raise ValueError(f"{broken} at most {most:g}")


@settings
class SequenceCascadeSettings:
    """The small model answers; where it is not confident, the large model answers again (SpecCascade, equation 1)."""

    confidence: str = setting(
        "How the log-probabilities of the small model's tokens are combined: sum, mean or a quantile.",
        default="mean",
        choices=("sum", "mean", "quantile"),
    )
    quantile: float = setting("The quantile to take; 0 is the least confident token.", default=0.0, ge=0, le=1)
    deferral_cost: float = setting(
        "α: the large model answers where the confidence, as a probability, is below 1 - α.", default=0.5, ge=0, le=1
    )


@settings
class TokenCascadeSettings:
    """The small model while it is confident, then one large-model token; no verification (SpecCascade, Algorithm 2)."""

    rule: str = setting(
        "What the large model is asked by: chow, a top probability under 1 - α, or chow_log, an entropy above α.",
        default="chow",
        choices=("chow", "chow_log"),
    )
    deferral_cost: float = setting(f"α of the rule: {_FIT}. At the smallest the large model writes all.", default=0.5)
    max_draft: int = setting("Most small-model tokens in a row.", default=10, unit="tokens", ge=1, le=64)

    def validate(self) -> None:
        _require_in_bounds(self.rule, self.deferral_cost)


@settings
class DiffOracleSettings:
    """Both models at every step; defer where the large one is more confident by more than α (SpecCascade, Algorithm 3)."""

    rule: str = setting(
        "How confidence is compared: diff, by top probabilities, max q < max p - α; diff_log, by entropies, H(p) < H(q) - α.",
        default="diff",
        choices=("diff", "diff_log"),
    )
    deferral_cost: float = setting(f"α of the rule: {_FIT}. The smallest always defers.", default=0.1)

    def validate(self) -> None:
        _require_in_bounds(self.rule, self.deferral_cost)


@settings
class SpeculativeCascadeSettings(SpeculativeSettings):
    """Speculative cascades: speculative execution of a deferral rule (SpecCascade, Algorithm 5)."""

    rule: str = setting("The deferral rule T(q, p).", default="opt", choices=CASCADE_RULES)
    deferral_cost: float = setting(
        "α of the rule: -1 to 1 where it compares probabilities, at least 0 for bild, any number for opt and for entropies "
        "(_log). The smallest is speculative decoding; the paper varies probabilities from 0 to 1.",
        default=0.1,
    )

    def validate(self) -> None:
        _require_in_bounds(self.rule, self.deferral_cost)


METHODS: dict[str, type] = {
    "sequence_cascade": SequenceCascadeSettings,
    "token_cascade": TokenCascadeSettings,
    "diff_oracle": DiffOracleSettings,
    "speculative_cascade": SpeculativeCascadeSettings,
}
"""The settings of each method of this family, by the method's name."""
