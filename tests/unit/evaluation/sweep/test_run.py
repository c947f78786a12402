"""A whole sweep of a toy pair on a simulated clock: rows, what is timed and why, interruptions, and batches."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import GREEDY_ONLY, decode
from tasks.errors import InputError
from tasks.evaluation.results.pair import BatchTiming, BatchTimings, VanillaBatch
from tasks.evaluation.results.rows import SweepRow
from tasks.evaluation.selection import TradeOff as Measured
from tasks.evaluation.selection import choose_rows, frontier
from tasks.evaluation.settings import CHOICES, SweepSettings
from tasks.evaluation.sweep import plan as costs_module
from tasks.evaluation.sweep.clock import Lap, Visit, batch_timing, points_by_batch
from tasks.evaluation.sweep.grid import BASELINES, VANILLA, SweepPoint
from tasks.evaluation.sweep.plan import measure_costs
from tasks.evaluation.sweep.run import expected
from tests.sweeps import BEAMS, FEW, GRID, MEASURED, ORACLE, TIMES, Planned, Row, Sweep, by_name, in_file, name_of, named, plain
from tests.ticking import ALIGNED, LIMIT, TOY_MARGINS, Clock, break_after, evaluator_of, split_of, sweep_settings, ticking_pair
from tests.toys import toy_sources


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """A finished sweep; tests only read it."""
    sweep = Sweep(tmp_path_factory.mktemp("planned"))
    rows = sweep.validate()
    return sweep, rows, sweep.report()


def point_of(row: Row) -> Measured | None:
    return Measured(row["quality"]["bleu"], row["speedup"]) if "speedup" in row else None


def chosen(rows: list[Row]) -> list[Row]:
    """The fastest timed row of each method at each tolerance."""
    found = []
    for method in {row["method"] for row in rows[2:]}:
        own = [row for row in rows if row["method"] == method and "speedup" in row]
        for choice in CHOICES:
            good = [row for row in own if row["difference_bounds"]["lower"] > -TOY_MARGINS.of(choice)]
            found += sorted(good, key=lambda row: (-row["speedup"], -row["quality"]["bleu"]))[:1]
    return found


def one_like_it(wanted: Measured, rows: list[Row]) -> bool:
    """Whether a point was timed with the speed of `wanted` to 5 %, and its quality to 0.1 point or a fifth of its loss."""
    timed = [point for row in rows if (point := point_of(row)) is not None]
    least = wanted.quality - max(0.1, (timed[0].quality - wanted.quality) / 5) - 1e-8
    return any(one.quality >= least and one.speedup >= wanted.speedup / 1.05 - 1e-9 for one in timed)


def test_every_point_has_a_row_and_some_have_no_time(planned: Planned) -> None:
    _, rows, _ = planned
    assert by_name(rows).keys() == named(*BASELINES, *GRID)
    timed = [row for row in rows if "speedup" in row]
    untimed = [row for row in rows if "speedup" not in row]
    assert untimed
    for row in timed:
        assert row.keys() >= TIMES
        assert len(row["latency_ms"]) == len(row["vanilla_latency_ms"]) == 4
        assert ("predicted" in row) == (row["how"] == "replayed")
        assert "same_as" not in row
    for row in untimed:
        assert not row.keys() & (TIMES | {"why"})
        assert row["how"] == "replayed"
        assert point_of(row) is None
        assert ("predicted" in row) == (name_of(row) not in named(ORACLE))  # only its outputs matter


def test_why_a_point_was_timed(planned: Planned) -> None:
    _, rows, _ = planned
    why = {name_of(row): row.get("why") for row in rows}
    assert [row["why"] for row in rows[:2]] == ["baseline"] * 2
    assert {why[name] for name in named(BEAMS)} == {"grid"}
    reasons = [row["why"] for row in rows if "why" in row]
    anchors = [row["method"] for row in rows if row.get("why") == "anchor"]
    assert sorted(anchors) == ["bild", "sequence_cascade", "speculative", "token_cascade"]
    assert reasons.count("sample") == 2
    assert {"frontier", "choice"} & set(reasons)


def test_points_that_behave_equally_are_timed_once(planned: Planned) -> None:
    _, rows, _ = planned
    known = by_name(rows)
    duplicates = [row for row in rows if "same_as" in row]
    longest, longer = (next(iter(named(point))) for point in (GRID[17], GRID[16]))
    assert known[longest]["same_as"] == known[longer]["settings"]
    for row in duplicates:
        first = known[row["method"], str(row["same_as"])]
        assert [first[part] for part in MEASURED] == [row[part] for part in MEASURED]
        assert "same_as" not in first
        if "speedup" not in first:
            assert row["predicted"] == first["predicted"]


def test_the_plan_counts_its_points(planned: Planned) -> None:
    sweep, rows, _ = planned
    plan = sweep.plan
    assert plan is not None and plan.replay_seconds is not None and plan.timing_seconds is not None
    assert plan.points == len(GRID)
    assert plan.replayed == len(GRID) - 1
    assert plan.distinct == len(GRID) - 1 - sum("same_as" in row for row in rows)
    assert plan.timed == sum("speedup" in row for row in rows) - len(BASELINES)
    assert plan.replay_seconds > 0
    assert plan.timing_seconds > 0


def test_chosen_points_are_decoded_and_timed_on_test(planned: Planned, tmp_path: Path) -> None:
    _, rows, reported = planned
    choices = {name_of(row) for row in chosen(rows)}
    assert choices
    assert by_name(reported).keys() == named(*BASELINES) | choices
    for row in reported:
        baseline = name_of(row) in named(*BASELINES)
        assert (row["split"], row["how"], row["why"]) == ("test", "decoded", "baseline" if baseline else "chosen")
        assert row.keys() >= TIMES
    decoding = Sweep(tmp_path, plan=False)
    whole = by_name(decoding.validate(GRID, decoding.test))
    for row in reported:
        assert [row[part] for part in MEASURED] == [whole[name_of(row)][part] for part in MEASURED]


def test_without_a_plan_every_point_is_timed_with_equal_outcomes(planned: Planned, tmp_path: Path) -> None:
    whole = by_name(Sweep(tmp_path, plan=False).validate())
    rows = by_name(planned[1])
    assert whole.keys() == rows.keys()
    for name, row in whole.items():
        assert row["how"] == "decoded"
        assert row["why"] == ("baseline" if name in named(*BASELINES) else "grid")
        assert row.keys() >= TIMES
        assert "predicted" not in row
        assert [row[part] for part in MEASURED] == [rows[name][part] for part in MEASURED]
    everything = [point for name, row in whole.items() if (point := point_of(row)) is not None and name not in named(ORACLE)]
    assert all(one_like_it(everything[index], planned[1]) for index in frontier(everything))


def test_where_tokens_are_drawn_points_are_decoded_and_planned(tmp_path: Path) -> None:
    sampling = SamplingSettings(temperature=1.0)
    sampled: dict[str, Any] = {"request": Request(LIMIT, sampling, 5), "sampling": sampling, "samples": 2}
    grid = [point for point in GRID if point.method not in GREEDY_ONLY]
    planning = Sweep(tmp_path / "planned", **sampled)
    planned = by_name(planning.validate(grid))
    whole = by_name(Sweep(tmp_path / "whole", plan=False, **sampled).validate(grid))
    assert planned.keys() == whole.keys() and planning.plan is not None
    untimed = [name for name, row in planned.items() if "speedup" not in row]
    assert untimed and planning.plan.timed == len(grid) - len(untimed)
    for name, row in planned.items():
        assert row["how"] == "decoded"
        assert [row[part] for part in MEASURED] == [whole[name][part] for part in MEASURED]
        assert ("predicted" in row) == (name not in named(*BASELINES, ORACLE))


@pytest.mark.parametrize(("share", "warned"), [(0.49, True), (0.5, False)])
def test_a_step_below_half_the_machine_is_warned_of(share: float | None, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def shared(step_bytes: int, seconds: float) -> float | None:
        asked.append(seconds)
        return share

    monkeypatch.setattr(costs_module, "bandwidth_share", shared)
    clock = Clock()
    costs = measure_costs(ticking_pair(clock), toy_sources(3), Request(LIMIT), clock)
    assert asked == pytest.approx([costs.verify_ms[1] / 1000])
    assert ("49%" in costs.baseline_warning) == warned == bool(costs.baseline_warning)


class Killed(BaseException):
    """Simulates the end of the process."""


def test_a_killed_sweep_resumes(planned: Planned, tmp_path: Path) -> None:
    written_rows: list[SweepRow] = []

    def kill(row: SweepRow) -> None:
        written_rows.append(row)
        if len(written_rows) == 9:
            raise Killed

    killed = Sweep(tmp_path, on_row=kill)
    with pytest.raises(Killed):
        killed.validate()
        killed.report()
    written = killed.path.read_bytes()
    assert len(in_file(killed.path)) == 9
    sweep = Sweep(tmp_path)
    rows = sweep.validate()
    reported = sweep.report()
    assert sweep.path.read_bytes().startswith(written)
    assert len(in_file(sweep.path)) == len(rows) + len(reported)
    for found, wanted in ((rows, planned[1]), (reported, planned[2])):
        timed = by_name(found)
        assert {name: row.get("why") for name, row in timed.items()} == {name_of(row): row.get("why") for row in wanted}


def test_a_larger_grid_keeps_measured_rows(tmp_path: Path) -> None:
    small = Sweep(tmp_path)
    before = by_name(small.validate(GRID[:9]))
    rows = by_name(Sweep(tmp_path).validate())
    assert rows.keys() == named(*BASELINES, *GRID)
    for name, row in before.items():
        if "speedup" in row:
            bounds = rows[name].pop("difference_bounds"), row.pop("difference_bounds")
            assert rows[name] == row
            # What the bounds are corrected for has changed; the models alone are never chosen.
            assert bounds[0]["compared"] > bounds[1]["compared"] or not bounds[1]["compared"] or "vanilla" in row["method"]


def test_broken_logits_are_a_row_with_an_error(tmp_path: Path) -> None:
    """The large model breaks on a text of the small one; points that never reach that text are measured."""
    sweep = Sweep(tmp_path)
    small = sweep.evaluator.decoded(BASELINES[1], sweep.validation)
    large = sweep.evaluator.decoded(VANILLA, sweep.validation)
    example = next(number for number in range(8) if small.tokens[number][:3] != large.tokens[number][:3])
    break_after(sweep.pair, "large", (0, *small.tokens[example][:3]))
    rows = sweep.validate()
    assert by_name(rows).keys() == named(*BASELINES, *GRID)
    failed = [row for row in rows if "error" in row]
    assert 0 < len(failed) < len(GRID)
    for row in failed:
        assert row["error"].startswith("BrokenLogitsError: the large model gave NaN")
        assert not row.keys() & (TIMES | {"quality", "predicted", "why"})


@pytest.mark.parametrize("plan", [True, False])
def test_without_the_large_model_alone_nothing_is_swept(tmp_path: Path, plan: bool) -> None:
    sweep = Sweep(tmp_path, plan=plan)
    large, whole = sweep.evaluator.decoded(VANILLA, sweep.validation), sweep._whole(FEW)
    break_after(sweep.pair, "large", (0, *large.tokens[0][:1]))
    batch = sweep.evaluator.sweep.quality_batch
    error = rf"the large model cannot run alone on validation: BrokenLogitsError: .*, set sweep.quality_batch below {batch}"
    with pytest.raises(InputError, match=error):
        whole.validate(sweep.validation)


def test_without_the_small_model_alone_the_others_are_planned(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    small, whole = sweep.evaluator.decoded(BASELINES[1], sweep.validation), sweep._whole([GRID[-3], BEAMS])
    break_after(sweep.pair, "small", (0, *small.tokens[0][:1]))
    rows = by_name(plain(whole.validate(sweep.validation)[ALIGNED]))
    errors = {name: "error" in row for name, row in rows.items()}
    assert errors == dict.fromkeys(named(VANILLA, BEAMS), False) | dict.fromkeys(named(BASELINES[1], GRID[-3]), True)
    assert whole.plans[ALIGNED] is not None


def visits_of(sweep: Sweep, monkeypatch: pytest.MonkeyPatch, most: float = math.inf) -> list[tuple[str, str]]:
    """The points in the order of their rounds; the process is killed before it has begun more than `most`."""
    lap, visits = sweep.evaluator.timer.lap, list[tuple[str, str]]()

    def seen(group: Sequence[Visit], *rest: Any) -> list[Lap | str]:
        if len(visits) + len(group) > most:
            raise Killed
        visits.extend(name for visit in group for name in named(visit.point))
        return lap(group, *rest)

    monkeypatch.setattr(sweep.evaluator.timer, "lap", seen)
    return visits


def test_a_point_is_visited_once_a_round_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the points that fell behind in the first one, which are reported nevertheless."""
    sweep, reported = Sweep(tmp_path, latency_rounds=3), list[str]()
    sweep.writer.on_row = lambda row: reported.append(str(row.settings))
    visits = visits_of(sweep, monkeypatch)
    rows = sweep.validate(FEW)
    timed = {name_of(row): len(row["rounds"]) for row in rows if "speedup" in row}
    assert {name: visits.count(name) for name in set(visits)} == timed and set(timed.values()) == {1, 3}
    whole = [name for name, rounds in timed.items() if rounds == 3]
    assert {*named(*BASELINES)} < {*whole}
    second, third = visits[-2 * len(whole) : -len(whole)], visits[-len(whole) :]
    assert sorted(second) == sorted(third) == sorted(whole)
    assert second != third  # each in an order of its own
    assert sorted(in_file(sweep.path), key=str) == sorted(rows, key=str)
    assert sorted(reported) == sorted(str(row["settings"]) for row in rows)


