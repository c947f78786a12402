"""Greedy acceptance rules as the compiled kernel takes them."""

from __future__ import annotations

import math

from tasks.decoding.decoder import GreedyAcceptance
from tasks.decoding.runtimes.layout import Acceptance


def pack_acceptance(rule: GreedyAcceptance) -> Acceptance:
    """Return the kernel's structure of a rule."""
    agreement = 2 if rule.first_only else int(rule.keep_agreed)
    bounds = rule.max_surprisal, rule.min_share, rule.max_gap, rule.min_score, rule.max_excess
    min_entropy, window = (math.inf, 0) if rule.pardon is None else (rule.pardon.min_entropy, rule.pardon.window)
    return Acceptance(*bounds, min_entropy, agreement, window, rule.max_rank)
