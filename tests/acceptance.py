"""Greedy acceptance in numbers, as its fields are documented, one token at a time."""

from __future__ import annotations

from torch import Tensor

from tasks.decoding.decoder import GreedyAcceptance

MORE_BOUNDS = [
    GreedyAcceptance(-1.0, keep_agreed=True, max_gap=0.02),
    GreedyAcceptance(-1.0, keep_agreed=False, max_gap=0.3),
    GreedyAcceptance(-1.0, keep_agreed=False, min_score=0.1),
    GreedyAcceptance(-1.0, keep_agreed=True, max_excess=0.5),
    GreedyAcceptance(-1.0, keep_agreed=True, min_score=0.3, max_excess=-0.2),
]
"""Rules on the scores themselves and on the entropy."""


def keeps(scores: Tensor, token: int, rule: GreedyAcceptance) -> bool:
    """Return whether a bound of the rule keeps a token at a position with these scores (vocabulary,)."""
    score, top = float(scores[token]), float(scores.max())
    surprisal, entropy = -float(scores[token].log()), -float(scores[scores > 0].mul(scores[scores > 0].log()).sum())
    return (
        surprisal <= rule.max_surprisal
        or score >= rule.min_share * top
        or top - score <= rule.max_gap
        or score >= rule.min_score
        or surprisal - entropy <= rule.max_excess
    )