def test_a_killed_sweep_goes_on_with_its_finished_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Sweep(tmp_path / "whole", latency_rounds=3)
    wanted = visits_of(whole, monkeypatch)
    undisturbed = by_name(whole.validate(FEW))
    killed = Sweep(tmp_path / "killed", latency_rounds=3)
    before = visits_of(killed, monkeypatch, 0.7 * len(wanted))
    with pytest.raises(Killed):
        killed.validate(FEW)
    kept = {name_of(row): row["rounds"] for row in in_file(killed.path) if "rounds" in row}
    assert sum(map(len, kept.values())) == len(before) > 0.5 * len(wanted)
    again = Sweep(tmp_path / "killed", latency_rounds=3)
    after = visits_of(again, monkeypatch)
    rows = by_name(again.validate(FEW))
    assert len(before) + len(after) == len(wanted)
    for name, rounds in kept.items():
        assert rows[name]["rounds"][: len(rounds)] == rounds
        assert len(rows[name]["rounds"]) == len(undisturbed[name]["rounds"])


POINTS = [SweepPoint("bild", BildSettings(fallback_threshold=0.2)), SweepPoint("speculative", SpeculativeSettings())]


class Batches:
    """A pair on a simulated clock, and its batches of a split."""

    def __init__(self, **settings: object) -> None:
        self.clock = Clock()
        self.pair = ticking_pair(self.clock)
        self.sweep = sweep_settings(**{"batch_sizes": (1, 2, 8), "batch_examples": 8, **settings})
        self.split, self.request = split_of(self.pair, self.sweep, "test"), Request(LIMIT)
        self.evaluator = evaluator_of(self.pair, self.sweep, clock=self.clock)
        self.vanilla = expected(self.evaluator.vanilla(self.split))

    def measure(self, points: list[SweepPoint]) -> BatchTimings:
        return self.evaluator.timer.batches({ALIGNED: points}, self.vanilla, self.split, self.request)[ALIGNED]

    def seconds(self, point: SweepPoint, size: int) -> float:
        """What the toy models take for the split in batches of that size, in the order of the timer."""
        count = len(self.split.examples)
        order = random.Random(f"{self.sweep.seed} batches test").sample(range(count), count)
        begun = self.clock()
        for first in range(0, len(order), size):
            sources = [self.split.sources[example] for example in order[first : first + size]]
            decode(point.method, point.settings, self.pair, sources, self.request)
        return self.clock() - begun


