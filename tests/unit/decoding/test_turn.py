"""What of a turn no text shows: the cut of a draft that goes on behind its end, and how many positions a call verifies."""

import pytest

from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.turn import TurnRules


def rules(draft_rule: DraftRule | None = None, *, bonus: bool = True) -> TurnRules:
    return TurnRules(draft_rule or DraftRule(window=3), frozenset((1, 9)), 8, bonus)


@pytest.mark.parametrize(
    ("drafted", "cut", "fallback"), [([7, 8], [7, 8], True), ([7, 9, 1], [7, 9], False), ([1], [1], False), ([], [], True)]
)
def test_a_draft_is_cut_after_its_first_end_token(drafted: list[int], cut: list[int], fallback: bool) -> None:
    assert rules().cut(drafted, True) == (cut, fallback)
    assert rules().cut(drafted, False) == (cut, False)


def test_a_call_verifies_the_draft_and_the_bonus_token() -> None:
    assert [rules(bonus=bonus).positions(2) for bonus in (True, False)] == [3, 2]
