"""Runs in a real MLflow: SQLite databases, and MLflow's own server in a thread, which can lose an answer after the work."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import DataSet, Recorder, outbox_folder, tracking_uri, upload_all
from tasks.tracking.__main__ import main
from tasks.tracking.bulk import insert_runs
from tasks.tracking.client import connect
from tasks.tracking.outbox import RUN_FILE, Run
from tasks.tracking.upload import KEY_TAG, Upload
from tests.mlflow_server import server_process

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0
"""Seconds that a loaded machine may take."""
STAGES_AT_ONCE = """
import os, sys
import mlflow.tracking
from tasks.tracking import Recorder
names = sys.argv[1:]
children = []
for name in names:
    child = os.fork()
    if not child:
        Recorder("translation", name, {}, {}, flush_seconds=600).close()
        os._exit(0)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs, to copy: making one takes seconds."""
    database = tmp_path_factory.mktemp("database") / "mlflow.db"
    connect(f"sqlite:///{database}")
    return database


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path) -> Any:
    """The client of a database of the test's own, which is where runs go by default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("DRAFTLINE_OUTBOX", raising=False)
    monkeypatch.setattr("tasks.tracking.upload._PAUSE_SECONDS", 0.01)
    shutil.copyfile(empty_database, "mlflow.db")
    return connect(tracking_uri())


def runs_of(mlflow: Any, experiment: str = "translation") -> dict[str, Any]:
    """Return the runs by name; fail if two have the same name."""
    found = mlflow.search_runs([mlflow.get_experiment_by_name(experiment).experiment_id], max_results=1000)
    runs = {run.info.run_name: run for run in found}
    assert len(runs) == len(found)
    return runs


def record_a_task(folder: Path) -> None:
    """A training run and a sweep, as the stages leave them."""
    figure = folder / "pareto.svg"
    figure.write_text("<svg/>", encoding="utf-8")
    with Recorder("translation", "train large", {"kind": "training"}, {}, flush_seconds=PATIENCE) as train:
        for step in range(5):
            train.log_metrics({"loss": 1 / (step + 1), "validation_loss": math.nan}, step)
    with Recorder("translation", "sweep aligned", {"kind": "sweep"}, {"drafter": "aligned"}, flush_seconds=PATIENCE) as sweep:
        sweep.child(
            "bild aligned fallback=0.6 rollback=2",
            {"kind": "point", "method": "bild"},
            {"fallback_threshold": 0.6, "rollback_threshold": 2},
            {"bleu": 37.5, "speedup": 1.6},
        )
        sweep.log_artifact(figure, "figures")


