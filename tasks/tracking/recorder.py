"""What a stage uses: a run that is written down line by line, and sent beside the work or after it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tasks.tracking import spool as files
from tasks.tracking.follower import Follower
from tasks.tracking.shipper import Shipment, ship_all, tracking_uri

_LONGEST_PARAM = 6000
_LONGEST_TAG = 8000


class Recorder:
    """A run under way; a context manager that ends it as FINISHED, FAILED (an exception) or KILLED (an interrupt).

    Args:
        experiment: the MLflow experiment, created where it is missing.
        name: what the run is called on MLflow's pages.
        tags, params: of the run; values become text, and None is left out.
        parent: the run that this one is part of, in the same experiment.
        live: send lines every few seconds while the stage works, for curves to watch. A stage that times something does so
            under `quiet`; without `live` nothing is imported, and no thread runs, before `close`.
        root: the repository, where the default spool and the default database lie.
        spool: where records wait; see `spool_folder`.
        uri: MLflow's tracking URI; see `tracking_uri`.
        flush_seconds: the longest that `close` waits for what is left to be sent, seconds; 0 leaves it for later.
    """

    def __init__(
        self,
        experiment: str,
        name: str,
        *,
        tags: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        parent: Recorder | None = None,
        live: bool = False,
        root: Path = Path(),
        spool: Path | None = None,
        uri: str | None = None,
        flush_seconds: float = 60.0,
    ) -> None:
        opening = {
            "experiment": experiment,
            "name": name,
            "parent": None if parent is None else parent.key,
            "tags": _texts(tags, _LONGEST_TAG),
            "params": _texts(params, _LONGEST_PARAM),
        }
        spool = files.spool_folder(root) if spool is None else spool
        self.key: str = files.new_key()
        self.path = files.create(spool, self.key, opening)
        self._uri = tracking_uri(root) if uri is None else uri
        self._flush_seconds = flush_seconds
        self._file = self.path.open("ab", buffering=0)
        self._artifacts = 0
        self._live = live
        self._follower: Follower | None = None
        self._quiet = 0

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Adds a value to each named curve; None is left out, NaN is kept."""
        self._write(kind="metrics", values=_numbers(metrics), step=0 if step is None else step, time=files.now_ms())
        self._follow()

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Adds settings, which MLflow never lets change again."""
        self._write(kind="params", values=_texts(params, _LONGEST_PARAM))

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Sets tags, or changes them."""
        self._write(kind="tags", values=_texts(tags, _LONGEST_TAG))

    def log_artifact(self, path: Path, folder: str = "", beside: Sequence[str] = ()) -> None:
        """Keeps a file or folder as it is now: it is copied, and may change before the copy is sent.

        Args:
            folder: where it goes among the run's artifacts.
            beside: keys of earlier runs of the same experiment that keep it as well, those of them that MLflow has.
        """
        place = files.artifact_folder(self.path) / str(self._artifacts)
        place.mkdir(parents=True)
        if path.is_dir():
            shutil.copytree(path, place / path.name)
        else:
            shutil.copy2(path, place / path.name)
        self._write(kind="artifact", path=f"{self._artifacts}/{path.name}", folder=folder, beside=list(beside))
        self._artifacts += 1

    def child(
        self,
        name: str,
        tags: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        *,
        seconds: float = 0.0,
        status: str = "FINISHED",
    ) -> None:
        """Records a whole run under this one in one line, such as a point of a sweep, which ends now and took `seconds`."""
        end = files.now_ms()
        self._write(
            kind="child",
            name=name,
            key=files.new_key(),
            tags=_texts(tags, _LONGEST_TAG),
            params=_texts(params, _LONGEST_PARAM),
            metrics=_numbers(metrics),
            start=end - round(1000 * seconds),
            end=end,
            status=status,
        )
        self._follow()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Around what is timed: lines are written, and sent after the block."""
        with contextlib.nullcontext() if self._follower is None else self._follower.quiet():
            self._quiet += 1
            try:
                yield
            finally:
                self._quiet -= 1

    def close(self, status: str = "FINISHED") -> None:
        """Ends the run and sends what waits, for at most `flush_seconds`; a KILLED run is left to the next shipper.

        Never fails on account of MLflow: what cannot be sent stays in the spool, and one line on standard error says so.
        """
        if self._file.closed:
            return
        self._write(kind="end", status=status, time=files.now_ms())
        os.fsync(self._file.fileno())
        self._file.close()
        until = time.monotonic() + (0.0 if status == "KILLED" else self._flush_seconds)
        if self._follower is not None:
            self._follower.stop(max(0.0, until - time.monotonic()))
        shipment = _ship_within(self.path.parent, self._uri, until - time.monotonic())
        if shipment.left:
            runs = "1 run waits" if shipment.left == 1 else f"{shipment.left} runs wait"
            later = f"`python -m tasks.tracking` sends what is in {self.path.parent}"
            print(f"warning: {runs} for MLflow ({shipment.reason}); {later}", file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.close("FINISHED")
        else:
            self.close("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")

    def _follow(self) -> None:
        """Starts sending: at the first number, when the stage has done its imports, which another thread's could get in."""
        if self._live and self._follower is None and not self._quiet:
            self._follower = Follower(self.path, self._uri)
            self._follower.start()

    def _write(self, **line: Any) -> None:
        self._file.write(files.encode(line))


def _ship_within(spool: Path, uri: str, seconds: float) -> Shipment:
    """`ship_all`, left behind in its thread where a call does not come back in time."""
    if seconds <= 0:
        return Shipment(_waiting(spool), "left for later")
    done: list[Shipment] = []
    deadline = time.monotonic() + seconds
    thread = threading.Thread(target=lambda: done.append(ship_all(spool, uri, deadline=deadline)), daemon=True)
    thread.start()
    thread.join(seconds)
    return done[0] if done else Shipment(_waiting(spool), f"not sent within {seconds:.0f} s")


def _waiting(spool: Path) -> int:
    return sum(files.has_unsent(path) for path in files.run_files(spool))


def _name(name: str) -> str:
    """`name` with the characters that MLflow does not allow in names of metrics, params and tags made underscores."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _texts(values: Mapping[str, Any] | None, longest: int) -> dict[str, str]:
    """Values as text, cut to what MLflow keeps; None is left out."""
    return {_name(name): str(value)[:longest] for name, value in (values or {}).items() if value is not None}


def _numbers(values: Mapping[str, Any] | None) -> dict[str, float]:
    """Values as numbers; None is left out."""
    return {_name(name): float(value) for name, value in (values or {}).items() if value is not None}
