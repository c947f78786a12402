"""What a stage uses: a run that is written to the outbox as it goes on, and sent to MLflow when it ends.

The outbox has a folder for each run, `TIME-KEY`, which is removed once MLflow holds the run. Its `run.jsonl` grows with the
run: each line is an object, of which lists are joined, maps merged and other values replaced by those of later lines. `files/`
holds copies of artifacts and tables, `models/CHECKSUM` pairs to register; `lock` is locked by the process that writes the run,
then by the one that sends it. The kernel releases the locks of a process that dies: a run that is neither locked nor ended was
killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock

from tasks.console import log
from tasks.files import folder_checksum, link_folder, partial_path, sealed
from tasks.tracking import upload

_LONGEST_TEXT = 6000
_FORBIDDEN = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow does not allow in the names of metrics, params and tags."""
Values = Mapping[str, object]
Numbers = Mapping[str, float | None]


@dataclass
class RegisteredModel:
    """A pair that MLflow shall register as a version of a model."""

    name: str
    """Of the registered model."""
    path: str
    """The pair's folder: in a run, its path under the run's folder."""
    description: str
    """What the version's page says, in Markdown."""
    tags: dict[str, str]
    metadata: dict[str, Any]
    """Plain values that the file MLmodel carries."""
    examples: list[str]
    """Texts of the input example."""
    content: str = ""
    """Checksum of the pair's folder."""


@dataclass
class DataSet:
    """A file or folder that a run reads."""

    name: str
    """Its path in the repository."""
    digest: str
    """DVC's hash of the output that is the path or contains it."""
    output: str
    """The path of that output."""
    size: int | None = None
    """Bytes of the output."""
    files: int | None = None
    """Files of the output; None where it is one file."""
    context: str = ""
    """What the run reads it for, in a word."""


def _repository() -> Path:
    """Return the repository of the working folder: for a copy in which DVC runs an experiment, what it is a copy of."""
    return next((folder.parents[2] for folder in Path.cwd().parents if folder.parts[-3:] == (".dvc", "tmp", "exps")), Path())


def tracking_uri() -> str:
    """Return `MLFLOW_TRACKING_URI`, or the SQLite database `mlflow.db` in the repository."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{_repository().resolve() / 'mlflow.db'}"


def outbox_folder() -> Path:
    """Return the folder that `DRAFTLINE_OUTBOX` names, or `.cache/mlflow-outbox`, in the repository."""
    return _repository() / (os.environ.get("DRAFTLINE_OUTBOX") or Path(".cache", "mlflow-outbox"))


def model_name(task: str) -> str:
    """Return the name of a task's registered model."""
    return f"draftline-{task}"


