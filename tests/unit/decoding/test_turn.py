"""What a turn does to a row, and when a draft ends, by hand."""

from typing import Any

import pytest

from tasks.decoding.draft_rule import DraftBuilder, DraftRule
from tasks.decoding.turn import RowState, TurnRules

END = frozenset((1, 9))


def rules(limit: int = 8, *, bonus: bool = True, **draft_rule: Any) -> TurnRules:
    return TurnRules(DraftRule(**{"window": 3, **draft_rule}), END, limit, bonus)


def row(generated: int = 0) -> RowState:
    return RowState(0, [0, 5, *[7] * generated], 2)


@pytest.mark.parametrize(
    ("turns", "generated", "budget"),
    [
        (rules(), 0, 3),
        (rules(), 7, 0),
        (rules(bonus=False), 5, 3),
        (rules(bonus=False), 7, 1),
        (rules(ends_unverified=True), 7, 1),
        (rules(first_from_target=True), 0, 0),
        (rules(first_from_target=True), 1, 3),
        (rules(adaptive=lambda counts: 2), 0, 2),
        (rules(adaptive=lambda counts: 9), 0, 3),
    ],
)
def test_a_draft_leaves_room_for_the_token_that_the_target_adds(turns: TurnRules, generated: int, budget: int) -> None:
    assert turns.budget(row(generated)) == budget


@pytest.mark.parametrize(
    ("drafted", "cut", "fallback"), [([7, 8], [7, 8], True), ([7, 9, 1], [7, 9], False), ([1], [1], False), ([], [], True)]
)
def test_a_draft_is_cut_after_its_first_end_token(drafted: list[int], cut: list[int], fallback: bool) -> None:
    assert rules().cut(drafted, True) == (cut, fallback)
    assert rules().cut(drafted, False) == (cut, False)


@pytest.mark.parametrize(
    ("generated", "drafted", "ends"),
    [(0, [7, 1], True), (0, [7, 8], False), (6, [7, 8], True), (5, [7, 8], False), (8, [], False)],
)
def test_a_text_ends_unverified_at_an_end_token_and_at_the_limit(generated: int, drafted: list[int], ends: bool) -> None:
    assert rules(ends_unverified=True).ends_unverified(row(generated), drafted) is ends
    assert not rules().ends_unverified(row(generated), drafted)


def test_no_bonus_follows_a_draft_that_ends_the_text() -> None:
    assert [rules().adds_bonus(drafted) for drafted in ([], [7], [7, 9])] == [True, True, False]
    assert not rules(bonus=False).adds_bonus([7])
    assert [rules().positions(2), rules(bonus=False).positions(2)] == [3, 2]


@pytest.mark.parametrize(
    ("generated", "accepted", "next_token", "ended"),
    [(6, [7], None, False), (6, [7], 8, True), (0, [], 9, True), (0, [7, 1], None, True), (0, [], 8, False)],
)
def test_a_text_ends_at_the_limit_and_at_any_end_token(
    generated: int, accepted: list[int], next_token: int | None, ended: bool
) -> None:
    one = row(generated)
    assert rules().finish(one, accepted, next_token, drafted=len(accepted), steps=0, fallback=False) is ended
    assert one.counts.tokens == (len(one.generation().tokens) if ended else 0)


def test_a_text_without_drafts_is_added_in_one_call() -> None:
    one, other = row(), row()
    rules().finish_undrafted(one, [7, 8, 1])
    assert [rules().finish(other, (), token, drafted=0, steps=0, fallback=False) for token in (7, 8, 1)] == [False, False, True]
    assert one.generation() == other.generation()


@pytest.mark.parametrize(("confidence", "drafted"), [(0.49, []), (0.5, []), (0.51, [7])])
def test_a_token_is_drafted_only_above_the_fallback_threshold(confidence: float, drafted: list[int]) -> None:
    window = DraftBuilder(3, DraftRule(3, fallback_threshold=0.5), {1})
    window.add(7, confidence)
    assert (window.tokens, window.fallback, window.going, window.predictions) == (drafted, not drafted, bool(drafted), 1)


@pytest.mark.parametrize(
    ("rule", "seen"),
    [
        (DraftRule(5, stop_below=0.25), [(0.5,), (0.5,), (0.99,)]),
        (DraftRule(5, max_entropy=1.5), [(0.01, 0.2), (0.01, 1.5), (0.01, 1.6)]),
    ],
    ids=["product of confidences", "entropy"],
)
def test_a_draft_ends_after_the_token_that_passes_its_bound(rule: DraftRule, seen: list[tuple[float, ...]]) -> None:
    window = DraftBuilder(5, rule, {1})
    for scores, going in zip(seen, (True, True, False), strict=True):
        window.add(7, *scores)
        assert window.going is going
    assert (window.tokens, window.fallback) == ([7, 7, 7], False)


@pytest.mark.parametrize(("tokens", "budget"), [([7, 1], 5), ([7, 8], 2), ([], 0)])
def test_a_draft_ends_at_an_end_token_and_at_its_budget(tokens: list[int], budget: int) -> None:
    window = DraftBuilder(budget, DraftRule(5), {1})
    for token in tokens:
        assert window.going
        window.add(token, 0.9)
    assert not window.going
    assert (window.tokens, window.fallback) == (tokens, False)
