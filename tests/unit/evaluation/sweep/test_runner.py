"""A whole sweep of a toy pair on a simulated clock: which points get rows, and which are timed and why."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.method import Request, SamplingSettings
from tasks.evaluation.frontier import TradeOff as Measured
from tasks.evaluation.frontier import frontier
from tasks.evaluation.results.rows import Timing
from tasks.evaluation.settings import CHOICES
from tasks.evaluation.sweep import plan as costs_module
from tasks.evaluation.sweep.grid import BASELINES, SweepPoint
from tasks.evaluation.sweep.plan import Costs, slow_step_warning
from tests.sweeps import BEAMS, GRID, MEASURED, ORACLE, TIMES, Planned, Row, Sweep, by_name, in_file, name_of, named, plain
from tests.ticking import LIMIT, TOY_MARGINS, Clock, ticking_pair


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
        assert "time_ms" in row
        assert "same_as" not in row
    for row in untimed:
        assert not row.keys() & (TIMES | {"why", "time_ms"})
        assert row["how"] == "replayed"
        assert point_of(row) is None
        assert ("predicted" in row) == (name_of(row) not in named(ORACLE))  # only its outputs matter


def test_why_a_point_was_timed(planned: Planned) -> None:
    _, rows, _ = planned
    why = {name_of(row): row.get("why") for row in rows}
    assert [row["why"] for row in rows[:2]] == ["baseline"] * 2
    assert {why[name] for name in named(BEAMS)} == {"grid"}
    reasons = [row["why"] for row in rows if "why" in row]
    assert sorted({row["method"] for row in rows if row.get("why") == "anchor"}) == [
        *("bild", "sequence_cascade", "speculative", "token_cascade")
    ]
    assert reasons.count("anchor") == 4
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


def test_untimed_points_are_predicted_to_lie_off_the_frontier(planned: Planned) -> None:
    _, rows, _ = planned
    distinct = [row for row in rows if "same_as" not in row and name_of(row) not in named(ORACLE)]
    best = [point_of(row) or Measured(row["quality"]["bleu"], row["predicted"]["speedup"]) for row in distinct]
    assert all(one_like_it(best[index], rows) for index in frontier(best))


def test_predictions_are_exact_where_only_runs_take_time(planned: Planned) -> None:
    sweep, rows, _ = planned
    for row in rows:
        if "predicted" in row and "speedup" in row:
            assert row["predicted"]["speedup"] == pytest.approx(row["speedup"], rel=1e-6)
            assert row["predicted"]["latency_ms"] == pytest.approx(sum(row["latency_ms"]) / 4, rel=1e-3)
        if "time_ms" in row and row["method"] != "beam_large":
            assert row["time_ms"]["other"] == pytest.approx(0, abs=1e-6)
    assert sweep.runner.plan is not None and sweep.runner.plan.prediction_error is not None
    errors = sweep.runner.plan.prediction_error
    assert errors.sample is not None and errors.all is not None
    assert errors.sample.points == 2
    assert errors.all.worst == pytest.approx(0, abs=1e-6)


def test_the_plan_counts_its_points(planned: Planned) -> None:
    sweep, rows, _ = planned
    plan = sweep.runner.plan
    assert plan is not None and plan.replay_seconds is not None and plan.timing_seconds is not None
    assert plan.points == len(GRID)
    assert plan.replayed == len(GRID) - 1
    assert plan.distinct == len(GRID) - 1 - sum("same_as" in row for row in rows)
    assert plan.timed == sum("speedup" in row for row in rows) - len(BASELINES)
    assert plan.replay_seconds > 0
    assert plan.timing_seconds > 0


def test_chosen_points_are_replayed_and_timed_on_test_as_decoding_would_give_them(planned: Planned, tmp_path: Path) -> None:
    _, rows, reported = planned
    choices = {name_of(row) for row in chosen(rows)}
    assert choices
    assert by_name(reported).keys() == named(*BASELINES) | choices
    for row in reported:
        baseline = name_of(row) in named(*BASELINES)
        assert row["split"] == "test"
        assert (row["how"], row["why"]) == (("decoded", "baseline") if baseline else ("replayed", "chosen"))
        assert row.keys() >= TIMES
    decoding = Sweep(tmp_path, plan=False)
    whole = by_name(plain(decoding.runner.validate(GRID, decoding.test)))
    for row in reported:
        assert [row[part] for part in MEASURED] == [whole[name_of(row)][part] for part in MEASURED]


def test_every_row_is_in_the_file_once(planned: Planned) -> None:
    sweep, rows, reported = planned
    written = in_file(sweep.path)
    assert sorted(written, key=str) == sorted([*rows, *reported], key=str)


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


def test_timed_points_refine_the_predictions_of_the_rest(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One method takes 1.5 times as long as its runs; the others have no overhead."""
    sweep = Sweep(tmp_path)
    time = sweep.evaluator.time

    def slower(point: SweepPoint, *rest: Any) -> Timing:
        timing = time(point, *rest)
        return dataclasses.replace(timing, speedup=timing.speedup / 1.5) if point.method == "bild" else timing

    monkeypatch.setattr(sweep.evaluator, "time", slower)
    rows, before = by_name(sweep.validate()), by_name(planned[1])
    checked = [name for name, row in rows.items() if "predicted" in row and row.get("why") != "anchor"]
    assert {method for method, _ in checked} >= {"bild", "token_cascade"}
    for name in checked:
        truth = before[name]["predicted"]["speedup"] / (1.5 if name[0] == "bild" else 1)
        assert rows[name]["predicted"]["speedup"] == pytest.approx(truth, rel=0.25)  # an unfitted model is off by 0.5


def test_a_sampled_sweep_is_decoded_and_timed_whole(tmp_path: Path) -> None:
    grid = GRID[:2] + GRID[12:14]
    sweep = Sweep(tmp_path, request=Request(LIMIT, SamplingSettings(temperature=1.0)))
    rows = sweep.validate(grid)
    assert by_name(rows).keys() == named(*BASELINES, *grid)
    assert [row["why"] for row in rows[2:]] == ["grid"] * 4
    assert all(row.keys() >= TIMES and row["how"] == "decoded" for row in rows)
    assert sweep.runner.plan is not None
    assert sweep.runner.plan.replayed == 0


@pytest.mark.parametrize("sample", [0, 1, 100])
def test_the_sample_has_the_size_of_its_setting(tmp_path: Path, sample: int) -> None:
    rows = Sweep(tmp_path, sample=sample).validate(GRID[:12])
    drawn = sum(row.get("why") == "sample" for row in rows)
    left = sum("speedup" not in row and "same_as" not in row for row in rows)
    assert (drawn == sample and left > 0) if sample < 100 else (drawn > 1 and left == 0)


@pytest.mark.parametrize(("share", "warned"), [(0.49, True), (0.5, False), (None, False)])
def test_a_step_that_uses_less_than_half_of_the_machine_is_a_warning(
    share: float | None, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def shared(step_bytes: int, seconds: float) -> float | None:
        asked.append(seconds)
        return share

    monkeypatch.setattr(costs_module, "bandwidth_share", shared)
    costs = Costs(encode_small_ms=0.0, encode_large_ms=1.0, small_step_ms=0.1, verify_ms={1: 2.0})
    text = slow_step_warning(ticking_pair(Clock()).large, costs)
    assert asked == [0.002]
    assert ("49%" in text) == warned == bool(text)
