"""MLflow on a database of each test; skip what needs it where it is missing."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import Recorder
from tests.local_mlflow import FaultyClient, local_mlflow

collect_ignore_glob = [] if importlib.util.find_spec("mlflow") else ["test_*.py"]


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[FaultyClient]:
    with local_mlflow(tmp_path) as client:
        yield client


@pytest.fixture
def outbox(mlflow: FaultyClient, tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def record(name: str = "run", experiment: str = "translation", **options: Any) -> Recorder:
    return Recorder(experiment, name, {}, {}, **{"flush_seconds": 0, **options})
