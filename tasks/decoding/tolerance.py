"""Acceptance of tokens that the large model finds good enough, whatever the drafter thought of them.

None of these rules is lossless. Each decides without a draw; a token from p replaces the first one that is not accepted.
"""

from __future__ import annotations

import math

from tasks.decoding.acceptance_rules import AcceptanceRule, deterministic_rule
from tasks.decoding.decoder import GreedyAcceptance
from tasks.decoding.token_statistics import Mask, TokenIds, TokenStatistics


def typical(min_score: float, typicality: float) -> AcceptanceRule:
    """Accept x where p(x) ≥ min(ε, δ exp(-H(p))), H in nats (Medusa, section 2.3.1).

    The likeliest token is always accepted, since exp(-H) ≤ max p.

    Args:
        min_score: ε, 0 < ε ≤ 1.
        typicality: δ, 0 < δ ≤ 1.
    """
    max_excess = -math.log(typicality)

    def accept_mask(tokens: TokenIds, q: TokenStatistics, p: TokenStatistics) -> Mask:
        return (p.of(tokens) >= min_score) | (p.surprisal(tokens) - p.entropy <= max_excess) | (p.best == tokens)

    return deterministic_rule(accept_mask, greedy=GreedyAcceptance(-1.0, True, min_score=min_score, max_excess=max_excess))


def near_the_top(margin: float) -> AcceptanceRule:
    """Accept x where p(x) ≥ max p - m: the large model would lose at most m of probability by it.

    Greedy decoding is the speculative cascade with the deferral rule TokenV2, except for the bonus token.

    Args:
        margin: m, 0 ≤ m < 1.
    """

    def accept_mask(tokens: TokenIds, q: TokenStatistics, p: TokenStatistics) -> Mask:
        return (p.top - p.of(tokens) <= margin) | (p.best == tokens)

    return deterministic_rule(accept_mask, greedy=GreedyAcceptance(-1.0, True, max_gap=margin))
