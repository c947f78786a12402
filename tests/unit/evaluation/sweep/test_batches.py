"""Speed by batch size on a simulated clock, and which points are timed so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.evaluation.results.pair import BatchTiming, BatchTimings, VanillaBatch
from tasks.evaluation.selection import choose_rows
from tasks.evaluation.settings import SweepSettings
from tasks.evaluation.sweep.grid import VANILLA, SweepPoint
from tasks.evaluation.sweep.point import PointEvaluator
from tasks.evaluation.sweep.replay import Outputs, Split
from tasks.evaluation.sweep.run import BatchTimer, batch_timing, points_by_batch
from tests.sweeps import GRID, Planned
from tests.ticking import Clock, evaluator_of, split_of, sweep_settings, ticking_pair

POINTS = [
    SweepPoint("bild", BildSettings(fallback_threshold=0.2)),
    SweepPoint("speculative", SpeculativeSettings(draft_length=3)),
]


def ready(**settings: object) -> tuple[Clock, PointEvaluator, Split]:
    clock = Clock()
    sweep, pair = sweep_settings(**{"batch_sizes": (1, 2, 8), "batch_examples": 8, **settings}), ticking_pair(clock)
    return clock, evaluator_of(pair, clock, sweep), split_of(pair, sweep, "test")


def seconds(clock: Clock, evaluator: PointEvaluator, split: Split, point: SweepPoint, size: int) -> float:
    """What the toy models take for the split in batches of that size, in the order of the timer."""
    order = BatchTimer(evaluator, split)._examples
    begun = clock()
    for first in range(0, len(order), size):
        sources = [split.sources[example] for example in order[first : first + size]]
        decode(point.method, point.settings, evaluator.pair, sources, evaluator.request)
    return clock() - begun


def test_each_point_is_compared_with_vanilla_at_its_own_batch_size() -> None:
    clock, evaluator, split = ready()
    timings = BatchTimer(evaluator, split).measure(POINTS)
    assert timings.error is None and timings.sizes == [1, 2, 8] and timings.examples == 8
    vanilla = {size: seconds(clock, evaluator, split, VANILLA, size) for size in timings.sizes}
    assert vanilla[8] < vanilla[1]
    for alone in timings.vanilla:
        assert alone.throughput == pytest.approx(vanilla[1] / vanilla[alone.batch_size])
    assert [[one.batch_size for one in point] for point in timings.by_point()] == [[1, 2, 8]] * 2
    for point, own in zip(POINTS, timings.by_point(), strict=True):
        for one in own:
            took = seconds(clock, evaluator, split, point, one.batch_size)
            assert (one.method, one.settings) == (point.method, point.row_settings)
            assert one.rounds == pytest.approx([vanilla[one.batch_size] / took] * 3)
            assert one.speedup == pytest.approx(one.rounds[0])


def test_the_speedup_at_a_batch_size_is_the_median_of_its_rounds() -> None:
    point = POINTS[0]
    timing = batch_timing(point, 2, {(VANILLA, 2): [[2, 4], [3, 3], [4, 2]], (point, 2): [[1, 4], [4, 2], [2, 1]]})
    assert timing.rounds == pytest.approx([6 / 5, 6 / 6, 6 / 3])
    # A ratio of the medians of single batches would be 6 / 4.
    assert timing.speedup == pytest.approx(6 / 5)


def test_batches_larger_than_the_split_are_left_out() -> None:
    _, evaluator, split = ready(batch_sizes=(1, 4, 16), batch_examples=64)
    timings = BatchTimer(evaluator, split).measure(POINTS[:1])
    assert timings.sizes == [1, 4] and timings.examples == 8


def test_other_tokens_than_those_known_leave_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, evaluator, split = ready()
    known = evaluator.vanilla(split)
    changed: Outputs = dataclasses.replace(known, tokens=[(*tokens[:-1], 5) for tokens in known.tokens])
    monkeypatch.setattr(evaluator, "vanilla", lambda _: changed)
    timings = BatchTimer(evaluator, split).measure(POINTS)
    assert not timings.points and not timings.vanilla
    assert timings.error is not None and timings.error.startswith("TimedTokensError: ")
    assert "changed the tokens of test" in timings.error


def test_a_repeated_sweep_takes_over_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, evaluator, split = ready()
    first = BatchTimer(evaluator, split).load_or_measure(POINTS, tmp_path)
    [file] = tmp_path.iterdir()
    monkeypatch.setattr(BatchTimer, "measure", lambda *_: BatchTimings(split="again", examples=0))
    assert BatchTimer(evaluator, split).load_or_measure(POINTS, tmp_path) == first
    assert BatchTimer(evaluator, split).load_or_measure(POINTS[:1], tmp_path).split == "again"
    file.write_text("{", encoding="utf-8")
    assert BatchTimer(evaluator, split).load_or_measure(POINTS, tmp_path).split == "again"


def test_the_fastest_choices_and_the_fastest_with_vanillas_output_are_timed(planned: Planned) -> None:
    sweep, _, _ = planned
    rows, margins = sweep._validated, sweep.evaluator.sweep.margins
    chosen = {key: rows[index] for key, index in choose_rows(rows, margins).items() if index is not None}
    points = points_by_batch(rows, GRID, margins)
    assert 0 < len(points) <= 3 and len(set(points)) == len(points)
    by_name = {(row.method, str(row.settings)): row for row in rows if row.split == "validation"}
    own = [by_name[point.method, str(point.row_settings)] for point in points]
    for choice in ("no_loss", "one_point"):
        best = max(getattr(row, "speedup", 0.0) for (_, wanted), row in chosen.items() if wanted == choice)
        assert best in [getattr(row, "speedup", None) for row in own]
    assert "speculative" in [point.method for point in points]
    assert points_by_batch([], GRID, margins) == []


def made(*speeds: tuple[int, list[float]]) -> BatchTimings:
    vanilla = [VanillaBatch(batch_size=size, tokens_per_second=1.0, throughput=1.0) for size, _ in speeds]
    points = [BatchTiming(method="bild", settings={}, batch_size=size, speedup=own[0], rounds=own) for size, own in speeds]
    return BatchTimings(split="test", examples=8, vanilla=vanilla, points=points)


def test_drafting_stops_paying_after_the_last_size_at_which_every_round_was_faster() -> None:
    assert made((1, [1.5, 1.4]), (2, [0.9, 0.9]), (4, [1.2, 1.1]), (8, [1.1, 0.99])).stops_paying() == 8
    assert made((1, [1.5]), (2, [1.1])).stops_paying() is None
    assert made((1, [0.9]), (2, [1.0])).stops_paying() == 1


@pytest.mark.parametrize("sizes", [(2, 4), (1, 4, 2), (1, 1, 2), (0, 1)])
def test_batch_sizes_ascend_from_one(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"batch_sizes is .*must ascend from 1"):
        SweepSettings(batch_sizes=sizes)
    assert SweepSettings(batch_sizes=()).batch_sizes == ()
