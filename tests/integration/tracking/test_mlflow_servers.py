"""Runs on MLflow's own server, which loses answers, is killed or away, and the SQLite database that stages create."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import Recorder, outbox_folder, tracking_uri, upload_all
from tasks.tracking.__main__ import main
from tasks.tracking.upload import KEY_TAG, connect
from tests.local_mlflow import empty_database
from tests.mlflow_server import PATIENCE, runs_of

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")

ROOT = Path(__file__).parents[3]
STAGES_AT_ONCE = """
import os, shutil, sys
import mlflow, mlflow.store.tracking.sqlalchemy_store
from tasks.tracking import Recorder
empty, *names = sys.argv[1:]
client = mlflow.MlflowClient
def client_of_tables(uri):  # making them takes MLflow seconds in each process
    if uri.endswith("/finished.db"):
        shutil.copyfile(empty, uri.removeprefix("sqlite:///"))
    return client(uri)
mlflow.MlflowClient = client_of_tables
children = []
for name in names:
    child = os.fork()
    if not child:
        Recorder("translation", name, {}, {}, flush_seconds=600).close()
        os._exit(0)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children))
"""


class Server:
    """MLflow's own server in a thread. `loses` names requests that it does and does not answer."""

    def __init__(self, folder: Path) -> None:
        from mlflow.server import app
        from werkzeug.serving import make_server

        self._app = app
        self._lock = threading.Lock()
        self.loses: Callable[[str, int], bool] = lambda path, number: False
        self.counts: dict[str, int] = {}
        self._server = make_server("127.0.0.1", 0, self, threaded=True)
        self.uri = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"].partition("/mlflow/")[2]
        with self._lock:
            self.counts[path] = self.counts.get(path, 0) + 1
            lost = self.loses(path, self.counts[path])
        answer: Iterable[bytes] = self._app(environ, start_response)
        if not lost:
            return answer
        b"".join(answer)
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return []

    def stop(self) -> None:
        import mlflow

        mlflow.set_tracking_uri(None)  # the app has set its own address for the whole process
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copyfile(empty_database(), folder / "server.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{folder / 'server.db'}")
        patch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", "mlflow-artifacts:/")
        patch.setenv("_MLFLOW_SERVER_ARTIFACT_DESTINATION", str(folder / "artifacts"))
        patch.setenv("_MLFLOW_SERVER_SERVE_ARTIFACTS", "true")
        running = Server(folder)
        yield running
        running.stop()


def test_points_reach_a_server_that_loses_answers(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is lost after the work is what a read time-out of a slow server is for its client."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("DRAFTLINE_OUTBOX", str(tmp_path))
    # MLflow's client would repeat `create` by itself and leave a second run in the state RUNNING.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    monkeypatch.setattr("tasks.tracking.upload._PAUSE_SECONDS", 0.01)
    lossy = {"runs/create": {1, 5, 20, 21}, "runs/log-batch": {3, 15}, "runs/update": {2, 10}, "runs/search": {2}}
    server.loses = lambda path, number: number in lossy.get(path, ())
    page = tmp_path / "report.html"
    page.write_text("<h1>", encoding="utf-8")
    with Recorder("translation", "sweep", {}, {}, flush_seconds=PATIENCE) as sweep:
        for point in range(22):
            sweep.child(f"point {point}", {}, {"window": point}, {"bleu": point})
        sweep.log_artifact(page)
    for _ in range(3):  # three lost answers in a row leave the rest for later
        upload_all(tmp_path, server.uri)
    client = connect(server.uri)
    runs = runs_of(client)
    assert sorted(runs) == sorted(["sweep", *(f"point {point}" for point in range(22))])
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert len({run.data.tags[KEY_TAG] for run in runs.values()}) == 23
    assert {run.data.tags.get("mlflow.parentRunId") for run in runs.values()} == {None, runs["sweep"].info.run_id}
    assert [file.path for file in client.list_artifacts(runs["sweep"].info.run_id)] == ["report.html"]
    # Nothing was created twice: what the lost answers had created was found.
    assert server.counts["runs/create"] == 23
    assert not list(tmp_path.glob("*-*"))


def test_concurrent_stages_create_one_database(tmp_path: Path) -> None:
    names = ["one", "two"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DRAFTLINE_"))}
    command = [sys.executable, "-c", STAGES_AT_ONCE, str(empty_database()), *names]
    environment["PYTHONPATH"] = str(ROOT)
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=PATIENCE, check=True)
    assert sorted(runs_of(connect(f"sqlite:///{tmp_path / 'mlflow.db'}"))) == names
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cache", "mlflow.db"]


def test_the_command_creates_the_database_and_sends_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAFTLINE_OUTBOX", str(tmp_path / "outbox"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}")
    monkeypatch.setattr(sys, "argv", ["python -m tasks.tracking"])
    Recorder("translation", "train", {}, {}, flush_seconds=0).close()
    capfd.readouterr()
    assert main() == 0
    assert capfd.readouterr() == ("runs sent to MLflow: 1; still waiting: 0\n", "")
    assert list(runs_of(connect(tracking_uri()))) == ["train"]


def test_an_absent_server_is_noticed_fast_and_the_runs_are_sent_later(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:planted@127.0.0.1:{closed.getsockname()[1]}?token=planted")
        start = time.monotonic()
        Recorder("translation", "train", {}, {}, flush_seconds=PATIENCE).close()
    assert time.monotonic() - start < PATIENCE / 4
    (warning,) = capsys.readouterr().err.splitlines()
    assert "wait for MLflow: 1" in warning and "planted" not in warning
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"planted" in file.read_bytes()]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert upload_all(outbox_folder(), tracking_uri()) == (1, [])
    assert list(runs_of(mlflow)) == ["train"]


def test_a_store_that_mlflow_does_not_open_costs_one_warning(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    with Recorder("translation", "train", {}, {}, live=True, flush_seconds=PATIENCE) as run:
        run.log_metrics({"loss": 1.0})
    (warning,) = capsys.readouterr().err.splitlines()
    assert "wait for MLflow: 1 (The filesystem tracking backend" in warning
