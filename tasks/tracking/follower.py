"""Sends a run's lines while the stage that writes them works, and stands still while that stage times something."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.tracking import spool as files
from tasks.tracking.shipper import ship_file
from tasks.tracking.sink import Away, Blocked, Metric, MlflowSink, Sink, make_ready

_PAUSE_SECONDS = 3.0
_LONGEST_PAUSE = 60.0
_READY_PATIENCE = 60.0
_CALL_PATIENCE = 1.0


class Gate:
    """Open, calls pass; while it is shut, none begins."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shut = 0
        self._inside = 0

    @property
    def is_shut(self) -> bool:
        return self._shut > 0

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Holds one call.

        Raises:
            Away: the gate is shut.
        """
        with self._changed:
            if self._shut:
                raise Away("something is being timed")
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def shut(self, patience: float) -> Iterator[None]:
        """Lets no call begin, and the calls inside end, for at most `patience` seconds."""
        with self._changed:
            self._shut += 1
            self._changed.wait_for(lambda: not self._inside, patience)
        try:
            yield
        finally:
            with self._changed:
                self._shut -= 1


class GatedSink:
    """A sink whose every call passes a gate."""

    def __init__(self, sink: Sink, gate: Gate) -> None:
        self._sink, self._gate = sink, gate

    @property
    def lanes(self) -> int:
        return self._sink.lanes

    def find(self, experiment: str, key: str) -> str | None:
        with self._gate.passing():
            return self._sink.find(experiment, key)

    def create(self, experiment: str, key: str, name: str, tags: dict[str, str], start: int) -> str:
        with self._gate.passing():
            return self._sink.create(experiment, key, name, tags, start)

    def log(self, run_id: str, metrics: list[Metric], params: dict[str, str], tags: dict[str, str]) -> None:
        with self._gate.passing():
            self._sink.log(run_id, metrics, params, tags)

    def log_artifact(self, run_id: str, path: Path, folder: str) -> None:
        with self._gate.passing():
            self._sink.log_artifact(run_id, path, folder)

    def end(self, run_id: str, status: str, time: int) -> None:
        with self._gate.passing():
            self._sink.end(run_id, status, time)


class Follower(threading.Thread):
    """Sends what is new in a run's file every few seconds."""

    def __init__(self, path: Path, uri: str) -> None:
        super().__init__(name="tracking", daemon=True)
        self._path, self._uri = path, uri
        self._stopping = threading.Event()
        self._preparing, self._gate = Gate(), Gate()

    def run(self) -> None:
        sink: Sink | None = None
        pause = 0.0
        while not self._stopping.wait(pause):
            pause = max(pause, _PAUSE_SECONDS)
            if self._gate.is_shut:
                continue
            try:
                sink = self._connect() if sink is None else sink
                ship_file(self._path, self._uri, sink)
                pause = _PAUSE_SECONDS
            except (Away, Blocked, files.Busy, OSError):
                # What stopped because of the gate goes on soon after it opens.
                pause = _PAUSE_SECONDS if self._gate.is_shut else min(2 * pause, _LONGEST_PAUSE)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Begins no call before the block ends.

        Getting ready (an import, a new database) is waited for, since it takes a core for seconds; a call for a second, since
        one that takes longer waits for a server and takes nothing here.
        """
        with self._gate.shut(_CALL_PATIENCE), self._preparing.shut(_READY_PATIENCE):
            yield

    def stop(self, patience: float) -> None:
        """Lets the call in progress end, for at most `patience` seconds; begins no other."""
        self._stopping.set()
        until = time.monotonic() + patience
        with self._gate.shut(patience):
            self.join(max(0.0, until - time.monotonic()))

    def _connect(self) -> Sink:
        with self._preparing.passing():
            make_ready(self._uri)
        with self._gate.passing():
            return GatedSink(MlflowSink(self._uri), self._gate)
