"""The writer of rows: appended once, found again, reported, and a failure costs its own row alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.rows import FailedRow, MeasuredRow, Outcome, Prediction, SweepRow, TimedRow, Timing, read_rows
from tasks.evaluation.sweep.grid import SweepPoint
from tasks.evaluation.sweep.plan import Costs
from tasks.evaluation.sweep.replay import Outputs, Split
from tasks.evaluation.sweep.rows import RowWriter
from tests.ticking import LARGE, SMALL, Clock, evaluator_of, split_of, sweep_settings, ticking_pair

BILD = SweepPoint("bild", BildSettings(fallback_threshold=0.4, rollback_threshold=float("inf")))
SPECULATIVE = SweepPoint("speculative", SpeculativeSettings(draft_length=3))
PREDICTION = Prediction(latency_ms=9.0, speedup=2.0)


@pytest.fixture
def reported() -> list[SweepRow]:
    """The rows that the writer reports."""
    return []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


@pytest.fixture
def writer(path: Path, reported: list[SweepRow]) -> RowWriter:
    clock, sweep = Clock(), sweep_settings()
    evaluator = evaluator_of(ticking_pair(clock), clock, sweep)
    return RowWriter(evaluator, SweepRowFile(path, "this work"), "toy", "aligned", reported.append)


@pytest.fixture
def split(writer: RowWriter) -> Split:
    return split_of(writer.evaluator.pair, writer.evaluator.sweep)


def replayed(writer: RowWriter, point: SweepPoint, split: Split) -> tuple[Outputs, Outcome]:
    """The outputs of a point, as if it had been replayed, and their outcome."""
    outputs = writer.evaluator.decoded(point, split)
    outputs.how = "replayed"
    return outputs, writer.evaluator.assess(outputs, split)


def in_file(path: Path) -> list[SweepRow]:
    return read_rows(path, "run the sweep again")


def refuse(monkeypatch: pytest.MonkeyPatch, writer: RowWriter, error: BaseException) -> None:
    """Makes timing raise."""

    def time(*_: Any) -> Timing:
        raise error

    monkeypatch.setattr(writer.evaluator, "time", time)


def test_a_timed_row_is_whole_and_in_the_file(writer: RowWriter, split: Split, path: Path, reported: list[SweepRow]) -> None:
    row = writer.write_timed(BILD, split, "grid")
    assert isinstance(row, TimedRow)
    assert (row.task, row.arm, row.why, row.how, row.fingerprint) == ("toy", "aligned", "grid", "decoded", "this work")
    assert row.settings["rollback_threshold"] == "inf"
    assert row.shown and row.speedup_interval and row.signature
    assert row.time_ms is None and row.predicted is None and row.timed_mismatches is None
    assert in_file(path) == reported == [row]
    writer.costs = Costs(SMALL.encode, LARGE.encode, SMALL.step, {1: LARGE.step})
    other = writer.write_timed(SPECULATIVE, split, "grid")
    assert isinstance(other, TimedRow)
    assert other.time_ms is not None


def test_a_replayed_point_is_not_decoded_again(writer: RowWriter, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    known = replayed(writer, BILD, split)
    monkeypatch.setattr(writer.evaluator, "decoded", None)
    row = writer.write_timed(BILD, split, "frontier", known, PREDICTION)
    assert isinstance(row, TimedRow)
    assert (row.how, row.why, row.predicted) == ("replayed", "frontier", PREDICTION)
    assert row.quality == known[1].quality


def test_a_row_in_the_file_is_not_measured_again(
    writer: RowWriter, split: Split, path: Path, reported: list[SweepRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = writer.write_timed(BILD, split, "frontier")
    refuse(monkeypatch, writer, AssertionError("timed again"))
    assert writer.write_timed(BILD, split, "sample") == row
    assert writer.write_untimed(BILD, split, replayed(writer, BILD, split)[1]) == row
    assert in_file(path) == [row]
    assert reported == [row] * 3
    with pytest.raises(AssertionError, match="timed again"):  # another split is another row
        writer.write_timed(BILD, split_of(writer.evaluator.pair, writer.evaluator.sweep, "test"), "chosen")


def test_an_untimed_row_may_be_timed_later(writer: RowWriter, split: Split, path: Path) -> None:
    outputs, outcome = replayed(writer, BILD, split)
    untimed = writer.write_untimed(BILD, split, outcome, PREDICTION)
    assert isinstance(untimed, MeasuredRow) and not isinstance(untimed, TimedRow)
    assert (untimed.why, untimed.predicted, untimed.same_as) == (None, PREDICTION, None)
    assert writer.write_untimed(BILD, split, outcome) == untimed
    changed = writer.write_untimed(BILD, split, outcome, Prediction(latency_ms=8.0, speedup=2.0), {"max_draft": 3})
    timed = writer.write_timed(BILD, split, "frontier", (outputs, outcome))
    assert isinstance(timed, TimedRow)
    assert writer.write_timed(BILD, split, "frontier") == timed
    assert in_file(path) == [untimed, changed, timed]


def test_a_failure_while_timing_costs_its_own_row(
    writer: RowWriter, split: Split, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        refuse(broken, writer, RuntimeError("out of memory"))
        row = writer.write_timed(BILD, split, "grid")
    assert isinstance(row, FailedRow)
    assert row.error == "RuntimeError: out of memory"
    again = writer.write_timed(BILD, split, "grid")  # it may work the next time
    assert isinstance(again, TimedRow)
    assert in_file(path) == [row, again]


def test_an_error_that_is_not_the_methods_ends_the_sweep(
    writer: RowWriter, split: Split, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, writer, OSError("the disk is full"))
    with pytest.raises(OSError, match="disk"):
        writer.write_timed(BILD, split, "grid")
    assert in_file(path) == []
