"""Sending beside the work: it stands still while something is timed, and a server that hangs holds nobody up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.tracking import Recorder, follower
from tasks.tracking.follower import Gate, GatedSink
from tasks.tracking.sink import Away, Metric
from tests.sinks import MemorySink

PATIENCE = 20.0


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> MemorySink:
    """Stands in MLflow's place, ready at once; the follower looks for news every 10 ms."""
    memory = MemorySink(4)
    monkeypatch.setattr(follower, "make_ready", lambda uri: None)
    monkeypatch.setattr(follower, "MlflowSink", memory.connect)
    monkeypatch.setattr(follower, "_PAUSE_SECONDS", 0.01)
    return memory


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


def points(record: Recorder, names: range) -> None:
    for name in names:
        record.child(f"point {name}", {"kind": "point"}, {"window": name}, {"bleu": name})


def test_points_are_sent_while_the_sweep_goes_on_but_none_while_it_times(tmp_path: Path, sink: MemorySink) -> None:
    record = Recorder("translation", "sweep", spool=tmp_path, uri="uri", live=True, flush_seconds=0)
    points(record, range(10))
    wait_for(lambda: len(sink.runs) == 11)
    with record.quiet():
        calls = sink.calls
        points(record, range(10, 20))
        time.sleep(0.2)
        assert sink.calls == calls
    wait_for(lambda: len(sink.runs) == 21)
    record.close()


def test_what_is_on_its_way_when_the_timing_begins_arrives_once(tmp_path: Path, sink: MemorySink) -> None:
    sink.seconds = 0.01
    record = Recorder("translation", "sweep", spool=tmp_path, uri="uri", live=True, flush_seconds=0)
    points(record, range(60))
    wait_for(lambda: len(sink.runs) > 5)
    with record.quiet():
        assert sink.inside == 0
        begun = len(sink.runs)
        assert begun < 61
    wait_for(lambda: len(sink.runs) == 61)
    record.close()
    assert len({run.key for run in sink.runs.values()}) == 61


def test_nothing_starts_while_the_first_points_are_timed(tmp_path: Path, sink: MemorySink) -> None:
    record = Recorder("translation", "sweep", spool=tmp_path, uri="uri", live=True, flush_seconds=0)
    with record.quiet():
        points(record, range(3))
        assert sink.connections == 0
    points(record, range(3, 4))
    wait_for(lambda: len(sink.runs) == 5)
    record.close()


def test_an_import_under_way_is_waited_for(tmp_path: Path, sink: MemorySink, monkeypatch: pytest.MonkeyPatch) -> None:
    importing, finish = threading.Event(), threading.Event()

    def slow_import(uri: str) -> None:
        importing.set()
        finish.wait(PATIENCE)

    monkeypatch.setattr(follower, "make_ready", slow_import)
    record = Recorder("translation", "sweep", spool=tmp_path, uri="uri", live=True, flush_seconds=0)
    points(record, range(1))
    assert importing.wait(PATIENCE)
    threading.Timer(0.2, finish.set).start()
    with record.quiet():
        assert finish.is_set()
        assert sink.calls == 0
    record.close()


def test_a_server_that_hangs_holds_nobody_up(tmp_path: Path, sink: MemorySink, capsys: pytest.CaptureFixture[str]) -> None:
    sink.seconds = 2 * PATIENCE
    record = Recorder("translation", "sweep", spool=tmp_path, uri="uri", live=True, flush_seconds=0.3)
    points(record, range(1))
    wait_for(lambda: sink.inside == 1)
    start = time.monotonic()
    points(record, range(1, 300))
    assert time.monotonic() - start < 2
    with record.quiet():
        waited = time.monotonic() - start
    assert waited < 4
    start = time.monotonic()
    record.close()
    assert time.monotonic() - start < 2
    assert "1 run waits for MLflow" in capsys.readouterr().err


def test_a_shut_gate_lets_nothing_begin_and_waits_for_what_is_inside_only_so_long() -> None:
    gate, memory = Gate(), MemorySink()
    sink = GatedSink(memory, gate)
    run = sink.create("translation", "key", "name", {}, 0)
    with gate.passing():
        start = time.monotonic()
        with gate.shut(0.05):
            assert 0.04 < time.monotonic() - start < 2
            with pytest.raises(Away):
                sink.log(run, [Metric("bleu", 1.0, 0, 0)], {}, {})
    sink.log(run, [Metric("bleu", 1.0, 0, 0)], {}, {})
    assert memory.calls == 2
