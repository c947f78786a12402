"""The fastest way of decoding is found, kept, and given up when it stops being the fastest."""

from __future__ import annotations

from collections import Counter

import pytest

from tasks.serve.pacing import BatchKind, Pacing, Way

ONE = BatchKind.of(1, greedy=True, streamed=False)
FOUR = BatchKind.of(3, greedy=True, streamed=False)


def run(pacing: Pacing, kind: BatchKind, seconds: dict[bool, float], batches: int) -> list[bool]:
    """Whether each of some batches was drafted for, where a token takes the given seconds with and without drafting."""
    chosen = []
    for _ in range(batches):
        way = pacing.choose(kind)
        pacing.learn(kind, way, 10 * seconds[way.drafting], 10)
        chosen.append(way.drafting)
    return chosen


@pytest.mark.parametrize(("texts", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (32, 32), (33, 64)])
def test_a_batch_counts_as_the_next_power_of_two(texts: int, size: int) -> None:
    assert BatchKind.of(texts, greedy=True, streamed=False).size == size


def test_one_text_has_no_company_and_several_have() -> None:
    assert Pacing().ways(ONE) == [Way(drafting=False, together=False), Way(drafting=True, together=False)]
    assert len(Pacing().ways(FOUR)) == 4
    assert Pacing(drafts=False).ways(ONE) == [Way(drafting=False, together=False)]
    assert {way.drafting for way in Pacing(fixed=True).ways(FOUR)} == {True}
    assert {way.drafting for way in Pacing(fixed=False).ways(FOUR)} == {False}


def test_every_way_is_tried_and_the_fastest_kept() -> None:
    pacing = Pacing()
    chosen = run(pacing, ONE, {False: 1.0, True: 0.5}, 50)
    assert chosen == [False] + [True] * 49
    assert run(Pacing(), ONE, {False: 0.5, True: 1.0}, 50) == [False, True] + [False] * 48


def test_drafting_ends_where_it_stops_to_pay_and_comes_back() -> None:
    """A text of another kind arrives: drafts are rejected, and a token takes longer than without them."""
    pacing = Pacing()
    run(pacing, ONE, {False: 1.0, True: 0.5}, 20)
    slower = run(pacing, ONE, {False: 1.0, True: 1.5}, 70)
    assert Counter(slower)[True] <= 10 and not any(slower[10:])
    back = run(pacing, ONE, {False: 1.0, True: 0.5}, 1000)
    assert Counter(back[-400:])[True] >= 390, "tried anew, drafting is seen to be faster again"


def test_a_slower_rival_costs_little() -> None:
    pacing = Pacing()
    chosen = run(pacing, ONE, {False: 1.0, True: 1.4}, 2000)
    assert 10 <= Counter(chosen)[True] <= 25
    assert Counter(run(Pacing(), ONE, {False: 1.0, True: 2.5}, 2000))[True] == 1


def test_the_first_run_of_a_way_is_forgotten() -> None:
    """It pays for what a runtime does once."""
    pacing = Pacing()
    vanilla, drafting = pacing.ways(ONE)
    for seconds in (100.0, 1.0):
        pacing.learn(ONE, drafting, seconds, 10)
    pacing.learn(ONE, vanilla, 2.0, 10)
    assert pacing.table()[ONE] == pytest.approx({drafting: 0.1, vanilla: 0.2})
    assert pacing.fastest(ONE) == drafting


def test_kinds_do_not_learn_from_each_other() -> None:
    pacing = Pacing()
    run(pacing, ONE, {False: 1.0, True: 0.5}, 5)
    assert FOUR not in pacing.table()
    assert pacing.choose(FOUR) == pacing.ways(FOUR)[0]


def test_a_batch_without_tokens_teaches_nothing() -> None:
    pacing = Pacing()
    pacing.learn(ONE, pacing.ways(ONE)[0], 1.0, 0)
    assert pacing.table() == {}
