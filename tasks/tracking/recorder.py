"""What a stage uses: a run that is written to the outbox as it goes on, and sent to MLflow when it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock

from tasks.files import folder_checksum, link_folder
from tasks.tracking.client import connect, tracking_uri
from tasks.tracking.outbox import (
    RUN_FILE,
    DataSet,
    Metric,
    RegisteredModel,
    Run,
    TrainedModel,
    append,
    now_ms,
    outbox_folder,
)
from tasks.tracking.upload import Upload, upload_all

_LONGEST_TEXT = 6000
_FORBIDDEN = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow does not allow in the names of metrics, params and tags."""
Values = Mapping[str, object]
Numbers = Mapping[str, float | None]


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
        self.folder = outbox_folder() / f"{time.time_ns()}-{self.key}"
        self.folder.mkdir(parents=True)
        self._lock = FileLock(self.folder / "lock", thread_local=False)
        self._lock.acquire()
        append(self.folder, **vars(Run(self.key, name, _texts(tags), _texts(params), now_ms(), experiment=experiment)))
        self._live, self._flush_seconds, self._pending = live, flush_seconds, list[Callable[[], object]]()
        self._upload: Upload | None = None
        self._opening = threading.Thread(target=self._open, daemon=True)

    def log_metrics(self, metrics: Numbers, step: int = 0) -> None:
        """Add a value to each named curve; None is left out, NaN is kept."""
        values = _metrics(metrics, step)
        append(self.folder, metrics=values)
        if self._upload is not None:
            with contextlib.suppress(Exception):  # the upload at the end sends what does not arrive
                self._pending.append(self._upload.log_async(values))
        elif self._live and self._opening.ident is None:
            # Not earlier: another thread's import would delay those of the stage.
            self._opening.start()

    def log_artifact(self, path: Path, folder: str = "", also_in: Sequence[str] = ()) -> None:
        """Keep a copy of a file or folder as artifact in `folder`, also of the earlier runs that have the keys `also_in`."""
        copy = Path("files", uuid.uuid4().hex, path.name)
        (self.folder / copy).parent.mkdir(parents=True)
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, self.folder / copy)
        append(self.folder, artifacts=[(str(copy), folder, list(also_in))])

    def log_model(self, model: RegisteredModel) -> None:
        """Keep a pair that is to be registered, its files as hard links where possible: a large model is not copied.

        The pair's folder may be replaced or removed later, but its files must not be rewritten in place. Runs that wait with
        the same pair share its files.
        """
        folder = Path(model.path)
        content = folder_checksum(folder)
        kept = Path("models", content)
        link_folder(folder, self.folder / kept, [*self.folder.parent.glob(f"*/{kept}")])
        append(self.folder, models=[vars(dataclasses.replace(model, path=str(kept), content=content))])

    def log_inputs(self, inputs: Iterable[DataSet]) -> None:
        """Note what the run reads."""
        append(self.folder, datasets=[vars(data) for data in inputs])

    def log_table(self, name: str, columns: Mapping[str, Sequence[object]], also_in: Sequence[str] = ()) -> None:
        """Keep a table as `NAME.json`, as `mlflow.log_table` writes it, also in the earlier runs `also_in`.

        Args:
            name: Of the file, without its ending. A table of the same name is replaced.
            columns: Values by column, equally many in each.
            also_in: Keys of earlier runs.
        """
        copy = Path("files", uuid.uuid4().hex, f"{name}.json")
        (self.folder / copy).parent.mkdir(parents=True)
        table = {"columns": list(columns), "data": [list(row) for row in zip(*columns.values(), strict=True)]}
        (self.folder / copy).write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8")
        append(self.folder, tables=[(str(copy), list(also_in))])

    def describe(self, text: str, also_in: Sequence[str] = ()) -> None:
        """Set the description of the run's page, in Markdown, also of the earlier runs `also_in`."""
        append(self.folder, notes=[(text, list(also_in))])

    def log_trained(self, name: str, card: Path, tags: Values, params: Values, metrics: Sequence[str]) -> None:
        """Keep a model that the run trained as a logged model: its card, not its weights, which DVC holds.

        Args:
            name: Of the model.
            card: The file with its card.
            tags, params: Of the model; see `Recorder`.
            metrics: Names of metrics of this run that are measurements of the model.
        """
        copy = Path("files", uuid.uuid4().hex)
        (self.folder / copy).mkdir(parents=True)
        shutil.copy2(card, self.folder / copy / card.name)
        model = TrainedModel(name, str(copy), _texts(tags), _texts(params), list(metrics))
        append(self.folder, trained=[vars(model)])

    def child(self, name: str, tags: Values, params: Values, metrics: Numbers, status: str = "FINISHED") -> None:
        """Record a whole run under this one, such as a point of a sweep. One of the same name replaces an earlier one."""
        key, now = hashlib.sha256(f"{self.key} {name}".encode()).hexdigest()[:32], now_ms()
        run = Run(key, name, _texts(tags), _texts(params), now, now, status, metrics=_metrics(metrics, 0))
        append(self.folder, children=[vars(run)])

    def close(self, status: str = "FINISHED") -> None:
        """End the run and send what the outbox holds, for at most `flush_seconds`. A KILLED run is left to the next upload.

        Never fails because of MLflow: what cannot be sent stays in the outbox, and one line on standard error says so.
        """
        append(self.folder, status=status, end=now_ms())
        seconds = 0.0 if status == "KILLED" else self._flush_seconds
        waiting = [f"not sent within {seconds:.0f} s" for _ in self.folder.parent.glob(f"*/{RUN_FILE}")]
        sender = threading.Thread(target=self._send, args=(waiting, time.monotonic() + seconds), daemon=True)
        if seconds:
            sender.start()
            sender.join(seconds)  # a request that hangs is left behind in its thread
        else:
            self._lock.release()
        if waiting:
            where = f"`python -m tasks.tracking` sends what is in {self.folder.parent}"
            print(f"warning: runs that wait for MLflow: {len(waiting)} ({waiting[0]}); {where}", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        finished = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        self.close("FINISHED" if finished else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")

    def _open(self) -> None:
        """Open the run in MLflow, for metrics to be sent while the stage works."""
        with contextlib.suppress(Exception):
            upload = Upload(self.folder, tracking_uri(), connect(tracking_uri()))
            upload.send_values(upload.run, upload.open())
            self._upload = upload

    def _send(self, waiting: list[str], deadline: float) -> None:
        """Send what the outbox holds, when nothing else is on its way; put into `waiting` why runs still wait."""
        if self._opening.ident is not None:
            self._opening.join()
        for wait in self._pending:
            with contextlib.suppress(Exception):
                wait()
        self._lock.release()  # only now: no other process may create the run while this one might
        waiting[:] = upload_all(self.folder.parent, tracking_uri(), deadline)[1]


def _texts(values: Values) -> dict[str, str]:
    """Return values as text, cut to what MLflow keeps; None is left out."""
    return {_FORBIDDEN.sub("_", name): str(value)[:_LONGEST_TEXT] for name, value in values.items() if value is not None}


def _metrics(values: Numbers, step: int) -> list[Metric]:
    """Return values as metrics of this moment; None is left out."""
    now = now_ms()
    return [(_FORBIDDEN.sub("_", name), float(value), step, now) for name, value in values.items() if value is not None]
