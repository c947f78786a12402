"""The theoretical gain of speculative decoding, and the draft length that maximises it (SD, sections 3.2 to 3.5).

The acceptance rate here is SD's α: the probability that a drafted token is accepted, the same for each.
c is the time of one run of the drafter over that of one run of the large model (Definition 3.7).
"""

from __future__ import annotations

from collections.abc import Callable


def expected_tokens(acceptance_rate: float, draft_length: int) -> float:
    """Return the expected tokens for each run of the large model: (1 - α^(γ+1)) / (1 - α), or γ + 1 if α is 1 (equation 1)."""
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


def largest_entropy(min_acceptance: float, entropy_factor: float) -> float:
    """Return the entropy H at which the lower bound 1 - √(c H) on the acceptance rate is `min_acceptance` (AdaEDL).

    Args:
        min_acceptance: λ, 0 ≤ λ < 1.
        entropy_factor: c, above 0. H is in nats.
    """
    return (1 - min_acceptance) ** 2 / entropy_factor


def best_draft_length(
    acceptance_rate: float, cost_ratio: float, longest: int, check_cost: Callable[[int], float] = lambda positions: 1.0
) -> int:
    """Return the γ in 0 to `longest` with the greatest expected speed-up, the smallest one of a tie (Figure 3).

    It is 0, no draft at all, if the acceptance rate does not exceed c (Corollary 3.9). `check_cost` gives the cost of a run of
    the large model over so many positions, in steps.
    """

    def speedup(length: int) -> float:
        return expected_speedup(acceptance_rate, length, cost_ratio, check_cost(length + 1))

    return max(range(longest + 1), key=speedup)
