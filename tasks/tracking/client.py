"""Opens MLflow. With `upload`, the only code that imports mlflow, and only inside functions: the import takes seconds."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

_FIXED = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_DISABLE_TELEMETRY": "true"}
_DEFAULTS = {
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ASYNC_LOGGING_BUFFERING_SECONDS": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_UV_AUTO_DETECT": "false",
}


class Unavailable(Exception):
    """Nothing can be sent to MLflow now."""


def tracking_uri(root: Path = Path()) -> str:
    """Return `MLFLOW_TRACKING_URI`, or the SQLite database `mlflow.db` in `root`, the repository."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / 'mlflow.db'}"


def sqlite_file(uri: str) -> Path | None:
    """Return the file of an SQLite database; None for any other store."""
    database = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(database).resolve() if uri.startswith("sqlite:///") and database else None


def connect(uri: str) -> MlflowClient:
    """Return the `MlflowClient` of a server or database, a missing one created; raise `Unavailable` if it does not open.

    MLflow's HTTP client repeats any request that is not answered in time, even `create run`: a slow server then holds two runs,
    one of which stays RUNNING. Its retries are off: an upload repeats a request after it has looked up what the first one did.
    """
    os.environ.update(_FIXED | {name: value for name, value in _DEFAULTS.items() if name not in os.environ})
    try:
        from mlflow import MlflowClient

        # MLflow sets its loggers' levels when it is imported, which may have happened long before.
        logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"].upper())
        logging.getLogger("alembic").setLevel(logging.WARNING)
        database = sqlite_file(uri)
        if database is not None and not database.exists():
            _create_database(database)
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
    except Exception as error:  # not installed, a broken package below it, a store of an unknown kind
        raise Unavailable(one_line(error)) from error
    return client


def one_line(error: Exception) -> str:
    """Return the beginning of an error's message without the user and password of a URI."""
    line = re.sub(r"//[^/@\s]+@", "//", " ".join(str(error).split()))
    return line if len(line) <= 160 else line[:160] + "..."


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
