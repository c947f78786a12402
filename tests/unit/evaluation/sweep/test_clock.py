"""The clock of a sweep: who is timed beside whom, in how many starts, and what equal models say of it."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.rows import SweepRow, TimedRow
from tasks.evaluation.sweep.clock import Lap, Laps, PointTimer, Visit
from tasks.evaluation.sweep.grid import BASELINES, VANILLA, Drafter, SweepPoint
from tasks.evaluation.sweep.rows import RowWriter
from tasks.evaluation.sweep.run import SweepRunner, TaskSweep, expected
from tasks.evaluation.timing import Expected
from tests.sweeps import FEW
from tests.ticking import LIMIT, Clock, Price, TickingDecoder, evaluator_of, split_of, sweep_settings, ticking_pair, timer_of

ROUNDS = 3
COPY = SweepPoint("speculative", SpeculativeSettings(drafter="copy"))
DRAFTERS = [Drafter(arm, seed) for seed in (1, 2) for arm in ("unaligned", "aligned")]


class Watched:
    """Notes what each start times."""

    def __init__(self, timer: PointTimer) -> None:
        self.timer = timer
        self.starts: list[list[Sequence[Visit]]] = []

    @contextlib.contextmanager
    def start(self) -> Iterator[Laps]:
        self.starts.append([])

        def noted(visits: Sequence[Visit], *rest: Any) -> list[Lap | str]:
            self.starts[-1].append(visits)
            return self.timer.lap(visits, *rest)

        yield noted


def swept(
    folder: Path, pairs: dict[Drafter, Pair], clock: Clock, grid: Sequence[SweepPoint] = FEW, request: Request | None = None
) -> tuple[Watched, TaskSweep]:
    """A sweep of these drafters, of which every point is timed."""
    settings = sweep_settings(latency_rounds=ROUNDS, plan=False)
    starts, runners = Watched(timer_of(pairs, settings, clock)), {}
    split = split_of(pairs[DRAFTERS[0]], settings)
    for drafter, pair in pairs.items():
        path = folder / f"{drafter.arm}-{drafter.seed}" / "rows.jsonl"
        writer = RowWriter(evaluator_of(pair, settings, request), SweepRowFile(path, "work"), "toy", drafter.arm)
        runners[drafter] = SweepRunner(drafter, writer, folder / "cache")
    whole = TaskSweep(runners, dict.fromkeys(pairs, grid), starts.start)
    whole.validate(split)
    return starts, whole


def pairs_of(clock: Clock, slower: float = 1.0) -> dict[Drafter, Pair]:
    """A pair for each drafter; the small models of the unaligned arm take longer for equal work."""
    found = {drafter: ticking_pair(clock) for drafter in DRAFTERS}
    slow_down(found, slower)
    return found


def slow_down(pairs: dict[Drafter, Pair], factor: float) -> None:
    for drafter, pair in pairs.items():
        if drafter.arm == "unaligned":
            assert isinstance(pair.small, TickingDecoder)
            pair.small.price = Price(factor * pair.small.price.encode, factor * pair.small.price.step)


def swept_on_test(whole: TaskSweep) -> dict[Drafter, list[SweepRow]]:
    """The rows of what is chosen, measured on a test split with the texts of validation."""
    writer = whole.runners[DRAFTERS[0]].writer
    split = split_of(writer.evaluator.pair, writer.evaluator.sweep)
    split.name = "test"
    return whole.report({drafter: one.writer.rows.rows for drafter, one in whole.runners.items()}, split)


def test_all_drafters_are_timed_in_the_same_starts_and_the_small_models_beside_each_other(tmp_path: Path) -> None:
    clock, grid = Clock(), [*FEW[::2], COPY]
    starts, whole = swept(tmp_path, pairs_of(clock), clock, grid)
    assert len(starts.starts) == ROUNDS, "a process for each round"
    # What the large model does without a small one is the same for all of them.
    shared = {VANILLA, COPY, *(one for one in grid if one.method == "beam_large")}
    points = (*BASELINES, *grid)
    everything = {(drafter, point) for point in points for drafter in (DRAFTERS[:1] if point in shared else DRAFTERS)}
    copied = [row for one in whole.runners.values() for row in one.writer.rows.rows if row.settings == COPY.plain_settings]
    assert len(copied) == len(DRAFTERS) and all(isinstance(row, TimedRow) for row in copied)
    assert len({str(getattr(row, "rounds", None)) for row in copied}) == 1
    for laps in starts.starts:
        visits = [(visit.drafter, visit.point) for group in laps for visit in group]
        assert set(visits) == everything and len(visits) == len(everything)
        assert [(drafter, BASELINES[1]) for drafter in DRAFTERS] in [[(v.drafter, v.point) for v in group] for group in laps]
        mixed = [group for group in laps if len({visit.drafter.arm for visit in group}) == 2]
        assert len(mixed) > len(laps) / 2
    assert len({str(laps) for laps in starts.starts}) == ROUNDS, "each in an order of its own"
    found = whole.null_test()
    assert found is not None and found.finding == "equal" and found.ratio == pytest.approx(1.0, abs=1e-3)


def test_what_the_report_compares_on_test_is_timed_in_one_group(tmp_path: Path) -> None:
    clock = Clock()
    starts, whole = swept(tmp_path, pairs_of(clock), clock, FEW[::2])
    del starts.starts[:]
    rows = [row for own in swept_on_test(whole).values() for row in own]
    assert len(starts.starts) == ROUNDS
    for [group] in starts.starts:
        assert len(group) == len(rows) - (len(DRAFTERS) - 1) > 8, "one visit to the large model"
    assert len({tuple(row.rounds[0].vanilla_latency_ms) for row in rows}) == 1
    assert len({tuple(row.rounds[0].latency_ms) for row in rows if row.method == VANILLA.method}) == 1


def test_equal_models_that_come_out_unequal_are_timed_again_and_then_not_trusted(tmp_path: Path) -> None:
    clock = Clock()
    starts, whole = swept(tmp_path, pairs_of(clock, slower=1.2), clock, FEW[:1])
    assert len(starts.starts) == ROUNDS + 2
    rows = whole.runners[DRAFTERS[0]].writer.rows.rows
    assert {len(row.rounds or ()) for row in rows if isinstance(row, TimedRow)} == {ROUNDS + 2}
    found = whole.null_test()
    assert found is not None and found.finding == "unequal" and found.ratio == pytest.approx(1.2, abs=0.01)


def test_a_small_error_of_the_clock_is_tolerated_and_shown(tmp_path: Path) -> None:
    clock = Clock()
    starts, whole = swept(tmp_path, pairs_of(clock, slower=1.03), clock, FEW[:1])
    assert len(starts.starts) == ROUNDS
    found = whole.null_test()
    assert found is not None and found.finding == "equal" and 1 < found.interval[0] < found.ratio < 1.05


def test_no_null_test_compares_models_that_draw_from_a_nucleus(tmp_path: Path) -> None:
    clock, request = Clock(), Request(LIMIT, SamplingSettings(temperature=1.0, top_p=0.8))
    starts, whole = swept(tmp_path, pairs_of(clock, slower=1.2), clock, [], request)
    assert len(starts.starts) == ROUNDS and whole.null_test() is None, "a flat distribution takes longer"


def test_one_split_with_unequal_clocks_is_not_hidden_by_another(tmp_path: Path) -> None:
    clock = Clock()
    pairs = pairs_of(clock)
    _, whole = swept(tmp_path, pairs, clock, FEW[:1])
    slow_down(pairs, 1.2)
    swept_on_test(whole)
    assert [one.finding for one in whole.null_tests] == ["equal", "unequal"]
    found = whole.null_test()
    assert found is not None and found.split == "test" and found.ratio == pytest.approx(1.2, abs=0.01)


def test_a_point_that_fails_while_timed_leaves_those_beside_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, settings = Clock(), sweep_settings()
    pair = ticking_pair(clock)
    evaluator, split = evaluator_of(pair, settings, clock=clock), split_of(pair, settings)
    visits, whole = [], PointTimer._timed_call
    for point in (FEW[0], FEW[1]):
        outputs = evaluator.decoded(point, split)
        visits.append(Visit(Drafter("aligned", 1), point, Expected(outputs.how, dict(enumerate(outputs.tokens)))))

    def failing(self: PointTimer, visit: Visit, *rest: Any) -> Any:
        call = whole(self, visit, *rest)

        def run(batch: list[int]) -> Any:
            if visit.point == FEW[0] and batch == split.timed[-1:]:
                raise RuntimeError("out of memory")
            return call(batch)

        return run

    monkeypatch.setattr(PointTimer, "_timed_call", failing)
    first, second = evaluator.timer.lap(visits, expected(evaluator.vanilla(split), split), split, evaluator.request, "")
    assert first == "RuntimeError: out of memory"
    assert isinstance(second, Lap) and len(second.latency_ms) == len(split.timed)
