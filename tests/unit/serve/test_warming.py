"""The warm-up times every way on example texts, within its time, and says what it found."""

from __future__ import annotations

import itertools

import pytest

from tasks.decoding import DecodingPair
from tasks.decoding.method import Request
from tasks.serve.pacing import BatchKind, Pacing, PairEngine, findings, warm_up
from tests.calibration import SOURCES
from tests.unit.serve.conftest import HeldEngine

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
