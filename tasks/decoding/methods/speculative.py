"""Speculative decoding (Leviathan et al., 2023), the methods that loosen its acceptance, and one that ends a draft early.

Also its theory: the expected gain of a draft length, and the one that maximises it (SD, sections 3.2 to 3.5). The acceptance
rate there is SD's α: the probability that a drafted token is accepted, the same for each; c is the time of one run of the
drafter over that of one run of the large model (Definition 3.7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.method import BLOCK, SHARES, DecodingMethod, DraftingSettings, Pair, Request, method, preset
from tasks.settings import setting, settings

if TYPE_CHECKING:
    from tasks.decoding.loop import SpeculativeLoop
    from tasks.decoding.rules import AcceptanceRule


@settings
class SpeculativeSettings(DraftingSettings):
    """Speculative decoding (SD, Algorithm 1): exact for greedy and for sampling."""

    draft_length: int = setting("Tokens drafted before each run of the large model.", default=5, unit="tokens", ge=1, le=64)


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
    """Speculative decoding that accepts tokens near the large model's argmax."""

    margin: float = setting(
        "A token is accepted where its probability is at most this under the highest.", default=0.1, ge=0, lt=1
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


def fixed_window(pair: Pair, settings: SpeculativeSettings, rule: AcceptanceRule, request: Request) -> SpeculativeLoop:
    """Return the loop with drafts of `settings.draft_length` tokens, verified by `rule`."""
    from tasks.decoding.loop import speculative_loop

    return speculative_loop(pair, settings.drafter, rule, DraftRule(window=settings.draft_length), request)


@method("speculative", SpeculativeSettings, "Leviathan et al., 2023, Algorithm 1", lossless=True)
@preset("block_sizes", "SpecCascade, E.4; SD, Table 2: these values", draft_length=(3, 5, 7))
@preset("windows", "BiLD, 7.3: a fixed window of 3 to 10", draft_length=(3, 4, 5, 6, 7, 8, 9, 10))
def speculative(pair: Pair, settings: SpeculativeSettings, request: Request) -> DecodingMethod:
    from tasks.decoding.rules import speculative_sampling

    return fixed_window(pair, settings, speculative_sampling, request)


@method("speculative_lenient", LenientSettings, "Leviathan et al., 2023, appendix A.5")
@preset("paper", "SD, Table 5 and A.5: these values; γ of the greedy case", lenience=(1.0, 0.5, 0.3, 0.1), draft_length=(8,))
def speculative_lenient(pair: Pair, settings: LenientSettings, request: Request) -> DecodingMethod:
    from tasks.decoding.rules import lenient

    return fixed_window(pair, settings, lenient(settings.lenience), request)


@method("speculative_lossy", LossySettings, "Narasimhan et al., 2024, section 2; Tran-Thien, 2023")
@preset(
    "paper", "SpecCascade, E.1: α from 0 to 1, β = 1; steps ours", lossiness=SHARES[:-1], tuned=(False,), draft_length=BLOCK
)
@preset("tuned", "SpecCascade, E.6: β tuned; steps ours", lossiness=SHARES[:-1], tuned=(True,), draft_length=BLOCK)
def speculative_lossy(pair: Pair, settings: LossySettings, request: Request) -> DecodingMethod:
    from tasks.decoding.rules import lossy

    return fixed_window(pair, settings, lossy(settings.lossiness, tuned=settings.tuned), request)


@method("speculative_margin", MarginSettings, "no paper: TokenV2 of Narasimhan et al., 2024, as an acceptance rule")
@preset("steps", "no paper; steps ours", margin=(0.02, 0.05, 0.1, 0.2, 0.4), draft_length=BLOCK)
def speculative_margin(pair: Pair, settings: MarginSettings, request: Request) -> DecodingMethod:
    from tasks.decoding.rules import within_margin

    return fixed_window(pair, settings, within_margin(settings.margin), request)


@method(
    "speculative_confident", ConfidentSettings, "Leviathan et al., 2023, section 3.5: the window ends in doubt", lossless=True
)
def speculative_confident(pair: Pair, settings: ConfidentSettings, request: Request) -> DecodingMethod:
    from tasks.decoding.loop import speculative_loop
    from tasks.decoding.rules import speculative_sampling

    rule = DraftRule(window=settings.max_draft, stop_below=settings.stop_below)
    return speculative_loop(pair, settings.drafter, speculative_sampling, rule, request)


def expected_tokens(acceptance_rate: float, draft_length: int) -> float:
    """Return the expected tokens for each run of the large model: (1 - α^(γ+1)) / (1 - α), or γ + 1 if α is 1 (equation 1)."""
    # 1 + α + … + α^γ, which needs no case for α = 1.
    return sum(acceptance_rate**kept for kept in range(draft_length + 1))


def expected_speedup(acceptance_rate: float, draft_length: int, cost_ratio: float, check_cost: float = 1.0) -> float:
    """Return the speed-up over the large model alone: (1 - α^(γ+1)) / ((1 - α) (γ c + v)) (Theorem 3.8, where v is 1).

    `check_cost` is v: the time of a run of the large model over γ + 1 positions over that of a run over one. The paper assumes
    that the two are equal.
    """
    return expected_tokens(acceptance_rate, draft_length) / (draft_length * cost_ratio + check_cost)


def expected_operations(acceptance_rate: float, draft_length: int, operations_ratio: float) -> float:
    """Return the factor in arithmetic operations: (1 - α) (γ ĉ + γ + 1) / (1 - α^(γ+1)) (Theorem 3.11).

    `operations_ratio` is ĉ: the drafter's operations for each token divided by the large model's.
    """
    runs = draft_length * operations_ratio + draft_length + 1
    return runs / expected_tokens(acceptance_rate, draft_length)


def oracle_tokens(acceptance_rate: float) -> float:
    """Return the expected tokens for each run of the large model if an oracle chose γ: 1 / (1 - α), α < 1 (section 3.5)."""
    return 1 / (1 - acceptance_rate)


def oracle_speedup(acceptance_rate: float, cost_ratio: float) -> float:
    """Return the speed-up with that oracle: 1 / (1 - α + α c), and 1 where c is above 1, since it then drafts nothing.

    No draft length has a greater one in theory. The paper gives the tokens; a run of the large model then follows α / (1 - α)
    runs of the drafter, all of whose tokens are kept.
    """
    return 1 / (1 - acceptance_rate + acceptance_rate * min(cost_ratio, 1.0))


def best_draft_length(acceptance_rate: float, cost_ratio: float, longest: int) -> int:
    """Return the γ in 0 to `longest` with the greatest expected speed-up, the smallest one of a tie (Figure 3).

    It is 0, no draft at all, if the acceptance rate does not exceed c (Corollary 3.9).
    """
    # max keeps the first, and so the shortest, of a tie.
    return max(range(longest + 1), key=lambda length: expected_speedup(acceptance_rate, length, cost_ratio))
