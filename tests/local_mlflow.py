"""MLflow on SQLite databases of tests: a copy of an empty one for each, and a client whose requests can fail."""

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import upload
from tests.kept_databases import kept_database


class Killed(BaseException):
    """The process ends here."""


def _make_tables(file: Path) -> None:
    upload.connect(f"sqlite:///{file}")


def empty_database() -> Path:
    """An empty database with MLflow's tables."""
    return kept_database("mlflow", _make_tables)


class FaultyClient:
    """An `MlflowClient` that counts its requests, and whose requests go through `fault(number, request)`."""

    def __init__(self, client: Any) -> None:
        self.client, self.requests = client, list[str]()
        self.fault: Callable[[int, Callable[[], Any]], Any] = lambda number, request: request()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def request(*arguments: Any, **named: Any) -> Any:
            self.requests.append(name)
            return self.fault(len(self.requests), functools.partial(method, *arguments, **named))

        return request


@contextlib.contextmanager
def local_mlflow(folder: Path) -> Iterator[FaultyClient]:
    """Let runs be recorded in `folder`, and sent to a database there by the client that is yielded."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(empty_database(), folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = FaultyClient(upload.connect(uri))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTLINE_OUTBOX", str(folder / "outbox"))
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.setattr(upload, "connect", lambda uri: client)
        patch.setattr(upload, "_PAUSE_SECONDS", 0.0)
        yield client


def runs_of(client: FaultyClient) -> list[Any]:
    """Return the active runs of all experiments."""
    experiments = [one.experiment_id for one in client.client.search_experiments()]
    return list(client.client.search_runs(experiments, max_results=1000))


def run_of(client: FaultyClient, name: str) -> Any:
    """Return the only active run with a name."""
    (run,) = (one for one in runs_of(client) if one.info.run_name == name)
    return run


def text_of(client: FaultyClient, name: str, path: str) -> str:
    """Return an artifact of the run with a name."""
    file = client.client.download_artifacts(run_of(client, name).info.run_id, path)
    return Path(file).read_text(encoding="utf-8")