def test_runs_arrive_with_parents_curves_and_artifacts(mlflow: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record_a_task(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert not list(outbox_folder().iterdir())
    runs = runs_of(mlflow)
    train, sweep, point = (runs[name] for name in ("train large", "sweep aligned", "bild aligned fallback=0.6 rollback=2"))
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    losses = mlflow.get_metric_history(train.info.run_id, "loss")
    assert [(value.step, value.value) for value in losses] == [(step, 1 / (step + 1)) for step in range(5)]
    assert math.isnan(train.data.metrics["validation_loss"])
    assert sweep.data.params == {"drafter": "aligned"}
    assert point.data.tags["mlflow.parentRunId"] == sweep.info.run_id
    assert point.data.tags["method"] == "bild"
    assert point.data.params == {"fallback_threshold": "0.6", "rollback_threshold": "2"}
    assert point.data.metrics == {"bleu": 37.5, "speedup": 1.6}
    assert [file.path for file in mlflow.list_artifacts(sweep.info.run_id, "figures")] == ["figures/pareto.svg"]
    assert Path(mlflow.download_artifacts(sweep.info.run_id, "figures/pareto.svg")).read_text(encoding="utf-8") == "<svg/>"


def test_a_run_holds_data_sets_tables_a_description_and_its_model(mlflow: Any, tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text("# The large model", encoding="utf-8")
    columns: dict[str, list[Any]] = {"speedup": [1.5, None], "method": ["bild", "größer"], "timed": [True, False]}
    with Recorder("translation", "train large", {}, {}, flush_seconds=0) as run:
        run.log_inputs([DataSet("data/text/train.jsonl", f"{'a' * 32}.dir", "data/text", 90, 2, "training")])
        run.log_metrics({"loss": 2.0, "kept_validation_loss": 1.5}, 3)
        run.log_trained("large", card, {"folder": "models/large"}, {"rate": 0.1}, ["kept_validation_loss"])
        run.describe("the **verdict**")
        run.log_table("points", columns)
    # Sent twice, as after a kill before the run's end.
    run_file = next(outbox_folder().glob(f"*/{RUN_FILE}")).parent
    shutil.copytree(run_file, tmp_path / "copy")
    assert upload_all(outbox_folder(), tracking_uri()) == (1, [])
    stored = runs_of(mlflow)["train large"]
    mlflow.update_run(stored.info.run_id, "RUNNING")
    shutil.copytree(tmp_path / "copy", run_file)
    assert upload_all(outbox_folder(), tracking_uri()) == (1, [])
    stored = mlflow.get_run(stored.info.run_id)
    [data] = stored.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("data/text/train.jsonl", f"{'a' * 32}.dir")
    assert json.loads(data.dataset.profile) == {"size": 90, "files": 2}
    assert json.loads(data.dataset.source)["path"] == "data/text"
    assert [(tag.key, tag.value) for tag in data.tags] == [("mlflow.data.context", "training")]
    assert stored.data.tags["mlflow.note.content"] == "the **verdict**"
    [model] = mlflow.search_logged_models([stored.info.experiment_id])
    assert (model.name, model.status, model.params, model.tags["folder"]) == ("large", "READY", {"rate": "0.1"}, "models/large")
    assert [(metric.key, metric.value, metric.step) for metric in model.metrics] == [("kept_validation_loss", 1.5, 3)]
    assert [output.model_id for output in stored.outputs.model_outputs] == [model.model_id]
    assert [file.path for file in mlflow.list_logged_model_artifacts(model.model_id)] == ["README.md"]
    # The table is one that MLflow's own call writes.
    mlflow.log_table(stored.info.run_id, dict(columns), "own.json")
    own, ours = (mlflow.load_table(stored.info.experiment_id, f"{name}.json") for name in ("own", "points"))
    assert own.equals(ours) and len(ours) == 2
    assert [table["path"] for table in json.loads(mlflow.get_run(stored.info.run_id).data.tags["mlflow.loggedArtifacts"])] == [
        "points.json",
        "own.json",
    ]


def test_an_experiment_offers_its_views(mlflow: Any) -> None:
    Recorder("translation", "train", {}, {}, flush_seconds=PATIENCE).close()
    tags = mlflow.get_experiment_by_name("translation").tags
    views = [json.loads(tag) for name, tag in tags.items() if name.startswith("mlflow.sharedViewState.")]
    assert sorted(view["name"] for view in views) == [
        "Speed-up × quality (test)",
        "Speed-up × quality (validation)",
        "Training curves",
    ]
    assert all(mlflow.search_runs(["1"], json.loads(view["state"])["searchFilter"]) == [] for view in views)


def test_concurrent_stages_create_one_database(tmp_path: Path) -> None:
    names = ["one", "two"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "DRAFTLINE_"))}
    command = [sys.executable, "-c", STAGES_AT_ONCE, *names]
    environment["PYTHONPATH"] = str(ROOT)
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=PATIENCE, check=True)
    assert sorted(runs_of(connect(f"sqlite:///{tmp_path / 'mlflow.db'}"))) == names
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cache", "mlflow.db"]


