"""Ways of decoding: which one is chosen, what trials cost, and the warm-up on real and on held engines."""

import itertools
import random
from collections import Counter

import pytest

from tasks.decoding import DecodingPair
from tasks.decoding.method import Request
from tasks.serve.pacing import BatchKind, Pacing, PairEngine, Way, findings, warm_up
from tests.calibration import SOURCES
from tests.unit.serve.conftest import HeldEngine

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


def test_every_way_is_tried_twice_and_the_fastest_leads() -> None:
    pacing = Pacing()
    chosen = run(pacing, ONE, {False: 1.0, True: 0.5}, 50)
    assert chosen[:4] == [False, False, True, True]
    assert Counter(chosen[4:])[True] >= 43
    assert pacing.fastest(ONE).drafting
    other = Pacing()
    assert Counter(run(other, ONE, {False: 0.5, True: 1.0}, 50)[4:])[False] >= 43
    assert not other.fastest(ONE).drafting


def test_drafting_ends_where_it_stops_to_pay_and_comes_back() -> None:
    """A text of another kind arrives: drafts are rejected, and a token takes longer than without them."""
    pacing = Pacing()
    run(pacing, ONE, {False: 1.0, True: 0.5}, 2000)
    slower = run(pacing, ONE, {False: 1.0, True: 1.5}, 60)
    assert Counter(slower[-20:])[True] <= 2, "noticed within a few batches, although trials had become rare"
    back = run(pacing, ONE, {False: 1.0, True: 0.5}, 600)
    assert Counter(back[-300:])[True] >= 290, "tried anew, drafting is seen to be faster again"


def test_a_slow_hour_changes_nothing() -> None:
    """Everything takes three times as long: the ratio stays, and so does the leader."""
    pacing = Pacing()
    run(pacing, ONE, {False: 1.0, True: 0.5}, 100)
    assert Counter(run(pacing, ONE, {False: 3.0, True: 1.5}, 100))[True] >= 85
    assert pacing.fastest(ONE).drafting


def test_a_warm_up_on_an_idle_machine_is_not_compared_with_a_busy_one() -> None:
    pacing = Pacing()
    vanilla, drafting = pacing.ways(ONE)
    pacing.begin(ONE, {vanilla: 1.0, drafting: 0.6})
    assert Counter(run(pacing, ONE, {False: 3.0, True: 1.8}, 200))[True] >= 185


def test_noise_alone_changes_little() -> None:
    """Times of single texts scatter by a third; drafting is 1.5 times as fast on average."""
    rng, pacing, chosen = random.Random(1), Pacing(), []
    for _ in range(3000):
        way = pacing.choose(ONE)
        pacing.learn(ONE, way, (1.0 if way.drafting else 1.5) * rng.uniform(0.67, 1.33), 1)
        chosen.append(way.drafting)
    assert Counter(chosen)[True] >= 2850


def test_a_slower_rival_costs_little() -> None:
    assert 8 <= Counter(run(Pacing(), ONE, {False: 1.0, True: 1.4}, 2000))[True] <= 20
    assert 2 <= Counter(run(Pacing(), ONE, {False: 1.0, True: 5.0}, 2000))[True] <= 20


@pytest.mark.parametrize("slower", [1.2, 1.6, 4.0])
def test_what_trials_lose_is_bounded(slower: float) -> None:
    """After a warm-up, however few batches of a kind come: a hundredth of the leader's time, and one trial."""
    pacing = Pacing()
    vanilla, drafting = pacing.ways(ONE)
    pacing.begin(ONE, {vanilla: 1.0, drafting: slower})
    chosen = run(pacing, ONE, {False: 1.0, True: slower}, 3000)
    for batches in (10, 40, 300, 3000):
        lost = Counter(chosen[:batches])[True] * (slower - 1)
        assert lost <= 0.01 * batches + max(0, slower - 3)
    assert Counter(chosen)[True] >= 3


def test_the_first_run_of_a_way_is_forgotten() -> None:
    """It pays for what a runtime does once."""
    pacing = Pacing()
    vanilla, drafting = pacing.ways(ONE)
    for way, seconds in ((vanilla, 90.0), (vanilla, 2.0), (drafting, 100.0), (drafting, 1.0)):
        assert pacing.choose(ONE) == way
        pacing.learn(ONE, way, seconds, 10)
    assert pacing.table()[ONE] == pytest.approx({drafting: 0.1, vanilla: 0.2})
    assert pacing.fastest(ONE) == drafting


def test_what_teaches_nothing() -> None:
    """A trial before the leader ran, a batch without tokens, and a batch of another kind."""
    pacing = Pacing()
    vanilla, drafting = pacing.ways(ONE)
    pacing.learn(ONE, drafting, 1.0, 10)
    pacing.learn(ONE, vanilla, 1.0, 0)
    assert pacing.table() == {ONE: {}}
    run(pacing, ONE, {False: 1.0, True: 0.5}, 5)
    assert FOUR not in pacing.table()
    assert pacing.choose(FOUR) == pacing.fastest(FOUR) == pacing.ways(FOUR)[0]


REQUEST = Request(10)


@pytest.fixture
def engine() -> HeldEngine:
    found = HeldEngine(drafts=True)
    found.released.set()
    return found


def kinds(done: int) -> list[BatchKind]:
    return [BatchKind(1 << power, greedy=True, streamed=False) for power in range(done.bit_length())]


def test_every_way_of_every_size_is_timed(engine: HeldEngine) -> None:
    pacing, rows = Pacing(), [[number, 1] for number in range(5)]
    assert warm_up(engine, pacing, rows, REQUEST, 6, 60.0) == 4
    assert set(pacing.table()) == set(kinds(4))
    for kind, found in pacing.table().items():
        assert set(found) == set(pacing.ways(kind))
    assert {len(batch) for batch in engine.batches} == {1, 2, 4}
    assert [row for batch in engine.batches if len(batch) == 1 for row in batch][::2][:5] == rows


def test_time_ends_the_warm_up(engine: HeldEngine) -> None:
    ticking = itertools.count(0, 1.0)
    pacing = Pacing()
    assert warm_up(engine, pacing, [[3, 1]], REQUEST, 32, 70.0, lambda: next(ticking)) == 1
    assert set(pacing.table()) == set(kinds(1)), "the second size was begun and is not half known"


def test_without_texts_nothing_is_timed(engine: HeldEngine) -> None:
    pacing = Pacing()
    assert warm_up(engine, pacing, [], REQUEST, 32, 60.0) == 0
    assert "found while serving" in findings(pacing, 0)


@pytest.mark.parametrize("method", [True, False])
def test_a_real_pair_is_warmed(method: bool, pair: DecodingPair) -> None:
    pacing = Pacing(fixed=method)
    assert warm_up(PairEngine(pair), pacing, pair.encode(SOURCES[:4]), REQUEST, 2, 60.0) == 2
    assert "always in one way: by the " in findings(pacing, 2)
    assert all(seconds > 0 for ways in pacing.table().values() for seconds in ways.values())


def test_findings_name_the_sizes_that_pay() -> None:
    pacing = Pacing()
    for size, kind in zip((1, 2, 4), kinds(4), strict=True):
        pacing.begin(kind, {way: 0.5 if way.drafting == (size < 4) else 1.0 for way in pacing.ways(kind)})
    assert findings(pacing, 4) == "drafting pays here for 1, 2 texts at once; tried up to 4"
    pacing.begin(kinds(1)[0], {way: 1.0 + way.drafting for way in pacing.ways(kinds(1)[0])})
    assert findings(pacing, 1) == "drafting does not pay here for 1 to 1 texts at once; the large model decodes alone"
