"""Sends runs from the outbox through MLflow's client; sending again what MLflow holds already changes nothing.

Runs carry a key as a tag, by which a run that a killed or unanswered upload began is found and completed: MLflow keeps an equal
metric, param, tag, file and data set once. A run is ended last: an ended run is complete, and its folder is removed.
Mlflow is imported inside functions, since the import takes seconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from tasks.console import without_secrets
from tasks.files import folder_checksum, remove, unsealed

if TYPE_CHECKING:
    from mlflow import MlflowClient, entities

RUN_FILE = "run.jsonl"
KEY_TAG, PARENT_TAG = "draftline.key", "mlflow.parentRunId"
_TABLES_TAG = "mlflow.loggedArtifacts"
"""By which MLflow's pages list the tables of a run; `log_table` sets it after the upload."""
Metric = tuple[str, float, int, int]
"""Name, value, time in milliseconds since the epoch, and step, as `mlflow.entities.Metric` takes them."""
_ATTEMPTS, _PAUSE_SECONDS = 3, 1.0
_ARTIFACTS = "/mlartifacts"
_LOCATIONS = (
    "UPDATE experiments SET artifact_location = replace(artifact_location, :old, :new)",
    "UPDATE runs SET artifact_uri = replace(artifact_uri, :old, :new)",
    "UPDATE logged_models SET artifact_location = replace(artifact_location, :old, :new)",
    "UPDATE model_versions SET source = replace(source, :old, :new), storage_location = replace(storage_location, :old, :new)",
)
"""Where MLflow 3 keeps absolute paths of artifacts, which no call of its client changes."""
_BATCH = 100
"""Params in a request at most, MLflow's limit; metrics could be a thousand."""
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_UV_AUTO_DETECT": "false",
}


class Unavailable(Exception):
    """Nothing can be sent to MLflow now."""


class NotSentError(Exception):
    """A run could not be sent, or not completely; others may be."""


def upload_all(outbox: Path, uri: str, deadline: float = math.inf) -> tuple[int, list[str]]:
    """Send every run that is no longer written, the oldest first; return how many were sent and why each other one waits.

    Never raises because of MLflow, and stops at the monotonic time `deadline`. The caller holds a lock of `tasks.locks`.
    """
    sent, client, reasons = 0, None, list[str]()
    folders = sorted(file.parent for file in outbox.glob(f"[!.]*/{RUN_FILE}"))
    for index, folder in enumerate(folders):
        try:
            with FileLock(folder / "lock", blocking=False):
                if time.monotonic() > deadline:
                    raise Unavailable("no time left for sending")
                client = client or connect(uri)
                _send(client, folder, uri, deadline)
                # The run's file goes after what it names: a process that is killed here leaves a run that was sent.
                for part in ("files", "models"):
                    remove(folder / part)
                shutil.rmtree(folder)
                sent += 1
        except (Timeout, FileNotFoundError):  # another process writes, sends or has sent it
            continue
        except Unavailable as error:
            return sent, [*reasons, *[str(error)] * (len(folders) - index)]
        except (NotSentError, ValueError, OSError) as error:  # the outbox itself may be read-only
            reasons.append(str(error))
            client = None  # MLflow may have gone: the next run connects again
    lost = sorted({part.parent for part in outbox.glob("[!.]*/*")} - {*folders})
    gone = [f"{folder / RUN_FILE} is missing; put it back, or remove its folder" for folder in lost if _is_without_run(folder)]
    return sent, reasons + gone


def _is_without_run(folder: Path) -> bool:
    """Whether a folder of a run has neither its file nor a process that writes it."""
    with contextlib.suppress(Timeout, FileNotFoundError), FileLock(folder / "lock", blocking=False):
        return not (folder / RUN_FILE).exists()
    return False


def read(folder: Path) -> dict[str, Any]:
    """Read a run, whose metrics, children and other parts are under the names of the recorder's lines.

    Raises:
        ValueError: A line cannot be read. A line without its newline does not count: its writer was killed.
    """
    file = folder / RUN_FILE
    names = ("metrics", "artifacts", "tables", "datasets", "models")
    run: dict[str, Any] = {"tags": {}, "params": {}, "children": {}, "sums": {}, "views": {}, **{name: [] for name in names}}
    try:
        for line in file.read_bytes().split(b"\n")[:-1]:
            for name, value in json.loads(unsealed(line.decode("utf-8"))).items():
                if isinstance(value, dict):
                    run[name].update(value)
                else:
                    run[name] = run[name] + value if isinstance(value, list) else value
        return {"status": "KILLED", "end": int(1000 * file.stat().st_mtime), **run, "name": run["name"], "key": run["key"]}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} cannot be read ({error}); repair it or remove its folder") from error


