"""Records in a real MLflow with an SQLite database of the test's own."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import Recorder, ship, ship_all, spool_folder

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")


ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults under `root`, whatever the environment of the tests says."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("DRAFTLINE_SPOOL", raising=False)


def client(root: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{root / 'mlflow.db'}")


def runs_of(mlflow: Any, experiment: str) -> dict[str, Any]:
    found = mlflow.get_experiment_by_name(experiment)
    return {run.info.run_name: run for run in mlflow.search_runs([found.experiment_id], max_results=1000)}


def record_a_task(root: Path, uri: str | None = None) -> None:
    figure = root / "pareto.svg"
    figure.write_text("<svg/>", encoding="utf-8")
    with Recorder("translation", "train large", root=root, uri=uri, tags={"kind": "training"}, flush_seconds=30) as train:
        for step in range(5):
            train.log_metrics({"loss": 1 / (step + 1), "validation_loss": math.nan}, step)
    with Recorder("translation", "sweep aligned", root=root, uri=uri, params={"drafter": "aligned"}, flush_seconds=30) as sweep:
        sweep.child(
            "bild aligned fallback=0.6 rollback=2",
            {"kind": "point", "method": "bild"},
            {"fallback_threshold": 0.6, "rollback_threshold": 2},
            {"bleu": 37.5, "speedup": 1.6},
            seconds=3,
        )
        sweep.log_artifact(figure, "figures")


def test_runs_arrive_with_parents_curves_and_artifacts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "a repository"
    root.mkdir()
    record_a_task(root)
    assert capfd.readouterr() == ("", "")
    assert not list(spool_folder(root).iterdir())
    mlflow = client(root)
    runs = runs_of(mlflow, "translation")
    train, sweep, point = (runs[name] for name in ("train large", "sweep aligned", "bild aligned fallback=0.6 rollback=2"))
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert [value.value for value in mlflow.get_metric_history(train.info.run_id, "loss")] == [
        1,
        1 / 2,
        1 / 3,
        1 / 4,
        1 / 5,
    ]
    assert math.isnan(train.data.metrics["validation_loss"])
    assert sweep.data.params == {"drafter": "aligned"}
    assert point.data.tags["mlflow.parentRunId"] == sweep.info.run_id
    assert point.data.tags["method"] == "bild"
    assert point.data.params == {"fallback_threshold": "0.6", "rollback_threshold": "2"}
    assert point.data.metrics == {"bleu": 37.5, "speedup": 1.6}
    assert point.info.end_time - point.info.start_time == 3000
    assert [item.path for item in mlflow.list_artifacts(sweep.info.run_id, "figures")] == ["figures/pareto.svg"]
    (stored,) = (root / "mlartifacts").rglob("pareto.svg")
    assert stored.read_text(encoding="utf-8") == "<svg/>"
    assert ship_all(spool_folder(root), f"sqlite:///{root / 'mlflow.db'}").sent == 0
    assert len(runs_of(mlflow, "translation")) == 3


def test_an_experiment_offers_its_charts_from_the_first_run_on(tmp_path: Path) -> None:
    Recorder("translation", "train", root=tmp_path, flush_seconds=30).close()
    tags = client(tmp_path).get_experiment_by_name("translation").tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    views = [json.loads(value) for name, value in tags.items() if name.startswith("mlflow.sharedViewState.")]
    assert [view["name"] for view in views if "test" not in view["name"]] == [
        "Speed-up × quality (validation)",
        "Training curves",
    ]


def test_stages_that_meet_before_there_is_a_database_all_arrive(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tasks.tracking import Recorder;"
        "Recorder('translation', sys.argv[2], root=Path(sys.argv[1])).close()"
    )
    names = ["one", "two", "three"]
    stages = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], cwd=ROOT) for name in names]
    assert [stage.wait(timeout=120) for stage in stages] == [0, 0, 0]
    assert sorted(runs_of(client(tmp_path), "translation")) == sorted(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cache", "mlflow.db"]


def test_the_command_creates_the_database_and_sends_what_waits(tmp_path: Path) -> None:
    Recorder("translation", "train", root=tmp_path, flush_seconds=0).close()
    environment = {
        **os.environ,
        "DRAFTLINE_SPOOL": str(spool_folder(tmp_path)),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
    }
    command = [sys.executable, "-m", "tasks.tracking", "--create"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("runs sent to MLflow: 1; still waiting: 0\n", "")
    assert list(runs_of(client(tmp_path), "translation")) == ["train"]


def test_a_line_sent_twice_is_kept_once(tmp_path: Path) -> None:
    """What a shipper that is killed before it could note a line does to MLflow: the line comes again."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    record = Recorder("translation", "train", root=tmp_path, flush_seconds=30)
    record.log_metrics({"loss": 1.0, "nothing": math.nan}, step=1)
    record.child("point", metrics={"bleu": 1.0}, params={"window": 2})
    assert ship(record.path.parent, uri) == 0
    sidecar = record.path.with_suffix(".sent")
    state = json.loads(sidecar.read_text(encoding="utf-8"))
    sidecar.write_text(json.dumps({**state, "run_id": None, "offset": 0}), encoding="utf-8")
    record.close()
    mlflow = client(tmp_path)
    runs = runs_of(mlflow, "translation")
    assert len(mlflow.search_runs([runs["train"].info.experiment_id])) == 2
    for name in ("loss", "nothing"):
        assert len(mlflow.get_metric_history(runs["train"].info.run_id, name)) == 1
    assert runs["point"].data.tags["mlflow.parentRunId"] == runs["train"].info.run_id


