"""An MLflow database for each test."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import tracking_uri
from tasks.tracking.upload import connect


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
