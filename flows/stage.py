"""Runs one DVC stage at a time: `dvc repro --single-item NAME`, its output line by line, its time bounded."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks import supervisor
from tasks.errors import STATUS_BAD_INPUT

DVC = (sys.executable, "-m", "dvc", "--wait-for-lock")
"""Waiting keeps what a stage has done: a `dvc` that finds the repository locked after its command gives the outputs up."""
FLOW_RUN = "PREFECT__FLOW_RUN_ID"
"""Under this name the stages find the flow run's id and record it."""
_DVC_FAILED = 255
_DVC_ERROR = "ERROR: "
_LOCKED = re.compile("Unable to acquire lock|is busy, it is being blocked")
_LAST_LINES = 20
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class StageError(Exception):
    """A stage failed; the first line of the message says which and why, the others are the last of its output."""

    def __init__(self, message: str, kind: str = "Failed") -> None:
        super().__init__(message)
        self.kind = kind
        """Failed; Refused, where its command found the input wrong; TimedOut; or Stopped, by `StageRunner.close`."""


@dataclass(frozen=True)
class StageResult:
    """A stage that has been brought up to date."""

    name: str
    state: str
    """ran; or cached, where DVC found nothing to run."""
    seconds: float


class StageRunner:
    """Runs stages of one repository, each in processes that end with this one; safe to use from many threads."""

    def __init__(self, root: Path, *, timeout: float, flow_run: str = "", dvc: Sequence[str] = DVC) -> None:
        """Runs nothing yet.

        Args:
            timeout: seconds that `run` may take.
            flow_run: the id that stages are told.
            dvc: the command in front of `repro`.
        """
        self._root, self._timeout, self._dvc = root, timeout, tuple(dvc)
        self._environment = _environment(flow_run)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def run(self, name: str, tell: Callable[[str], None]) -> StageResult:
        """Brings a stage up to date, given that those it needs are.

        Args:
            tell: gets each line of output.

        Raises:
            StageError: it failed, took too long, or the launcher was closed.
        """
        start = time.monotonic()
        for pause in _pauses():
            output = self._try(name, tell, start + self._timeout)
            wait_until = time.monotonic() + pause
            if not output.locked or self._closed.is_set() or wait_until > start + self._timeout:
                break
            tell(f"stage {name!r} waits: another dvc works on the same files; next try in {pause:g} s")
            self._closed.wait(pause)
        seconds = time.monotonic() - start
        if output.status == 0:
            return StageResult(name, "ran" if output.ran else "cached", seconds)
        if self._closed.is_set():
            raise StageError(f"stage {name!r} was stopped", "Stopped")
        if seconds >= self._timeout:
            limit = f"{self._timeout / 60:g} minutes"
            raise StageError(f"stage {name!r} was stopped, for it took more than {limit}\n{output.text()}", "TimedOut")
        kind = "Refused" if output.refused else "Failed"
        raise StageError(f"stage {name!r} failed: {output.reason()}\n{output.text()}", kind)

    def close(self) -> None:
        """Ends the stages that run and lets no other start; `run` then raises in the threads that wait in it."""
        with self._lock:
            self._closed.set()
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            supervisor.stop(process)

    def _try(self, name: str, tell: Callable[[str], None], deadline: float) -> _Output:
        """Runs the command once, to its end or the deadline (of `time.monotonic`)."""
        output = _Output(name)
        with self._started([*self._dvc, "repro", "--single-item", name]) as process:
            if process is None or process.stdout is None:
                return output
            alarm = threading.Timer(max(deadline - time.monotonic(), 0.0), supervisor.stop, [process])
            alarm.start()
            try:
                for raw in process.stdout:
                    # A progress bar draws itself anew after each carriage return: its last state is enough.
                    line = raw.decode(errors="replace").rstrip().rpartition("\r")[2]
                    if line:
                        output.add(line)
                        tell(line)
                output.status = process.wait()
            finally:
                alarm.cancel()
        return output

    @contextlib.contextmanager
    def _started(self, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes] | None]:
        """A process that `close` knows of; none once it was called."""
        with self._lock:
            if self._closed.is_set():
                process = None
            else:
                process = supervisor.start(command, self._root, self._environment, subprocess.PIPE)
                self._running.add(process)
        if process is None:
            yield None
            return
        try:
            with process:
                yield process
        finally:
            with self._lock:
                self._running.discard(process)


@dataclass
class _Output:
    """What a run of dvc said."""

    name: str
    status: int = -1
    ran: bool = False
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))

    def add(self, line: str) -> None:
        self.ran = self.ran or line == f"Running stage '{self.name}':"
        self.lines.append(line)

    def text(self) -> str:
        return "\n".join(self.lines)

    def reason(self) -> str:
        """The last line that is not dvc's own complaint, which only says that the command failed."""
        own = [line for line in self.lines if not line.startswith((_DVC_ERROR, "Running stage", "> "))]
        return (own or [*self.lines] or [f"exit status {self.status}"])[-1]

    @property
    def locked(self) -> bool:
        return self.status == _DVC_FAILED and any(line.startswith(_DVC_ERROR) and _LOCKED.search(line) for line in self.lines)

    @property
    def refused(self) -> bool:
        """Whether the stage's command found its input wrong."""
        return any(line.startswith(_DVC_ERROR) and line.endswith(f"exited with {STATUS_BAD_INPUT}") for line in self.lines)


def _pauses() -> Iterator[float]:
    """Seconds between tries while another dvc is in the way: 1, 2, 4 ... 30, 30 ..."""
    return (min(_FIRST_PAUSE * 2.0**number, _LONGEST_PAUSE) for number in itertools.count())


def _environment(flow_run: str) -> dict[str, str]:
    """This process's environment, with this interpreter's commands in front and nothing of the flow engine's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    told = {FLOW_RUN: flow_run} if flow_run else {}
    return kept | {"PATH": path, "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "true"} | told
