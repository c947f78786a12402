"""An MLflow database for each test."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import tracking_uri
from tasks.tracking.upload import connect
from tests.local_mlflow import empty_database


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The client of a database of the test's own, which is where runs go by default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("DRAFTLINE_OUTBOX", raising=False)
    monkeypatch.setattr("tasks.tracking.upload._PAUSE_SECONDS", 0.01)
    shutil.copyfile(empty_database(), "mlflow.db")
    return connect(tracking_uri())
