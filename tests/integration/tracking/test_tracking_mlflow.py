"""Runs in a real MLflow database: parents, curves, artifacts, live runs, and what happens where MLflow is away."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import DataSet, Recorder, outbox_folder, tracking_uri, upload_all
from tasks.tracking.__main__ import main
from tasks.tracking.client import connect
from tasks.tracking.outbox import RUN_FILE
from tests.mlflow_server import PATIENCE, runs_of

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")

ROOT = Path(__file__).parents[3]
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
