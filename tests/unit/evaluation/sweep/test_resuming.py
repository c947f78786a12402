"""Sweeps that are interrupted and resumed, that grow, or whose models break."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import Rows, Step
from tasks.evaluation.results.rows import SweepRow, Timing
from tasks.evaluation.sweep.grid import BASELINES, VANILLA, SweepPoint
from tasks.evaluation.sweep.replay import Outputs
from tests.sweeps import BEAMS, GRID, MEASURED, TIMES, Planned, Sweep, by_name, in_file, name_of, named
from tests.ticking import Price


class Killed(BaseException):
    """Simulates the end of the process."""


def forbid_timing(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def time(*_: Any) -> Timing:
        raise AssertionError("timed again")

    monkeypatch.setattr(sweep.evaluator, "time", time)


def test_a_finished_sweep_measures_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Sweep(tmp_path)
    rows = first.validate()
    rows += first.report()
    written = first.path.read_bytes()
    again = Sweep(tmp_path)
    again.large().price = Price(50.0, 3.0, 2.0)  # another machine speed, the same plan
    forbid_timing(again, monkeypatch)
    found = again.validate()
    found += again.report()
    assert by_name(found[: len(GRID) + 2]) == by_name(rows[: len(GRID) + 2])
    assert sorted(found, key=str) == sorted(rows, key=str)
    assert first.path.read_bytes() == written


@pytest.mark.parametrize("count", [2, 9, 23])
def test_a_killed_sweep_resumes(planned: Planned, tmp_path: Path, count: int) -> None:
    written_rows: list[SweepRow] = []

    def kill(row: SweepRow) -> None:
        written_rows.append(row)
        if len(written_rows) == count:
            raise Killed

    killed = Sweep(tmp_path, on_row=kill)
    with pytest.raises(Killed):
        killed.validate()
        killed.report()
    written = killed.path.read_bytes()
    assert len(in_file(killed.path)) == count
    sweep = Sweep(tmp_path)
    rows = sweep.validate()
    reported = sweep.report()
    assert sweep.path.read_bytes().startswith(written)
    assert len(in_file(sweep.path)) == len(rows) + len(reported)
    for found, wanted in ((rows, planned[1]), (reported, planned[2])):
        timed = by_name(found)
        assert {name: row.get("why") for name, row in timed.items()} == {name_of(row): row.get("why") for row in wanted}


def kill_at(sweep: Sweep, run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the process at this run of the large model."""
    forward = sweep.large().forward

    def counted(tokens: Rows) -> Step:
        if sweep.large().ran == run:
            raise Killed
        return forward(tokens)

    monkeypatch.setattr(sweep.large(), "forward", counted)