def connect(uri: str) -> MlflowClient:
    """Return the `MlflowClient` of a server or database, a missing one created; raise `Unavailable` if it does not open."""
    # MLflow's HTTP client would repeat any request that is not answered in time, even `create run`, and make a second run.
    os.environ.update({**_ENVIRONMENT, **os.environ, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"})
    try:
        import mlflow

        # MLflow sets its loggers' levels when it is imported, which may have happened long before.
        logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"].upper())
        logging.getLogger("alembic").setLevel(logging.WARNING)
        database = sqlite_file(uri)
        if database is not None and not database.exists():
            _create_database(database)
        follow_move(uri)
        client = mlflow.MlflowClient(uri)
        client.search_experiments(max_results=1)
    except Exception as error:  # not installed, a broken package below it, a store of an unknown kind
        raise Unavailable(one_line(error)) from error
    return client


def sqlite_file(uri: str) -> Path | None:
    """Return the file of an SQLite database; None for any other store."""
    database = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(database).resolve() if uri.startswith("sqlite:///") and database else None


def one_line(error: Exception) -> str:
    """Return the beginning of an error's message without the secrets of a URI."""
    line = without_secrets(" ".join(str(error).split()))
    return line if len(line) <= 160 else line[:160] + "..."


def open_run(folder: Path, uri: str) -> Callable[[list[Metric]], object]:
    """Create the run that is being written, and return a function that sends its metrics asynchronously."""
    client, run = connect(uri), read(folder)
    run_id = _create(client, _experiment(client, run["experiment"], uri), run)
    return lambda metrics: client.log_batch(run_id, _entities(metrics), synchronous=False)


def _send(client: MlflowClient, folder: Path, uri: str, deadline: float) -> None:
    """Send what MLflow does not hold of a run."""
    run = read(folder)
    for attempt in range(_ATTEMPTS):
        try:
            _send_parts(client, folder, run, uri, deadline)
        except NotSentError:
            raise
        except Exception as error:  # whatever it is, the stage must not fail because of it
            if attempt == _ATTEMPTS - 1 or time.monotonic() + _PAUSE_SECONDS > deadline:
                raise NotSentError(f"run {run['name']!r}: {one_line(error)}") from error
            time.sleep(_PAUSE_SECONDS)
        else:
            return


def _send_parts(client: MlflowClient, folder: Path, run: dict[str, Any], uri: str, deadline: float) -> None:
    from tasks.tracking.registry import register

    experiment = _experiment(client, run["experiment"], uri)
    stored = _find(client, experiment, KEY_TAG, run["key"]).get(run["key"])
    if stored is not None and (stored.info.lifecycle_stage == "deleted" or _is_complete(stored)):
        return
    for copy, known in run["sums"].items():
        if folder_checksum(folder / copy) != known:
            raise NotSentError(f"{folder / copy} is not as recorded; put it back, or remove {folder}")
    run_id = stored.info.run_id if stored is not None else _create(client, experiment, run)
    _log_values(client, run_id, run)
    for copy, into in run["artifacts"]:
        client.log_artifact(run_id, str(folder / copy), into or None)
    held = {file.path for file in client.list_artifacts(run_id)}
    for table in (folder / copy for copy in run["tables"]):
        entry = {"path": table.name, "type": "table"}
        if table.name not in held:  # `log_table` would append to it
            client.log_table(run_id, json.loads(table.read_text(encoding="utf-8")), table.name)
        elif entry not in (known := json.loads(client.get_run(run_id).data.tags.get(_TABLES_TAG, "[]"))):
            client.set_tag(run_id, _TABLES_TAG, json.dumps([*known, entry]))
    if run["datasets"]:
        client.log_inputs(run_id, [_dataset_input(data) for data in run["datasets"]])
    if "note" in run:
        client.set_experiment_tag(experiment, "mlflow.note.content", run["note"].replace("{experiment}", experiment))
    for name, view in run["views"].items():
        client.set_experiment_tag(experiment, f"mlflow.sharedViewState.{name}", view)
    _send_children(client, experiment, run, run_id, uri, deadline)
    for model in run["models"]:
        register(client, uri, run_id, model, folder, run["start"])
    client.set_terminated(run_id, run["status"], run["end"])


def _send_children(client: MlflowClient, experiment: str, run: dict[str, Any], run_id: str, uri: str, deadline: float) -> None:
    known = _find(client, experiment, PARENT_TAG, run_id) if run["children"] else {}

    def send(child: dict[str, Any]) -> None:
        stored = known.get(child["key"])
        if stored is not None and _is_complete(stored):
            return
        if time.monotonic() > deadline:
            raise TimeoutError("no time left for sending")
        child_id = stored.info.run_id if stored is not None else _create(client, experiment, child, {PARENT_TAG: run_id})
        _log_values(client, child_id, child)
        client.set_terminated(child_id, child["status"], child["start"])

    # A server answers four requests in the time of one. An SQLite file has one writer, and needs no thread that could hang.
    with ThreadPoolExecutor(4) as pool:
        list((map if sqlite_file(uri) else pool.map)(send, run["children"].values()))


def _create(client: MlflowClient, experiment: str, run: dict[str, Any], tags: dict[str, str] | None = None) -> str:
    tags = {**run["tags"], **(tags or {}), KEY_TAG: run["key"]}
    return str(client.create_run(experiment, start_time=run["start"], tags=tags, run_name=run["name"]).info.run_id)


def _log_values(client: MlflowClient, run_id: str, run: dict[str, Any]) -> None:
    from mlflow.entities import Param, RunTag

    metrics, params = _entities(run["metrics"]), [Param(*one) for one in run["params"].items()]
    tags = [RunTag(*one) for one in run["tags"].items()]
    for start in range(0, max(len(metrics), len(params), len(tags)), _BATCH):
        batch = slice(start, start + _BATCH)
        client.log_batch(run_id, metrics[batch], params[batch], tags[batch])


def _find(client: MlflowClient, experiment: str, tag: str, value: str) -> dict[str, entities.Run]:
    """Return our runs with a tag by their keys, deleted ones included; of two with one key, the later one is deleted."""
    from mlflow.entities import ViewType

    found: dict[str, entities.Run] = {}
    runs = client.search_runs([experiment], f"tags.`{tag}` = '{value}'", ViewType.ALL, max_results=50_000)
    for run in sorted(runs, key=lambda run: (run.info.lifecycle_stage == "deleted", not _is_complete(run), run.info.run_id)):
        key = run.data.tags.get(KEY_TAG)
        if key is not None and found.setdefault(key, run) is not run and run.info.lifecycle_stage != "deleted":
            client.delete_run(run.info.run_id)  # a server made it twice without answering in time
    return found


def _experiment(client: MlflowClient, name: str, uri: str) -> str:
    """Return the id of an experiment, which is created if missing."""
    found = client.get_experiment_by_name(name)
    if found is None:
        database = sqlite_file(uri)
        artifacts = _artifacts(database) if database else None
        return str(client.create_experiment(name, artifact_location=artifacts))
    if found.lifecycle_stage == "deleted":
        raise ValueError(f"experiment {name!r} is deleted in MLflow; restore it there to let its runs in")
    return str(found.experiment_id)


def _dataset_input(data: dict[str, Any]) -> object:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    profile = {name: data[name] for name in ("size", "files") if data[name] is not None}
    source = json.dumps({"path": data["output"], "hash": data["digest"]})
    described = Dataset(data["name"], data["digest"], "dvc", source, profile=json.dumps(profile))
    return DatasetInput(described, [InputTag("mlflow.data.context", data["context"])] if data["context"] else [])


def _entities(metrics: list[Metric]) -> list[entities.Metric]:
    from mlflow import entities

    return [entities.Metric(*metric) for metric in metrics]


def _is_complete(stored: entities.Run) -> bool:
    return bool(stored.info.status != "RUNNING")


def _create_database(database: Path) -> None:
    """Link a finished copy to the name of a database: MLflow never opens one whose tables a killed process left unfinished."""
    from mlflow import MlflowClient

    database.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{database.name}.new-", dir=database.parent) as folder:
        finished, copy = Path(folder, "finished.db"), Path(folder, "copy.db")
        MlflowClient(f"sqlite:///{finished}").search_experiments(max_results=1)
        shutil.copyfile(finished, copy)
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(copy, database)


def _artifacts(database: Path) -> str:
    """The folder of artifacts beside a database, as MLflow notes it."""
    return database.parent.as_uri() + _ARTIFACTS


def follow_move(uri: str) -> None:
    """Let runs of a folder that was moved or copied have the artifacts beside their database; no other store is changed.

    Raises:
        sqlite3.Error: the database cannot be read or written.
    """
    database = sqlite_file(uri)
    if database is None or not database.exists():
        return
    new = _artifacts(database)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        known = [place for (place,) in connection.execute("SELECT DISTINCT artifact_location FROM experiments")]
        for old in known:
            if old != new and old.startswith("file:") and old.endswith(_ARTIFACTS):
                for statement in _LOCATIONS:
                    connection.execute(statement, {"old": old, "new": new})