class Recorder:
    """A run under way; a context manager that ends it as FINISHED, FAILED (an exception) or KILLED (an interrupt).

    Nothing is sent, and mlflow is not imported, before the run ends, unless it is live.

    Args:
        experiment: The MLflow experiment, created if missing.
        name: The name of the run on MLflow's pages.
        tags, params: Of the run. Values become text; None is left out.
        live: Send metrics while the stage works, through MLflow's asynchronous logging. Not for a stage that times something.
        flush_seconds: The longest time that `close` waits for the upload, in seconds; 0 leaves it for later.
    """

    def __init__(
        self, experiment: str, name: str, tags: Values, params: Values, *, live: bool = False, flush_seconds: float = 60.0
    ) -> None:
        self.key = uuid.uuid4().hex
        # A folder has its name once it is locked and its run has begun: one without a run has lost it.
        folder = outbox_folder() / f"{time.time_ns()}-{self.key}"
        self.folder = partial_path(folder)
        self.folder.mkdir(parents=True)
        self._lock = FileLock(self.folder / "lock", thread_local=False)
        self._lock.acquire()
        about = {"key": self.key, "name": name, "experiment": experiment, "start": _now_ms()}
        self._append(**about, tags=_texts(tags), params=_texts(params))
        self.folder = self.folder.rename(folder)
        self._live, self._flush_seconds = live, flush_seconds
        self._ended = False
        self._send_live: Callable[[list[upload.Metric]], object] | None = None
        self._opening = threading.Thread(target=self._open, daemon=True)

    def log_metrics(self, metrics: Numbers, step: int = 0) -> None:
        """Add a value to each named curve; None is left out, NaN is kept."""
        values = _metrics(metrics, step)
        self._append(metrics=values)
        if self._send_live is not None:
            with contextlib.suppress(Exception):  # the upload at the end sends what does not arrive
                self._send_live(values)
        elif self._live and self._opening.ident is None:
            # Not earlier: another thread's import would delay those of the stage.
            self._opening.start()

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Keep a copy of a file or folder as artifact in `folder`."""
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, copy := self._place(path.name))
        self._append(artifacts=[(self._sealed(copy), folder)])

    def log_table(self, name: str, columns: Mapping[str, Sequence[object]]) -> None:
        """Keep a table as `NAME.json`: values by column, equally many in each."""
        copy = self._place(f"{name}.json")
        copy.write_text(json.dumps(dict(columns), ensure_ascii=False), encoding="utf-8")
        self._append(tables=[self._sealed(copy)])

    def log_model(self, model: RegisteredModel) -> None:
        """Keep a pair that is to be registered, its files as hard links where possible: a large model is not copied.

        The pair's folder may be replaced or removed later, but its files must not be rewritten in place. Runs that wait with
        the same pair share its files; one whose files were damaged meanwhile has them back.
        """
        folder = Path(model.path)
        content = folder_checksum(folder)
        kept = Path("models", content)
        (self.folder / kept.parent).mkdir(exist_ok=True)
        link_folder(folder, self.folder / kept)
        for twin in self.folder.parent.glob(f"*/{kept}"):
            with contextlib.suppress(OSError):  # it may be sent and removed at this moment
                link_folder(self.folder / kept, twin)
        self._append(sums={str(kept): content}, models=[vars(replace(model, path=str(kept), content=content))])

    def log_inputs(self, inputs: Iterable[DataSet]) -> None:
        """Note what the run reads."""
        self._append(datasets=[vars(data) for data in inputs])

    def describe(self, text: str) -> None:
        """Set the description of the run's page, in Markdown."""
        self._append(tags={"mlflow.note.content": text})

    def describe_experiment(self, text: str, views: Mapping[str, str]) -> None:
        """Set the description of the experiment's page, in Markdown, and keep views of its runs.

        Args:
            text: The description; `{experiment}` in it becomes the experiment's id.
            views: By name, each as MLflow's *Share* keeps it: JSON. `viewStateShareKey=NAME` in an address opens it.
        """
        self._append(note=text, views=dict(views))

    def child(self, name: str, tags: Values, params: Values, metrics: Numbers, status: str = "FINISHED") -> None:
        """Record a whole run under this one, such as a point of a sweep. One of the same name replaces an earlier one."""
        run = {"name": name, "tags": _texts(tags), "params": _texts(params), "metrics": _metrics(metrics, 0)}
        self._append(children={name: {**run, "key": f"{self.key} {name}", "start": _now_ms(), "status": status}})

    def end(self, status: str = "FINISHED") -> None:
        """Write how and when the run ended, if that is not written yet: the upload that follows may be interrupted."""
        if not self._ended:
            self._append(status=status, end=_now_ms())
        self._ended = True

    def close(self, status: str = "FINISHED") -> None:
        """End the run and send what the outbox holds, for at most `flush_seconds`. A KILLED run is left to the next upload.

        Never fails because of MLflow: what cannot be sent stays in the outbox, and a warning says so.
        """
        self.end(status)
        seconds = 0.0 if status == "KILLED" else self._flush_seconds
        why = f"not sent within {seconds:.0f} s" if seconds else "the run was interrupted"
        waiting = [why for _ in self.folder.parent.glob(f"*/{upload.RUN_FILE}")]
        sender = threading.Thread(target=self._send, args=(waiting, time.monotonic() + seconds), daemon=True)
        if seconds:
            sender.start()
            sender.join(seconds)  # a request that hangs is left behind in its thread
        else:
            self._lock.release()
        if waiting:
            where = f"`python -m tasks.tracking` sends what is in {self.folder.parent}"
            log.warning("runs that wait for MLflow: %d (%s); %s", len(waiting), waiting[0], where)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        finished = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        self.close("FINISHED" if finished else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")

    def _append(self, **fields: object) -> None:
        """Add a line to the run file. Numbers may be NaN or infinite, which Python's JSON writes and reads."""
        with (self.folder / upload.RUN_FILE).open("ab", buffering=0) as file:
            file.write(sealed(json.dumps(fields, ensure_ascii=False)).encode("utf-8") + b"\n")

    def _place(self, name: str) -> Path:
        """Return a new path under the run's folder."""
        folder = self.folder / "files" / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return folder / name

    def _sealed(self, copy: Path) -> str:
        """Note the checksum of a copy, so that a damaged one is not sent; return its path under the run's folder."""
        name = str(copy.relative_to(self.folder))
        self._append(sums={name: folder_checksum(copy)})
        return name

    def _open(self) -> None:
        """Open the run in MLflow, for metrics to be sent while the stage works."""
        with contextlib.suppress(Exception):
            self._send_live = upload.open_run(self.folder, tracking_uri())

    def _send(self, waiting: list[str], deadline: float) -> None:
        """Send what the outbox holds; put into `waiting` why runs still wait."""
        if self._opening.ident is not None:
            self._opening.join()
        self._lock.release()  # only now: no other process may create the run while this one might
        waiting[:] = upload.upload_all(self.folder.parent, tracking_uri(), deadline)[1]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _texts(values: Values) -> dict[str, str]:
    """Return values as text, cut to what MLflow keeps; None is left out."""
    return {_FORBIDDEN.sub("_", name): str(value)[:_LONGEST_TEXT] for name, value in values.items() if value is not None}


def _metrics(values: Numbers, step: int) -> list[upload.Metric]:
    """Return values as metrics of this moment; None is left out."""
    now = _now_ms()
    return [(_FORBIDDEN.sub("_", name), float(value), now, step) for name, value in values.items() if value is not None]
