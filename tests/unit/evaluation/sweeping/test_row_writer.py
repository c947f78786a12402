"""From points to rows: appended once, found again, told of, and a failure costs its own row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.settings import BildSettings, SpeculativeSettings
from tasks.evaluation.frontier import point_of
from tasks.evaluation.rows import Row, RowFile, read_rows
from tasks.evaluation.sweeping.costs import Costs
from tasks.evaluation.sweeping.points import VANILLA, Outputs, Split, SweepPoint
from tasks.evaluation.sweeping.row_writer import RowWriter
from tests.ticking import LARGE, SMALL, Clock, evaluator_of, split_of, sweep_settings, ticking_pair

BILD = SweepPoint("bild", BildSettings(fallback_threshold=0.4, rollback_threshold=float("inf")))
SPECULATIVE = SweepPoint("speculative", SpeculativeSettings(draft_length=3))
MEASURED = {"latency_ms", "vanilla_latency_ms", "speedup", "speedup_interval", "shown"}
JUDGED = {"how", "quality", "quality_interval", "quality_difference_interval", "signature", "counts"}
NAMED = {"task", "drafter", "split", "method", "settings", "lossless", "metric", "examples", "sampling", "fingerprint"}


class Told:
    """Keeps what a finisher tells: rows, and when it asked for quiet."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.quiets = 0
        self.quiet_now = False

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        self.quiets += 1
        self.quiet_now = True
        yield
        self.quiet_now = False


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


@pytest.fixture
def writer(path: Path, told: Told) -> RowWriter:
    clock, sweep = Clock(), sweep_settings()
    evaluator = evaluator_of(ticking_pair(clock), clock, sweep)
    labels = {"task": "toy", "drafter": "aligned"}
    return RowWriter(evaluator, RowFile(path, "this work"), labels, told.rows.append, told.quiet)


@pytest.fixture
def split(writer: RowWriter) -> Split:
    return split_of(writer.evaluator.pair, writer.evaluator.sweep)


def known(writer: RowWriter, point: SweepPoint, split: Split) -> tuple[Outputs, Row]:
    """The outputs of a point, as if it had been replayed, and what a row says of them."""
    outputs = writer.evaluator.decoded(point, split)
    outputs.how = "replayed"
    return outputs, writer.evaluator.assessed(outputs, split)


def refuse(monkeypatch: pytest.MonkeyPatch, writer: RowWriter, error: BaseException) -> None:
    """Makes timing raise."""

    def timed(*_: Any) -> Row:
        raise error

    monkeypatch.setattr(writer.evaluator, "timed", timed)


def test_a_timed_row_is_whole_and_in_the_file(writer: RowWriter, split: Split, path: Path, told: Told) -> None:
    row = writer.timed(BILD, split, "grid")
    assert row.keys() == NAMED | JUDGED | MEASURED | {"why"}
    assert (row["task"], row["drafter"], row["why"], row["how"]) == ("toy", "aligned", "grid", "decoded")
    assert row["settings"]["rollback_threshold"] == "inf"
    assert read_rows(path) == told.rows == [row]
    writer.costs = Costs(SMALL.encode, LARGE.encode, SMALL.step, {1: LARGE.step})
    assert writer.timed(SPECULATIVE, split, "grid").keys() - row.keys() == {"time_ms"}


