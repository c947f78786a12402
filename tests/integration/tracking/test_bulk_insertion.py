"""The points of a sweep in a real SQLite database of MLflow, inserted at once."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import Recorder, outbox_folder, upload_all
from tasks.tracking.bulk import insert_runs
from tasks.tracking.client import connect
from tasks.tracking.outbox import RUN_FILE, Run
from tasks.tracking.upload import Upload
from tests.mlflow_server import PATIENCE, runs_of

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")


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