@pytest.mark.parametrize("share", [0.2, 0.95])
def test_a_kill_at_any_moment_loses_no_row_and_changes_none(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    whole = Sweep(tmp_path / "whole")
    begun = whole.large().ran
    whole.validate()
    killed = Sweep(tmp_path / "killed")
    kill_at(killed, begun + int(share * (whole.large().ran - begun)), monkeypatch)
    with pytest.raises(Killed):
        killed.validate()
    written = killed.path.read_bytes()
    sweep = Sweep(tmp_path / "killed")
    rows = by_name(sweep.validate())
    assert sweep.path.read_bytes().startswith(written)
    for name, row in by_name(planned[1]).items():
        assert {part: rows[name].get(part) for part in (*MEASURED, "how", "why", "same_as")} == {
            part: row.get(part) for part in (*MEASURED, "how", "why", "same_as")
        }


def test_rows_of_another_fingerprint_are_dropped(tmp_path: Path) -> None:
    Sweep(tmp_path).validate(GRID[:4])
    other = Sweep(tmp_path, work="other work")
    assert in_file(other.path) == []
    rows = other.validate(GRID[:4])
    assert {row["fingerprint"] for row in in_file(other.path)} == {"other work"}
    assert len(rows) == 6


def test_a_larger_grid_keeps_measured_rows(tmp_path: Path) -> None:
    small = Sweep(tmp_path)
    before = by_name(small.validate(GRID[:9]))
    written = small.path.read_bytes()
    large = Sweep(tmp_path)
    rows = by_name(large.validate())
    assert large.path.read_bytes().startswith(written)
    assert rows.keys() == named(*BASELINES, *GRID)
    for name, row in before.items():
        if "speedup" in row:
            bounds = rows[name].pop("difference_bounds"), row.pop("difference_bounds")
            assert rows[name] == row
            # What the bounds are corrected for has changed; the models alone are never chosen.
            assert bounds[0]["compared"] > bounds[1]["compared"] or not bounds[1]["compared"] or "vanilla" in row["method"]


def test_a_point_that_breaks_while_timed_fails_alone(planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = next(row for row in planned[1] if row.get("why") == "frontier")
    sweep = Sweep(tmp_path)
    time = sweep.evaluator.time

    def breaking(point: SweepPoint, *rest: Any) -> Timing:
        if named(point) == {name_of(victim)}:
            raise RuntimeError("out of memory")
        return time(point, *rest)

    monkeypatch.setattr(sweep.evaluator, "time", breaking)
    rows = by_name(sweep.validate())
    assert rows.keys() == named(*BASELINES, *GRID)
    failed = [row for row in rows.values() if "error" in row]
    assert [name_of(row) for row in failed] == [name_of(victim)]
    assert failed[0]["error"] == "RuntimeError: out of memory"
    assert not failed[0].keys() & (TIMES | {"quality", "predicted"})


def break_after(sweep: Sweep, side: str, prefix: tuple[int, ...]) -> None:
    model = getattr(sweep.pair, side)
    sound = model.predict

    def predict(source: tuple[int, ...], text: tuple[int, ...]) -> torch.Tensor:
        logits: torch.Tensor = sound(source, text)
        return torch.full_like(logits, math.nan) if text == prefix else logits

    model.predict = predict


@pytest.mark.parametrize("plan", [True, False])
def test_broken_logits_are_a_row_with_an_error(tmp_path: Path, plan: bool) -> None:
    """The large model breaks on a text of the small one; points that never reach that text are measured."""
    sweep = Sweep(tmp_path, plan=plan)
    small = sweep.evaluator.decoded(BASELINES[1], sweep.validation)
    large = sweep.evaluator.decoded(VANILLA, sweep.validation)
    example = next(number for number in range(8) if small.tokens[number][:3] != large.tokens[number][:3])
    break_after(sweep, "large", (0, *small.tokens[example][:3]))
    rows = sweep.validate()
    assert by_name(rows).keys() == named(*BASELINES, *GRID)
    failed = [row for row in rows if "error" in row]
    assert 0 < len(failed) < len(GRID)
    for row in failed:
        assert row["error"].startswith("BrokenLogitsError: the large model gave NaN")
        assert not row.keys() & (TIMES | {"quality", "predicted", "why"})
    broken = {name_of(row) for row in failed}
    for index, point in enumerate(GRID):
        batch_of_one = dataclasses.replace(sweep.evaluator.sweep, quality_batch=1)
        sweep.evaluator.sweep = batch_of_one
        outcome: Outputs | None
        try:
            outcome = sweep.evaluator.decoded(point, sweep.validation)
        except RuntimeError:
            outcome = None
        assert (outcome is None) == (next(iter(named(point))) in broken), index


def test_without_a_baseline_nothing_is_planned(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    small = sweep.evaluator.decoded(BASELINES[1], sweep.validation)
    break_after(sweep, "small", (0, *small.tokens[0][:1]))
    rows = by_name(sweep.validate([GRID[-3], BEAMS]))
    errors = {name: "error" in row for name, row in rows.items()}
    assert errors == dict.fromkeys(named(VANILLA, BEAMS), False) | dict.fromkeys(named(BASELINES[1], GRID[-3]), True)
    assert sweep.runner.plan is None


def visits_of(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The points in the order of their rounds."""
    time, visits = sweep.evaluator.time, list[tuple[str, str]]()

    def seen(point: SweepPoint, *rest: Any) -> Timing:
        visits.extend(named(point))
        return time(point, *rest)

    monkeypatch.setattr(sweep.evaluator, "time", seen)
    return visits


def test_a_point_is_visited_once_a_round_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(tmp_path, latency_rounds=3)
    visits = visits_of(sweep, monkeypatch)
    rows = sweep.validate()
    timed = [row for row in rows if "speedup" in row]
    assert {name: visits.count(name) for name in set(visits)} == {name_of(row): 3 for row in timed}
    for row in timed:
        assert len(row["rounds"]) == 3
    second, third = visits[-2 * len(timed) : -len(timed)], visits[-len(timed) :]
    assert sorted(second) == sorted(third) == sorted(name_of(row) for row in timed)
    assert second != third  # each in an order of its own
    sweep.runner._writer.rows.compact()
    assert sorted(in_file(sweep.path), key=str) == sorted(rows, key=str)


@pytest.mark.parametrize("share", [0.3, 0.7, 0.9])
def test_a_killed_sweep_goes_on_with_its_finished_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    whole = Sweep(tmp_path / "whole", latency_rounds=3)
    wanted = visits_of(whole, monkeypatch)
    whole.validate()
    killed = Sweep(tmp_path / "killed", latency_rounds=3)
    before, stop = visits_of(killed, monkeypatch), int(share * len(wanted))
    time = killed.evaluator.time

    def kill(*about: Any) -> Timing:
        if len(before) == stop:
            raise Killed
        return time(*about)

    monkeypatch.setattr(killed.evaluator, "time", kill)
    with pytest.raises(Killed):
        killed.validate()
    kept = {name_of(row): row["rounds"] for row in in_file(killed.path) if "rounds" in row}
    assert sum(map(len, kept.values())) == stop
    again = Sweep(tmp_path / "killed", latency_rounds=3)
    after = visits_of(again, monkeypatch)
    rows = by_name(again.validate())
    assert len(before) + len(after) == len(wanted)
    for name, rounds in kept.items():
        assert rows[name]["rounds"][: len(rounds)] == rounds
        assert len(rows[name]["rounds"]) == 3