def test_what_is_known_is_not_decoded_again(writer: RowWriter, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, assessed = known(writer, BILD, split)
    monkeypatch.setattr(writer.evaluator, "decoded", None)
    row = writer.timed(BILD, split, "frontier", (outputs, {**assessed, "predicted": {"latency_ms": 9.0, "speedup": 2.0}}))
    assert (row["how"], row["why"], row["predicted"]["speedup"]) == ("replayed", "frontier", 2.0)
    assert row["quality"] == assessed["quality"]


def test_a_row_that_is_there_is_not_measured_again(
    writer: RowWriter, split: Split, path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = writer.timed(BILD, split, "frontier")
    refuse(monkeypatch, writer, AssertionError("timed again"))
    assert writer.timed(BILD, split, "sample") == row
    assert writer.untimed(BILD, split, known(writer, BILD, split)[1]) == row
    assert read_rows(path) == [row]
    assert told.rows == [row] * 3
    with pytest.raises(AssertionError, match="timed again"):  # another split is another row
        writer.timed(BILD, split_of(writer.evaluator.pair, writer.evaluator.sweep, "test"), "chosen")


def test_an_untimed_row_is_no_measurement_and_may_be_timed_later(writer: RowWriter, split: Split, path: Path) -> None:
    outputs, assessed = known(writer, BILD, split)
    untimed = writer.untimed(BILD, split, {**assessed, "predicted": {"latency_ms": 9.0, "speedup": 2.0}})
    assert untimed.keys() == NAMED | JUDGED | {"predicted"}
    assert point_of(untimed) is None
    assert writer.untimed(BILD, split, assessed) == untimed
    timed = writer.timed(BILD, split, "frontier", (outputs, assessed))
    assert point_of(timed) is not None
    assert writer.timed(BILD, split, "frontier") == timed
    assert read_rows(path) == [untimed, timed]


def test_what_breaks_while_it_is_timed_costs_its_own_row(
    writer: RowWriter, split: Split, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        refuse(broken, writer, RuntimeError("out of memory"))
        row = writer.timed(BILD, split, "grid")
    assert row.keys() == NAMED | {"error"}
    assert row["error"] == "RuntimeError: out of memory"
    assert point_of(row) is None
    again = writer.timed(BILD, split, "grid")  # it may work the next time
    assert "speedup" in again
    assert read_rows(path) == [row, again]


def test_what_is_no_fault_of_a_method_ends_the_sweep(
    writer: RowWriter, split: Split, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, writer, OSError("the disk is full"))
    with pytest.raises(OSError, match="disk"):
        writer.timed(BILD, split, "grid")
    assert read_rows(path) == []


def test_a_model_that_breaks_while_it_decodes(writer: RowWriter, split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Outputs:
        raise RuntimeError("NaN")

    monkeypatch.setattr(writer.evaluator, "decoded", broken)
    assert writer.timed(BILD, split, "grid")["error"] == "RuntimeError: NaN"
    assert writer.timed(VANILLA, split, "baseline")["error"] == "RuntimeError: NaN"


def watch(monkeypatch: pytest.MonkeyPatch, writer: RowWriter, name: str, seen: Callable[[SweepPoint], object]) -> None:
    """Tells `seen` the point before the bench's own function of that name is run."""
    run = getattr(writer.evaluator, name)

    def watched(point: SweepPoint, *rest: Any) -> Any:
        seen(point)
        return run(point, *rest)

    monkeypatch.setattr(writer.evaluator, name, watched)


def test_it_is_quiet_while_something_is_timed_and_no_longer(
    writer: RowWriter, split: Split, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []
    watch(monkeypatch, writer, "timed", lambda point: seen.append(("timed", told.quiet_now)))
    watch(monkeypatch, writer, "decoded", lambda point: seen.append(("decoded", told.quiet_now)))
    writer.timed(BILD, split, "grid")
    assert set(seen) == {("timed", True), ("decoded", False)}
    writer.timed(BILD, split, "grid")
    writer.untimed(SPECULATIVE, split, {})
    writer.failed(VANILLA, split, "broken")
    assert (told.quiets, told.quiet_now) == (1, False)


def test_vanilla_is_decoded_once_for_its_own_row_and_as_what_others_are_compared_with(
    writer: RowWriter, split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[SweepPoint] = []
    watch(monkeypatch, writer, "decoded", asked.append)
    writer.timed(VANILLA, split, "baseline")
    writer.timed(BILD, split, "grid")
    assert asked == [VANILLA, BILD]
