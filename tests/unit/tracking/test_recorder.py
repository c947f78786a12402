"""A run while its stage works: its record on disk, its live metrics, its end; mlflow is not imported."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.locks import timing_lock
from tasks.tracking import __main__ as tracking_command
from tasks.tracking import outbox_folder, tracking_uri, upload_all
from tasks.tracking.outbox import RUN_FILE, read
from tests.memory_mlflow import MemoryMlflow, StoreError
from tests.unit.tracking.conftest import SERVER, lose_answer, record

ROOT = Path(__file__).parents[3]
KILLED_WRITER = """
import os, signal, sys
from tasks.tracking import Recorder
run = Recorder("translation", "killed", {}, {})
run.log_metrics({"loss": 2.0}, step=1)
assert "mlflow" not in sys.modules
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_whose_writer_was_killed_ends_as_killed(outbox: Path, mlflow: MemoryMlflow) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED_WRITER], cwd=ROOT, timeout=300, check=False)
    assert ended.returncode == -signal.SIGKILL
    (file,) = outbox.glob(f"*/{RUN_FILE}")
    with file.open("ab") as lines:
        lines.write(b'{"metrics": [["lo')
    assert upload_all(outbox, SERVER) == (1, [])
    run = mlflow.by_name("killed")
    assert (run.info.status, {metric.value for metric in run.history}) == ("KILLED", {2.0})
    assert run.info.end_time >= run.info.start_time
    assert not list(outbox.iterdir())


def test_the_last_value_of_a_metric_at_a_step_and_the_last_child_of_a_name_count(outbox: Path) -> None:
    with record() as run:
        run.log_metrics({"rate": 1.0, "p(accept)": 0.5})
        run.log_metrics({"rate": 2.0})
        for bleu in (1.0, 2.0):
            run.child("point", {"a=b": "c" * 9000}, {"d" * 10: "e" * 9000}, {"bleu": bleu})
    found = read(run.folder)
    assert [metric[:3] for metric in found.metrics] == [("rate", 2.0, 0), ("p_accept_", 0.5, 0)]
    (child,) = found.children
    assert (child.tags, child.params) == ({"a_b": "c" * 6000}, {"d" * 10: "e" * 6000})
    assert list(child.metrics[0])[:2] == ["bleu", 2.0]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(2), "FAILED"),
        (SystemExit(0), "FINISHED"),
    ],
)
def test_the_status_of_a_run_is_how_its_work_ended(
    outbox: Path, error: BaseException, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)), record() as run:
        raise error
    assert read(run.folder).status == status
    (warning,) = capsys.readouterr().err.splitlines()
    assert "wait for MLflow: 1" in warning
    assert "python -m tasks.tracking" in warning


def test_only_a_live_run_is_sent_before_its_end(outbox: Path, mlflow: MemoryMlflow) -> None:
    threads = threading.active_count()
    with record("sweep", flush_seconds=300) as run:
        run.log_metrics({"points": 1.0})
        run.child("point", {}, {}, {"bleu": 30.0})
        assert (mlflow.connections, threading.active_count()) == (0, threads)
    assert {run.info.status for run in mlflow.active()} == {"FINISHED"}


def test_a_live_run_shows_its_metrics_and_lost_ones_arrive_once_at_its_end(outbox: Path, mlflow: MemoryMlflow) -> None:
    def fault(number: int, work: Callable[[], None]) -> None:
        if mlflow.requests[number - 1] != "log later":
            work()
        elif mlflow.requests.count("log later") == 1:
            raise StoreError("the server restarts")
        else:
            lose_answer(work)

    with record("train", live=True, flush_seconds=300) as run:
        run.log_metrics({"loss": 4.0}, 0)
        run._opening.join()
        mlflow.fault = fault
        for step in (1, 2):
            run.log_metrics({"loss": 4.0 - step}, step)
        live = mlflow.by_name("train")
        assert (live.info.status, sorted(metric.step for metric in live.history)) == ("RUNNING", [0, 2])
    (train,) = mlflow.runs.values()
    assert (train.info.status, sorted(metric.step for metric in train.history)) == ("FINISHED", [0, 1, 2])
    assert sum(kind == "log" for kind in mlflow.requests) == 2


def test_a_server_that_hangs_delays_nobody(outbox: Path, mlflow: MemoryMlflow, capsys: pytest.CaptureFixture[str]) -> None:
    released = threading.Event()
    mlflow.fault = lambda number, work: work() if released.wait(600) else None
    try:
        start = time.monotonic()
        with record("train", live=True, flush_seconds=0.3) as run:
            for step in range(300):
                run.log_metrics({"loss": 1.0}, step)
        assert time.monotonic() - start < 120
        assert "wait for MLflow: 1 (not sent within 0 s)" in capsys.readouterr().err
        assert len(read(run.folder).metrics) == 300
        # Another process does not create the run while this one might.
        assert upload_all(outbox, SERVER) == (0, [])
    finally:
        released.set()


def test_the_command_has_nothing_to_send_from_an_empty_outbox(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tasks.tracking"],
        cwd=ROOT,
        env={"DRAFTLINE_OUTBOX": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs sent to MLflow: 0; still waiting: 0\n", "")


def test_the_command_sends_nothing_while_something_is_timed(
    outbox: Path, mlflow: MemoryMlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["tracking"])
    record(flush_seconds=0).close()
    command = threading.Thread(target=tracking_command.main)
    with timing_lock("cpu"):
        command.start()
        command.join(timeout=0.5)
        assert command.is_alive() and mlflow.connections == 0
    command.join(timeout=300)
    assert [run.info.status for run in mlflow.active()] == ["FINISHED"]


def test_the_environment_sets_outbox_and_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTLINE_OUTBOX", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert outbox_folder(tmp_path) == tmp_path / ".cache" / "mlflow-outbox"
    assert tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("DRAFTLINE_OUTBOX", "/elsewhere")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", SERVER)
    assert outbox_folder(tmp_path) == Path("/elsewhere")
    assert tracking_uri(tmp_path) == SERVER


def test_recording_imports_no_heavy_library() -> None:
    code = (
        "import sys, tasks.tracking, tasks.lineage; tasks.lineage.lineage();"
        " sys.exit(bool({'mlflow', 'torch', 'transformers', 'deepspeed'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=300, check=False).returncode == 0