def test_the_command_creates_the_database_and_sends_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAFTLINE_OUTBOX", str(tmp_path / "outbox"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}")
    monkeypatch.setattr(sys, "argv", ["python -m tasks.tracking", "--create"])
    Recorder("translation", "train", {}, {}, flush_seconds=0).close()
    capfd.readouterr()
    assert main() == 0
    assert capfd.readouterr() == ("runs sent to MLflow: 1; still waiting: 0\n", "")
    assert list(runs_of(connect(tracking_uri()))) == ["train"]


def test_a_live_run_is_visible_and_complete_at_its_end(mlflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ASYNC_LOGGING_BUFFERING_SECONDS", "1")
    with Recorder("translation", "train", {}, {"rate": 0.1}, live=True, flush_seconds=PATIENCE) as run:
        run.log_metrics({"loss": 1.0}, 0)
        run._opening.join()
        for step in range(1, 30):
            run.log_metrics({"loss": 1 / (step + 1), "validation_loss": math.nan}, step)
        run._pending[-1]()
        live = runs_of(mlflow)["train"]
        assert (live.info.status, live.data.params) == ("RUNNING", {"rate": "0.1"})
        assert live.data.metrics["loss"] < 1
    ended = runs_of(mlflow)["train"]
    assert ended.info.status == "FINISHED"
    assert [value.step for value in mlflow.get_metric_history(ended.info.run_id, "loss")] == list(range(30))
    assert len(mlflow.get_metric_history(ended.info.run_id, "validation_loss")) == 29


def test_a_run_sent_again_after_a_kill_exists_once(mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process killed after it sent everything, and before it removed the run's folder."""
    monkeypatch.setattr("tasks.tracking.upload.shutil.rmtree", lambda folder: None)
    record_a_task(tmp_path)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    for run in runs_of(mlflow).values():
        mlflow.update_run(run.info.run_id, "RUNNING")
    assert len(list(outbox_folder().glob(f"*/{RUN_FILE}"))) == 2
    assert upload_all(outbox_folder(), tracking_uri()) == (2, [])
    runs = runs_of(mlflow)
    assert len(runs) == 3
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for name in ("loss", "validation_loss"):
        assert len(mlflow.get_metric_history(runs["train large"].info.run_id, name)) == 5


def rows_of(database: Path, replaced: dict[str, str]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of every table that holds any, sorted, with the ids of runs replaced by names."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}  # noqa: S608 (MLflow's tables)

    def plain(value: Any) -> Any:
        for old, new in replaced.items():
            value = value.replace(old, new) if isinstance(value, str) else value
        return value

    return {name: sorted([tuple(map(plain, row)) for row in rows], key=repr) for name, rows in tables.items() if rows}


@pytest.fixture
def sweep_of_points(mlflow: Any) -> Path:
    """A sweep in the outbox; its points have whatever MLflow stores in a way of its own."""
    with Recorder("translation", "sweep", {"kind": "sweep"}, {"drafter": "aligned"}, flush_seconds=0) as sweep:
        for point in range(12):
            numbers = {"bleu": 30.0 + point, "nothing": math.nan, "most": math.inf, "least": -math.inf, "calls": 0.0}
            sweep.child(f"bild {point}", {"kind": "point", "why": "größer"}, {"window": point, "text": "x" * 900}, numbers)
        sweep.child("failed", {"kind": "point"}, {}, {}, status="FAILED")
    return next(outbox_folder().glob(f"*/{RUN_FILE}")).parent


def test_points_are_inserted_at_once_as_the_client_would_send_them(
    mlflow: Any, sweep_of_points: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created, create = list[str](), Upload._create

    def count(self: Upload, run: Run, **tags: str) -> Any:
        created.append(run.name)
        return create(self, run, **tags)

    monkeypatch.setattr(Upload, "_create", count)
    found, requests = [], []
    for way in ("inserted", "sent"):
        place = tmp_path / way
        place.mkdir()
        shutil.copy(tmp_path / "mlflow.db", place)
        shutil.copytree(sweep_of_points, place / "outbox" / "1-run")
        if way == "sent":
            monkeypatch.setattr("tasks.tracking.upload.insert_runs", lambda *_: set())
        created.clear()
        assert upload_all(place / "outbox", f"sqlite:///{place / 'mlflow.db'}") == (1, [])
        requests.append(len(created))
        runs = runs_of(connect(f"sqlite:///{place / 'mlflow.db'}"))
        names = {run.info.run_id: name for name, run in runs.items()}
        found.append(rows_of(place / "mlflow.db", {**names, str(place): "PLACE"}))
        for table in ("experiments", "experiment_tags"):  # the time at which the experiment was made
            found[-1].pop(table)
    assert requests == [1, 14]
    assert found[0] == found[1]
    assert len(found[0]["runs"]) == 14


def test_a_refused_value_is_left_out_and_its_point_kept(mlflow: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder("translation", "sweep", {}, {}, flush_seconds=PATIENCE) as sweep:
        sweep.child("good", {}, {}, {"bleu": 1.0})
        sweep.child("refused", {}, {"a" * 300: 1, "window": 2}, {"bleu": 2.0})
    runs = runs_of(mlflow)
    assert [runs[name].data.metrics for name in ("good", "refused")] == [{"bleu": 1.0}, {"bleu": 2.0}]
    assert runs["refused"].data.params == {"window": "2"}
    assert "warning: MLflow refuses aaa" in capsys.readouterr().err


def test_an_insertion_that_fails_leaves_nothing_and_costs_no_point(mlflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database refuses a metric that comes twice, which the client leaves out."""
    before = list[int]()

    def insert(client: Any, experiment: str, runs: Any) -> set[str]:
        try:
            return insert_runs(client, experiment, runs)
        except Exception:
            before.append(len(runs_of(mlflow)))
            raise

    monkeypatch.setattr("tasks.tracking.upload.insert_runs", insert)
    with Recorder("translation", "sweep", {}, {}, flush_seconds=PATIENCE) as sweep:
        sweep.child("good", {}, {}, {"bleu": 1.0})
        sweep.child("twice", {}, {}, {"speed+": 1.0, "speed*": 1.0})
    assert before == [1]
    runs = runs_of(mlflow)
    assert (len(runs), runs["good"].data.metrics, runs["twice"].data.metrics) == (3, {"bleu": 1.0}, {"speed_": 1.0})


def test_an_absent_server_is_noticed_fast_and_the_runs_are_sent_later(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:secret@127.0.0.1:{closed.getsockname()[1]}")
        start = time.monotonic()
        record_a_task(tmp_path)
    assert time.monotonic() - start < PATIENCE / 4
    first, second = capsys.readouterr().err.splitlines()
    assert "wait for MLflow: 1" in first
    assert "wait for MLflow: 2" in second
    assert "secret" not in first + second
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert upload_all(outbox_folder(), tracking_uri()) == (2, [])
    assert len(runs_of(mlflow)) == 3


def test_a_store_that_mlflow_does_not_open_costs_one_warning(
    mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    with Recorder("translation", "train", {}, {}, live=True, flush_seconds=PATIENCE) as run:
        run.log_metrics({"loss": 1.0})
    (warning,) = capsys.readouterr().err.splitlines()
    assert "wait for MLflow: 1 (The filesystem tracking backend" in warning


def test_a_deleted_experiment_is_neither_restored_nor_replaced(mlflow: Any, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = mlflow.create_experiment("translation")
    mlflow.delete_experiment(experiment)
    Recorder("translation", "train", {}, {}, flush_seconds=PATIENCE).close()
    assert "experiment 'translation' is deleted in MLflow" in capsys.readouterr().err
    assert mlflow.get_experiment(experiment).lifecycle_stage == "deleted"
    mlflow.restore_experiment(experiment)
    assert upload_all(outbox_folder(), tracking_uri()) == (1, [])
    assert list(runs_of(mlflow)) == ["train"]


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
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copyfile(empty_database, folder / "server.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_MLFLOW_SERVER_FILE_STORE", f"sqlite:///{folder / 'server.db'}")
        patch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", "mlflow-artifacts:/")
        patch.setenv("_MLFLOW_SERVER_ARTIFACT_DESTINATION", str(folder / "artifacts"))
        patch.setenv("_MLFLOW_SERVER_SERVE_ARTIFACTS", "true")
        running = Server(folder)
        yield running
        running.stop()


def test_concurrent_points_reach_a_server_that_loses_answers(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is lost after the work is what a read time-out of a slow server is for its client."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("DRAFTLINE_OUTBOX", str(tmp_path))
    # MLflow's client would repeat `create` by itself and leave a second run in the state RUNNING.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    monkeypatch.setattr("tasks.tracking.upload._PAUSE_SECONDS", 0.01)
    lossy = {"runs/create": {1, 5, 20, 21}, "runs/log-batch": {3, 30}, "runs/update": {2, 10}, "runs/search": {2}}
    server.loses = lambda path, number: number in lossy.get(path, ())
    page = tmp_path / "report.html"
    page.write_text("<h1>", encoding="utf-8")
    with Recorder("translation", "sweep", {}, {}, flush_seconds=PATIENCE) as sweep:
        for point in range(40):
            sweep.child(f"point {point}", {}, {"window": point}, {"bleu": point})
        sweep.log_artifact(page)
    client = connect(server.uri)
    runs = runs_of(client)
    assert sorted(runs) == sorted(["sweep", *(f"point {point}" for point in range(40))])
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert len({run.data.tags[KEY_TAG] for run in runs.values()}) == 41
    assert {run.data.tags.get("mlflow.parentRunId") for run in runs.values()} == {None, runs["sweep"].info.run_id}
    assert [file.path for file in client.list_artifacts(runs["sweep"].info.run_id)] == ["report.html"]
    # Nothing was created twice: what the lost answers had created was found.
    assert server.counts["runs/create"] == 41
    assert not list(tmp_path.glob("*-*"))


@pytest.mark.slow
def test_a_server_killed_during_a_stage_costs_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Server and database connection are killed between two metrics; the work goes on, and the record arrives once."""
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(empty_database, tmp_path / "server.db")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("DRAFTLINE_OUTBOX", str(tmp_path / "outbox"))
    monkeypatch.setenv("MLFLOW_ASYNC_LOGGING_BUFFERING_SECONDS", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setattr("tasks.tracking.upload._PAUSE_SECONDS", 0.01)
    figure = tmp_path / "pareto.svg"
    figure.write_text("<svg/>", encoding="utf-8")
    with contextlib.ExitStack() as during:
        during.enter_context(server_process(tmp_path / "server.db", port))
        run = Recorder("translation", "train", {}, {"rate": 0.1}, live=True, flush_seconds=10)
        run.log_metrics({"loss": 1.0}, 0)
        run._opening.join()
        for step in range(1, 10):
            run.log_metrics({"loss": 1 / (step + 1)}, step)
        run._pending[-1]()
        during.close()
        for step in range(10, 20):
            run.log_metrics({"loss": 1 / (step + 1)}, step)
        run.log_artifact(figure)
        run.child("a point", {}, {"window": 3}, {"bleu": 30.0})
        run.close()
    assert "wait for MLflow: 1" in capsys.readouterr().err
    with server_process(tmp_path / "server.db", port):
        client = connect(tracking_uri())
        assert {name: found.info.status for name, found in runs_of(client).items()} == {"train": "RUNNING"}
        assert upload_all(outbox_folder(), tracking_uri()) == (1, [])
        found = runs_of(client)
        assert {name: one.info.status for name, one in found.items()} == {"train": "FINISHED", "a point": "FINISHED"}
        losses = client.get_metric_history(found["train"].info.run_id, "loss")
        assert sorted((value.step, value.value) for value in losses) == [(step, 1 / (step + 1)) for step in range(20)]
        assert [file.path for file in client.list_artifacts(found["train"].info.run_id)] == ["pareto.svg"]
    assert not list((tmp_path / "outbox").glob("*-*"))
