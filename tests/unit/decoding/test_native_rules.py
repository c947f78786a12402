"""The turns that the compiled kernel reports, accounted for."""

from __future__ import annotations

import pytest

from tasks.decoding.generation import Counts
from tasks.decoding.native_rules import account
from tasks.decoding.runtimes.layout import NativeTurn
from tasks.decoding.turn import DraftRule, RowState, TurnRules


@pytest.mark.parametrize("stopped", [1, 3])
def test_turns_that_do_not_end_with_the_text_are_refused(stopped: int) -> None:
    """The kernel decides when to stop; the turns must agree, or the counts would be wrong."""
    rules = TurnRules(DraftRule(2), frozenset((1,)), 6, True)
    turns = [NativeTurn(2, 2, 0, 2, 1, 1)] * stopped
    with pytest.raises(RuntimeError, match="the kernel took"):
        account(rules, RowState(0, [0], 1), [0, *[5] * 9], turns)
    with pytest.raises(RuntimeError, match="ends otherwise at turn 2"):
        account(rules, RowState(0, [0], 1), [0, *[5] * 6], [NativeTurn(2, 2, 0, 2, 1, 1)] * 2, ended=False)
    whole = RowState(0, [0], 1)
    account(rules, whole, [0, *[5] * 3], [NativeTurn(2, 2, 0, 2, 1, 1)], ended=False)
    account(rules, whole, [0, *[5] * 6], [NativeTurn(2, 2, 0, 2, 1, 1)])
    assert whole.counts == Counts(
        tokens=6, small_steps=4, large_calls=2, drafted=4, accepted=4,
        verified=whole.counts.verified, kept=whole.counts.kept,
    )  # fmt: skip
