"""Greedy acceptance rules as the compiled kernel takes them."""

from __future__ import annotations

from tasks.decoding.decoder import GreedyAcceptance
from tasks.decoding.runtimes.layout import Acceptance


def pack_acceptance(rule: GreedyAcceptance) -> Acceptance:
    """Return the kernel's structure of a rule."""
    agreement = 2 if rule.first_only else int(rule.keep_agreed)
    return Acceptance(rule.max_surprisal, rule.min_share, rule.max_gap, rule.min_score, rule.max_excess, agreement)
