"""A run while its stage works: its record on disk, its live metrics, its end; mlflow is not imported."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.locks import timing_lock
from tasks.tracking import RegisteredModel, outbox_folder, tracking_uri, upload_all
from tasks.tracking import __main__ as tracking_command
from tasks.tracking.upload import RUN_FILE, read
from tests.local_mlflow import FaultyClient, run_of, runs_of
from tests.served import until
from tests.unit.tracking.conftest import record

ROOT = Path(__file__).parents[3]
KILLED_WRITER = """
import os, signal, sys
from tasks.tracking import Recorder
run = Recorder("translation", "killed", {}, {})
run.log_metrics({"loss": 2.0}, step=1)
assert not {"mlflow", "torch", "transformers", "deepspeed"} & set(sys.modules)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_whose_writer_was_killed_ends_as_killed_and_imports_nothing_heavy(outbox: Path, mlflow: FaultyClient) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED_WRITER], cwd=ROOT, timeout=300)
    assert ended.returncode == -signal.SIGKILL
    (file,) = outbox.glob(f"*/{RUN_FILE}")
    with file.open("ab") as lines:
        lines.write(b'{"metrics": [["lo')
    assert upload_all(outbox, tracking_uri()) == (1, [])
    run = run_of(mlflow, "killed")
    assert (run.info.status, run.data.metrics) == ("KILLED", {"loss": 2.0})
    assert run.info.end_time >= run.info.start_time
    assert not list(outbox.iterdir())


def test_the_last_child_of_a_name_counts_and_texts_are_cut(outbox: Path) -> None:
    with record() as run:
        run.log_metrics({"p(accept)": 0.5, "none": None})
        for bleu in (1.0, 2.0):
            run.child("point", {"a=b": "c" * 9000}, {"d" * 10: "e" * 9000}, {"bleu": bleu})
    found = read(run.folder)
    assert [(name, value, step) for name, value, _, step in found["metrics"]] == [("p_accept_", 0.5, 0)]
    (child,) = found["children"].values()
    assert (child["tags"], child["params"]) == ({"a_b": "c" * 6000}, {"d" * 10: "e" * 6000})
    assert child["metrics"][0][:2] == ["bleu", 2.0]


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("x"), "FAILED"), (KeyboardInterrupt(), "KILLED"), (SystemExit(2), "FAILED"), (SystemExit(0), "FINISHED")],
)
def test_a_run_ends_like_its_work(outbox: Path, error: BaseException, status: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(error)), record() as run:
        raise error
    assert read(run.folder)["status"] == status
    (warning,) = capsys.readouterr().err.splitlines()
    assert "wait for MLflow: 1" in warning
    assert "python -m tasks.tracking" in warning


def test_only_a_live_run_is_sent_before_its_end(outbox: Path, mlflow: FaultyClient) -> None:
    threads = threading.active_count()
    with record("sweep", flush_seconds=300) as run:
        run.log_metrics({"points": 1.0})
        run.child("point", {}, {}, {"bleu": 30.0})
        assert (mlflow.requests, threading.active_count()) == ([], threads)
    assert {run.info.status for run in runs_of(mlflow)} == {"FINISHED"}


def test_a_live_run_shows_its_metrics_and_lost_ones_arrive_once_at_its_end(outbox: Path, mlflow: FaultyClient) -> None:
    lost = list[Any]()

    def lose_one(number: int, request: Any) -> Any:
        if mlflow.requests[number - 1] == "log_batch" and not lost:
            lost.append(request)
            raise ConnectionError("the server restarts")
        return request()

    with record("train", live=True, flush_seconds=300) as run:
        run.log_metrics({"loss": 4.0}, 0)
        run._opening.join()
        mlflow.fault = lose_one
        run.log_metrics({"loss": 3.0}, 1)
        run.log_metrics({"loss": 2.0}, 2)
        until("the second value", lambda: run_of(mlflow, "train").data.metrics == {"loss": 2.0})
        assert run_of(mlflow, "train").info.status == "RUNNING"
    ended = run_of(mlflow, "train")
    history = mlflow.client.get_metric_history(ended.info.run_id, "loss")
    assert (ended.info.status, sorted((one.step, one.value) for one in history)) == ("FINISHED", [(0, 4.0), (1, 3.0), (2, 2.0)])


def test_a_server_that_hangs_delays_nobody(outbox: Path, mlflow: FaultyClient, capsys: pytest.CaptureFixture[str]) -> None:
    released = threading.Event()
    mlflow.fault = lambda number, request: request() if released.wait(600) else None
    try:
        start = time.monotonic()
        with record("train", live=True, flush_seconds=0.3) as run:
            for step in range(300):
                run.log_metrics({"loss": 1.0}, step)
        assert time.monotonic() - start < 120
        assert "wait for MLflow: 1 (not sent within 0 s)" in capsys.readouterr().err
        assert len(read(run.folder)["metrics"]) == 300
        # Another process does not create the run while this one might.
        assert upload_all(outbox, tracking_uri()) == (0, [])
    finally:
        released.set()


def test_the_command_has_nothing_to_send_from_an_empty_outbox(tmp_path: Path) -> None:
    environment = {"DRAFTLINE_OUTBOX": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "tasks.tracking", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"sent": 0, "waiting": []}\n', "")


def test_the_command_sends_nothing_during_a_timing(outbox: Path, mlflow: FaultyClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tracking"])
    record(flush_seconds=0).close()
    command = threading.Thread(target=tracking_command.main)
    with timing_lock("cpu"):
        command.start()
        command.join(timeout=0.5)
        assert command.is_alive() and mlflow.requests == []
    command.join(timeout=300)
    assert [run.info.status for run in runs_of(mlflow)] == ["FINISHED"]


def test_the_environment_sets_outbox_and_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTLINE_OUTBOX", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    copy = tmp_path / ".dvc" / "tmp" / "exps" / "tmp1"
    copy.mkdir(parents=True)
    for folder in (tmp_path, copy):  # an experiment of DVC writes into the record of the repository
        monkeypatch.chdir(folder)
        assert outbox_folder().absolute() == tmp_path / ".cache" / "mlflow-outbox"
        assert tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("DRAFTLINE_OUTBOX", "/elsewhere")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert outbox_folder() == Path("/elsewhere")
    assert tracking_uri() == "http://127.0.0.1:5000"


def test_waiting_runs_share_the_files_of_a_pair_that_is_written_anew(outbox: Path, tmp_path: Path) -> None:
    """Files that were damaged in the waiting runs, by one name for all of them, are then right again."""
    for number in range(3):
        for file in outbox.glob("*/models/*/large/model.safetensors"):
            file.write_text("we", encoding="utf-8")
        folder = tmp_path / f"pair-{number}"
        (folder / "large").mkdir(parents=True)
        (folder / "large/model.safetensors").write_text("weights", encoding="utf-8")
        with record() as run:
            run.log_model(RegisteredModel("draftline-toy", str(folder), "", {}, {}, []))
    weights = list(outbox.glob("*/models/*/large/model.safetensors"))
    assert len(weights) == 3
    assert len({file.stat().st_ino for file in weights}) == 1
    assert weights[0].samefile(tmp_path / "pair-2/large/model.safetensors"), "a pair that is kept is not copied"
    assert weights[0].read_text(encoding="utf-8") == "weights"
