"""Acceptance of tokens that the large model finds good enough, whatever the drafter thought of them.

None of these rules is lossless. `typical`, `near_the_top` and `among_the_best` decide without a draw, and a token from p
replaces the first one that is not accepted; `within_divergence` and `found_its_way_back` are speculative sampling that accepts
some tokens more. `within_divergence` looks at the drafter too.
"""

from __future__ import annotations

import dataclasses
import math

from torch import Tensor

from tasks.decoding.acceptance_rules import (
    AcceptanceResult,
    AcceptanceRule,
    deterministic_rule,
    masked,
    speculative_sampling,
)
from tasks.decoding.decoder import GreedyAcceptance, Pardon
from tasks.decoding.distributions import PredictionBlock
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


def among_the_best(count: int) -> AcceptanceRule:
    """Accept x where it is among the large model's k likeliest tokens, the first ones of a tie.

    A token that the large model rules out is among none. With k = 1 greedy decoding is speculative decoding; sampling is not,
    since the likeliest token is then accepted however often the drafter draws it.

    Args:
        count: k, at least 1.
    """

    def accept_mask(tokens: TokenIds, q: TokenStatistics, p: TokenStatistics) -> Mask:
        return p.rank(tokens) < count

    return deterministic_rule(accept_mask, greedy=GreedyAcceptance(-1.0, keep_agreed=True, max_rank=count if count > 1 else 0))


def within_divergence(measure: str, threshold: float) -> AcceptanceRule:
    """Accept x, whatever it is, where D(q, p) ≤ T; elsewhere decide as speculative sampling does (Holsman et al., 2025: FSD).

    D is taken of both models' untruncated softmaxes, as in the authors' code. That code replaces the first token beyond the
    threshold by one drawn from p; here such a token may still be accepted, with probability min(1, p(x)/q(x)), and otherwise
    gives way to one from norm(max(0, p - q)). So T = 0 is speculative decoding.

    Args:
        measure: D, a key of `divergences.DIVERGENCES`.
        threshold: T, at least 0.
    """

    def accept_mask(tokens: TokenIds, q: TokenStatistics, p: TokenStatistics) -> Mask:
        return (q.divergence(p, measure) <= threshold) | (p.best == tokens)

    def apply(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        if p.sampling.greedy:
            return masked(accept_mask, tokens, q, p)
        exact = speculative_sampling.apply(tokens, q, p)
        return AcceptanceResult(exact.accept.masked_fill(q.divergence(p, measure) <= threshold, 1.0), exact.residual)

    return dataclasses.replace(speculative_sampling, apply=apply, accept_mask=accept_mask, greedy=None)


def found_its_way_back(min_entropy: float, window: int) -> AcceptanceRule:
    """Speculative sampling that pardons a rejected token where H(p) ≥ h and the next w are accepted (Li et al., 2025: FLy).

    The paper's target is greedy: a mismatch where it is unsure, and after which it agrees again, is another wording. When
    sampling, "accepted" is what speculative sampling draws for each by itself; a token that is not pardoned is replaced from
    norm(max(0, p - q)). H is taken over the whole softmax, in nats; vLLM takes it over the likeliest three tokens.

    Args:
        min_entropy: h, in nats.
        window: w. A rejected token with fewer drafted ones behind it is not pardoned.
    """
    pardon = Pardon(min_entropy, window)
    numbers = GreedyAcceptance(-1.0, True, pardon=pardon)
    return dataclasses.replace(speculative_sampling, greedy=numbers, pardon=pardon)