def test_each_point_is_compared_with_vanilla_at_its_own_batch_size() -> None:
    batches = Batches()
    timings = batches.measure(POINTS)
    assert timings.error is None and timings.sizes == [1, 2, 8] and timings.examples == 8
    vanilla = {size: batches.seconds(VANILLA, size) for size in timings.sizes}
    assert vanilla[8] < vanilla[1]
    for alone in timings.vanilla:
        assert alone.throughput == pytest.approx(vanilla[1] / vanilla[alone.batch_size])
    assert [[one.batch_size for one in point] for point in timings.by_point()] == [[1, 2, 8]] * 2
    for point, own in zip(POINTS, timings.by_point(), strict=True):
        for one in own:
            took = batches.seconds(point, one.batch_size)
            assert (one.method, one.settings) == (point.method, point.plain_settings)
            assert one.rounds == pytest.approx([vanilla[one.batch_size] / took] * 3)
            assert one.speedup == pytest.approx(one.rounds[0])


def test_the_speedup_at_a_batch_size_is_the_median_of_its_rounds() -> None:
    point = POINTS[0]
    timing = batch_timing(point, 2, [[2, 4], [3, 3], [4, 2]], [[1, 4], [4, 2], [2, 1]])
    assert timing.rounds == pytest.approx([6 / 5, 6 / 6, 6 / 3])
    # A ratio of the medians of single batches would be 6 / 4.
    assert timing.speedup == pytest.approx(6 / 5)


