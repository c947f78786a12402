"""Acceptance of tokens that the large model finds good enough, whatever the drafter thought of them.

Neither of these rules is lossless. `near_the_top` decides without a draw, and a token from p replaces the first one that is
not accepted; `found_its_way_back` is speculative sampling that accepts some tokens more.
"""

from __future__ import annotations

import dataclasses

from tasks.decoding.acceptance_rules import AcceptanceRule, deterministic_rule, speculative_sampling
from tasks.decoding.decoder import GreedyAcceptance, Pardon
from tasks.decoding.token_statistics import Mask, TokenIds, TokenStatistics


def near_the_top(margin: float) -> AcceptanceRule:
    """Accept x where p(x) ≥ max p - m: the large model would lose at most m of probability by it.

    Greedy decoding is the speculative cascade with the deferral rule TokenV2, except for the bonus token.

    Args:
        margin: m, 0 ≤ m < 1.
    """

    def accept_mask(tokens: TokenIds, q: TokenStatistics, p: TokenStatistics) -> Mask:
        return (p.top - p.of(tokens) <= margin) | (p.best == tokens)

    return deterministic_rule(accept_mask, greedy=GreedyAcceptance(-1.0, True, max_gap=margin))


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
