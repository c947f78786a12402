"""Where records go: the few calls of MLflow that shipping needs, and what its errors mean to a shipper.

The only code that imports mlflow, and that inside functions: an import costs seconds and a hundred megabytes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from tasks.tracking.spool import now_ms
from tasks.tracking.views import view_tags

KEY_TAG = "draftline.key"
PARENT_TAG = "mlflow.parentRunId"
_SERVER_LANES = 4
_METRICS_A_CALL = 500
_PARAMS_A_CALL = 100


class Away(Exception):
    """MLflow does not answer: nothing can be sent now."""


class Blocked(Exception):
    """This run cannot be sent as things are; others can."""


class Refused(Exception):
    """MLflow will never take this line."""


class Gone(Exception):
    """The run that was begun is not there any more: the database was replaced."""


class Metric(NamedTuple):
    """One value of a curve; the time in milliseconds since the epoch."""

    name: str
    value: float
    time: int
    step: int


class Sink(Protocol):
    """What a shipper sends to; every call raises `Away`, `Blocked`, `Refused` or `Gone`, and may be repeated."""

    @property
    def lanes(self) -> int:
        """Calls that it may get at once, each from a thread of its own."""

    def find(self, experiment: str, key: str) -> str | None:
        """The id of the run that was created with `key`, or None."""

    def create(self, experiment: str, key: str, name: str, tags: dict[str, str], start: int) -> str:
        """Creates a run and gives its id."""

    def log(self, run_id: str, metrics: list[Metric], params: dict[str, str], tags: dict[str, str]) -> None:
        """Adds to a run; what is there already, with the same time and step, is not doubled."""

    def log_artifact(self, run_id: str, path: Path, folder: str) -> None:
        """Uploads a file, or a folder under its name."""

    def end(self, run_id: str, status: str, time: int) -> None:
        """Ends a run as FINISHED, FAILED or KILLED."""


class MlflowSink:
    """A `Sink` on an MLflow server or database.

    Raises:
        Away: mlflow is not installed, or the store at `uri` cannot be opened.
    """

    def __init__(self, uri: str) -> None:
        make_ready(uri)
        from mlflow.tracking import MlflowClient

        self._uri = uri
        # A server answers four in the time of one; an SQLite file has one writer, and no others who wait for its lock.
        self.lanes = 1 if _sqlite_file(uri) else _SERVER_LANES
        self._experiments: dict[str, str] = {}
        with _opening(), _meaning():
            self._client = MlflowClient(uri)
            self._client.search_experiments(max_results=1)

    def find(self, experiment: str, key: str) -> str | None:
        from mlflow.entities import ViewType

        with _meaning():
            runs = self._client.search_runs(
                [self._experiment(experiment)], f"tags.`{KEY_TAG}` = '{key}'", run_view_type=ViewType.ALL, max_results=1
            )
        return str(runs[0].info.run_id) if runs else None

    def create(self, experiment: str, key: str, name: str, tags: dict[str, str], start: int) -> str:
        with _meaning():
            run = self._client.create_run(
                self._experiment(experiment), start_time=start, tags={**tags, KEY_TAG: key}, run_name=name
            )
        return str(run.info.run_id)

    def log(self, run_id: str, metrics: list[Metric], params: dict[str, str], tags: dict[str, str]) -> None:
        from mlflow import entities

        values = [entities.Metric(metric.name, metric.value, metric.time, metric.step) for metric in metrics]
        settings = [entities.Param(name, value) for name, value in params.items()]
        labels = [entities.RunTag(name, value) for name, value in tags.items()]
        with _meaning():
            while values or settings or labels:
                self._client.log_batch(run_id, values[:_METRICS_A_CALL], settings[:_PARAMS_A_CALL], labels[:_PARAMS_A_CALL])
                del values[:_METRICS_A_CALL], settings[:_PARAMS_A_CALL], labels[:_PARAMS_A_CALL]

    def log_artifact(self, run_id: str, path: Path, folder: str) -> None:
        try:
            if path.is_dir():
                self._client.log_artifacts(run_id, str(path), f"{folder}/{path.name}" if folder else path.name)
            else:
                self._client.log_artifact(run_id, str(path), folder if folder else None)
        except Exception as error:  # any artifact store, each with exceptions of its own
            raise Blocked(f"artifact {path.name}: {_one_line(error)}") from error

    def end(self, run_id: str, status: str, time: int) -> None:
        with _meaning():
            self._client.set_terminated(run_id, status, time)

    def _experiment(self, name: str) -> str:
        """The id of an experiment, created where it is missing."""
        from mlflow.exceptions import MlflowException

        if name not in self._experiments:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                try:
                    # Its page opens on runs, not on traces of language-model applications.
                    tags = {"mlflow.experimentKind": "custom_model_development", **view_tags(now_ms())}
                    self._client.create_experiment(name, artifact_location=_artifact_location(self._uri), tags=tags)
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":
                        raise
                found = self._client.get_experiment_by_name(name)
            if found is None or found.lifecycle_stage == "deleted":
                raise Blocked(f"experiment {name!r} is deleted in MLflow; restore it there to let its runs in")
            self._experiments[name] = str(found.experiment_id)
        return self._experiments[name]


def make_ready(uri: str) -> None:
    """What connecting needs of this machine alone, seconds of one core the first time: the import, and an SQLite database.

    Raises:
        Away: mlflow is not installed or does not import, or the database cannot be made.
    """
    _set_environment()
    try:
        import mlflow.tracking  # noqa: F401 (so that no later call imports it, beside a timing)
    except Exception as error:  # not installed, or any of the many packages that it imports fails
        raise Away(f"mlflow cannot be imported: {error}") from error
    _hush()
    with _opening(), _meaning():
        _create_database(uri)


def _sqlite_file(uri: str) -> Path | None:
    """The file of an SQLite database; None for any other store."""
    database = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(database).resolve() if uri.startswith("sqlite:///") and database else None


def _artifact_location(uri: str) -> str | None:
    """`mlartifacts` beside an SQLite database; None leaves the place to a server's own configuration."""
    database = _sqlite_file(uri)
    return None if database is None else (database.parent / "mlartifacts").as_uri()