def test_batches_larger_than_the_split_are_left_out() -> None:
    timings = Batches(batch_sizes=(1, 4, 16), batch_examples=64).measure(POINTS[:1])
    assert timings.sizes == [1, 4] and timings.examples == 8


def test_other_tokens_than_those_known_leave_an_error() -> None:
    batches = Batches()
    changed = {example: (*tokens[:-1], 5) for example, tokens in batches.vanilla.tokens.items()}
    batches.vanilla = batches.vanilla._replace(tokens=changed)
    timings = batches.measure(POINTS)
    assert not timings.points and not timings.vanilla
    assert timings.error is not None and timings.error.startswith("TimedTokensError: ")
    assert "changed the tokens of test" in timings.error


def test_the_fastest_choices_and_the_fastest_with_vanillas_output_are_timed(planned: Planned) -> None:
    sweep, _, _ = planned
    rows, margins = sweep._validated, sweep.evaluator.sweep.margins
    chosen = {key: rows[index] for key, index in choose_rows(rows, margins).items() if index is not None}
    points = points_by_batch(rows, GRID, margins)
    assert 0 < len(points) <= 3 and len(set(points)) == len(points)
    by_name = {(row.method, str(row.settings)): row for row in rows if row.split == "validation"}
    own = [by_name[point.method, str(point.plain_settings)] for point in points]
    for choice in ("no_loss", "one_point"):
        best = max(getattr(row, "speedup", 0.0) for (_, wanted), row in chosen.items() if wanted == choice)
        assert best in [getattr(row, "speedup", None) for row in own]
    assert "speculative" in [point.method for point in points]
    assert points_by_batch([], GRID, margins) == []