def test_curves_are_visible_while_a_live_run_goes_on(tmp_path: Path) -> None:
    with Recorder("translation", "train", root=tmp_path, live=True, flush_seconds=30) as record:
        record.log_metrics({"loss": 1.0}, step=1)
        until = time.monotonic() + 60
        while not record.path.with_suffix(".sent").exists() or "null" in record.path.with_suffix(".sent").read_text():
            assert time.monotonic() < until, "nothing was sent within a minute"
            time.sleep(0.1)
        assert runs_of(client(tmp_path), "translation")["train"].info.status == "RUNNING"
    assert runs_of(client(tmp_path), "translation")["train"].info.status == "FINISHED"


def test_away_is_noticed_fast_and_the_record_is_sent_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://user:secret@127.0.0.1:{closed.getsockname()[1]}"
        start = time.monotonic()
        record_a_task(tmp_path, uri)
    assert time.monotonic() - start < 30
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("warning: 1 run waits for MLflow")
    assert second.startswith("warning: 2 runs wait for MLflow")
    assert "secret" not in first + second
    assert ship(spool_folder(tmp_path), f"sqlite:///{tmp_path / 'mlflow.db'}") == 0
    assert len(runs_of(client(tmp_path), "translation")) == 3


def test_a_store_that_mlflow_does_not_open_is_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder("translation", "sweep", root=tmp_path, uri=str(tmp_path / "mlruns"), live=True, flush_seconds=30) as sweep:
        sweep.child("point")
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: 1 run waits for MLflow (The filesystem tracking backend")


def test_a_server_that_hangs_costs_a_sweep_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        sweep = Recorder("translation", "sweep", root=tmp_path, uri=uri, live=True, flush_seconds=1)
        sweep.child("point 0")
        accepted, _ = silent.accept()
        with accepted:
            start = time.monotonic()
            for point in range(1, 300):
                sweep.child(f"point {point}", params={"window": point}, metrics={f"m{i}": i for i in range(25)})
            with sweep.quiet():
                pass
            assert time.monotonic() - start < 5
            sweep.close()
            assert time.monotonic() - start < 10
    assert "1 run waits for MLflow" in capsys.readouterr().err
    # A line a point: all of them are there to be sent.
    assert sum(b'"child"' in line for line in sweep.path.read_bytes().splitlines()) == 300


def test_a_deleted_experiment_is_neither_restored_nor_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mlflow = client(tmp_path)
    experiment = mlflow.create_experiment("translation")
    mlflow.delete_experiment(experiment)
    Recorder("translation", "train", root=tmp_path, flush_seconds=30).close()
    assert "experiment 'translation' is deleted in MLflow" in capsys.readouterr().err
    assert mlflow.get_experiment(experiment).lifecycle_stage == "deleted"
    mlflow.restore_experiment(experiment)
    assert ship(spool_folder(tmp_path), f"sqlite:///{tmp_path / 'mlflow.db'}") == 0
    assert list(runs_of(mlflow, "translation")) == ["train"]


def test_a_hundred_points_arrive_beside_the_work_with_what_a_page_compares(tmp_path: Path) -> None:
    start = time.monotonic()
    with Recorder("translation", "sweep", root=tmp_path, live=True, flush_seconds=60) as sweep:
        for point in range(100):
            sweep.child(f"point {point}", {"split": "test"}, {"window": point}, {f"m{i}": i for i in range(25)})
            if point == 50:
                with sweep.quiet():
                    time.sleep(0.1)
    print(f"100 points in {time.monotonic() - start:.1f} s")
    runs = runs_of(client(tmp_path), "translation")
    assert len(runs) == 101
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {len(run.data.metrics) for name, run in runs.items() if name != "sweep"} == {25}


def test_points_reach_a_server_side_by_side(tmp_path: Path) -> None:
    """Threads of one client against MLflow's own server, whose workers take them at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    store = [
        "--backend-store-uri",
        f"sqlite:///{tmp_path / 'server.db'}",
        "--artifacts-destination",
        str(tmp_path / "artifacts"),
    ]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "2", *store]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for_server(port)
        with Recorder("translation", "sweep", root=tmp_path, uri=uri, flush_seconds=120) as sweep:
            for point in range(40):
                sweep.child(f"point {point}", params={"window": point}, metrics={"bleu": point})
        from mlflow import MlflowClient

        runs = runs_of(MlflowClient(uri), "translation")
        assert sorted(runs) == sorted(["sweep", *(f"point {point}" for point in range(40))])
        assert {run.info.status for run in runs.values()} == {"FINISHED"}
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=30)


def wait_for_server(port: int) -> None:
    until = time.monotonic() + 120
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.2)