def _create_database(uri: str) -> None:
    """Makes a missing SQLite database appear complete.

    MLflow creates its tables one by one in place: two processes that do so at once, or one that is killed, leave a database
    that no MLflow opens again. So they are made in a database aside, a copy of which (nobody has it open) is linked to its
    name unless another process was first.
    """
    from mlflow.tracking import MlflowClient

    database = _sqlite_file(uri)
    if database is None or database.exists():
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{database.name}.new-", dir=database.parent) as folder:
        aside, copy = Path(folder, "aside.db"), Path(folder, "copy.db")
        MlflowClient(f"sqlite:///{aside}").search_experiments(max_results=1)
        shutil.copyfile(aside, copy)
        with contextlib.suppress(FileExistsError):
            os.link(copy, database)


_MEANINGS: dict[str, type[Exception]] = {
    "INVALID_PARAMETER_VALUE": Refused,
    "RESOURCE_DOES_NOT_EXIST": Gone,
    "INVALID_STATE": Blocked,
    "PERMISSION_DENIED": Blocked,
}


@contextlib.contextmanager
def _meaning() -> Iterator[None]:
    """Turns whatever MLflow raises into what it means to a shipper."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except Blocked:
        raise
    except MlflowException as error:
        raise _MEANINGS.get(error.error_code, Away)(_one_line(error)) from error
    except Exception as error:  # whatever driver lies under MLflow, the stage must not fail for it
        raise Away(_one_line(error)) from error


@contextlib.contextmanager
def _opening() -> Iterator[None]:
    """A store that does not open is away, whatever it says of why: nothing has been sent that it could mean."""
    try:
        yield
    except (Blocked, Gone, Refused) as error:
        raise Away(str(error)) from error


def _one_line(error: Exception) -> str:
    """The beginning of an error's message, without the user and password of a URI."""
    words = re.sub(r"//[^/@\s]+@", "//", " ".join(str(error).split()))
    return words if len(words) <= 160 else words[:160] + "..."


def _set_environment() -> None:
    """No telemetry, no hints on standard output, and no minutes of retries; what the user has set stays."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    for name, value in {
        "DO_NOT_TRACK": "true",
        "GIT_PYTHON_REFRESH": "quiet",
        "MLFLOW_LOGGING_LEVEL": "CRITICAL",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    }.items():
        os.environ.setdefault(name, value)


def _hush() -> None:
    """Leaves it to the shipper's one line to say what went wrong, unless the user asks for MLflow's own log."""
    # MLflow sets its own logger when it is imported, which may have been long before.
    logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"].upper())
    logging.getLogger("alembic").setLevel(logging.WARNING)