def made(*speeds: tuple[int, list[float]]) -> BatchTimings:
    vanilla = [VanillaBatch(batch_size=size, throughput=1.0) for size, _ in speeds]
    points = [BatchTiming(method="bild", settings={}, batch_size=size, speedup=own[0], rounds=own) for size, own in speeds]
    return BatchTimings(split="test", examples=8, vanilla=vanilla, points=points)


def test_drafting_pays_up_to_the_last_size_at_which_every_round_was_faster() -> None:
    assert made((1, [1.5, 1.4]), (2, [0.9, 0.9]), (4, [1.2, 1.1]), (8, [1.1, 0.99])).pays_up_to == 4
    assert made((1, [1.5]), (2, [1.1])).pays_up_to == 2
    assert made((1, [0.9]), (2, [1.0])).pays_up_to is None


@pytest.mark.parametrize("sizes", [(2, 4), (1, 4, 2), (1, 1, 2), (0, 1)])
def test_batch_sizes_ascend_from_one(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"batch_sizes is .*must ascend from 1"):
        SweepSettings(batch_sizes=sizes)
    assert SweepSettings(batch_sizes=()).batch_sizes == ()


@pytest.mark.parametrize("values", [{"samples": 2}, {"drafter_sampling": SamplingSettings(temperature=0.5)}])
def test_what_is_of_drawn_tokens_needs_some(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="temperature is 0, which draws nothing"):
        SweepSettings(**values)
    SweepSettings(**values, sampling=SamplingSettings(temperature=1.0))
    SweepSettings(**values, temperatures=(0.5,))
