"""The theoretical gain of speculative decoding, and the draft length that maximises it (SD, sections 3.2 to 3.5).

The acceptance rate here is SD's α: the probability that a drafted token is accepted, the same for each.
c is the time of one run of the drafter over that of one run of the large model (Definition 3.7).
"""

from __future__ import annotations


def expected_tokens(acceptance_rate: float, draft_length: int) -> float:
    """Return the expected tokens for each run of the large model: (1 - α^(γ+1)) / (1 - α), or γ + 1 if α is 1 (equation 1)."""
    return sum(acceptance_rate**kept for kept in range(draft_length + 1))


def expected_speedup(acceptance_rate: float, draft_length: int, cost_ratio: float) -> float:
    """Return the speed-up over the large model alone: (1 - α^(γ+1)) / ((1 - α) (γ c + 1)) (Theorem 3.8)."""
    return expected_tokens(acceptance_rate, draft_length) / (draft_length * cost_ratio + 1)


def expected_operations(acceptance_rate: float, draft_length: int, operations_ratio: float) -> float:
    """Return the factor in arithmetic operations: (1 - α) (γ ĉ + γ + 1) / (1 - α^(γ+1)) (Theorem 3.11).

    `operations_ratio` is ĉ: the drafter's operations for each token divided by the large model's.
    """
    runs = draft_length * operations_ratio + draft_length + 1
    return runs / expected_tokens(acceptance_rate, draft_length)


def best_draft_length(acceptance_rate: float, cost_ratio: float, longest: int) -> int:
    """Return the γ in 0 to `longest` with the greatest expected speed-up, the smallest one of a tie (Figure 3).

    It is 0, no draft at all, if the acceptance rate does not exceed c (Corollary 3.9).
    """
    return max(range(longest + 1), key=lambda length: expected_speedup(acceptance_rate, length, cost_ratio))
