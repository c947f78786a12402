"""Runs single DVC stages by `dvc repro --single-item NAME`, with their output line by line, a time limit and retries."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tasks import supervisor
from tasks.console import command_parser, log
from tasks.errors import STATUS_BAD_INPUT
from tasks.settings import add_options, setting, settings

_DVC = (sys.executable, "-m", "dvc", "--wait-for-lock")
"""Without waiting, a `dvc` that finds the repository locked after its command has run would discard the outputs."""
FLOW_RUN = "PREFECT__FLOW_RUN_ID"
"""The environment variable from which stages read and record the id of the flow run."""
_DVC_FAILED = 255
_DVC_ERROR = "ERROR: "
_LOCKED = re.compile("Unable to acquire lock|is busy, it is being blocked")
"""What DVC says where another `dvc` works on the same files."""
_LAST_LINES = 20
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


@settings
class PipelineSettings:
    """How a flow run executes DVC's stages."""

    workers: int = setting("Stages that run side by side.", default=3, unit="stages", ge=1, le=16)
    retries: int = setting("Retries of a failed stage; a stage that rejects its input is not retried.", default=1, ge=0, le=10)
    timeout_minutes: float = setting("Time limit for one attempt at a stage.", default=720.0, unit="minutes", gt=0.0)


def pipeline_parser(description: str) -> argparse.ArgumentParser:
    """Return the parser of a command that runs stages, with `--targets` and an option for each field of `PipelineSettings`."""
    parser = command_parser(description)
    parser.add_argument("--targets", nargs="+", default=[], metavar="STAGE", help="stages to run, with those they need [all]")
    add_options(parser, PipelineSettings)
    return parser


class StageError(Exception):
    """A stage failed; the first line of the message names it and the reason, the others are the end of its output."""

    def __init__(self, message: str, kind: str = "Failed") -> None:
        super().__init__(message)
        self.kind = kind
        """Failed, Refused (its command rejected the input), TimedOut, or Stopped (by `StageRunner.close`)."""


@dataclass(frozen=True)
class StageResult:
    """The result of bringing a stage up to date."""

    name: str
    state: str
    """`ran`, or `cached` if DVC found nothing to run."""
    seconds: float


class StageRunner:
    """Runs stages of one repository in supervised processes; safe to use from many threads."""

    def __init__(self, root: Path, *, timeout: float, flow_run: str = "", dvc: Sequence[str] = _DVC) -> None:
        """Store the options; `run` starts the processes.

        Args:
            root: the folder of the repository.
            timeout: time limit of `run` in seconds.
            flow_run: the id of the flow run that stages record.
            dvc: the command before `repro`.
        """
        self.root, self._timeout, self._dvc = root, timeout, tuple(dvc)
        self._environment = environment(flow_run)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def run(self, name: str, log: Callable[[str], None]) -> StageResult:
        """Bring a stage up to date; the stages that it needs must be up to date.

        Args:
            log: receives each line of output.

        Raises:
            StageError: it failed, took too long, or the runner was closed.
        """
        start = time.monotonic()
        pause = _FIRST_PAUSE
        while True:
            output = self._try(name, log, start + self._timeout)
            wait_until = time.monotonic() + pause
            if not output.locked or self._closed.is_set() or wait_until > start + self._timeout:
                break
            log(f"stage {name!r} waits: another dvc works on the same files; next attempt in {pause:g} s")
            self._closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        seconds = time.monotonic() - start
        if output.status == 0:
            return StageResult(name, "ran" if output.ran else "cached", seconds)
        if self._closed.is_set():
            raise StageError(f"stage {name!r} was stopped", "Stopped")
        if seconds >= self._timeout:
            limit = f"{self._timeout / 60:g} minutes"
            raise StageError(f"stage {name!r} was stopped because it took more than {limit}\n{output.text()}", "TimedOut")
        kind = "Refused" if output.refused else "Failed"
        raise StageError(f"stage {name!r} failed: {output.reason()}\n{output.text()}", kind)

    def close(self) -> None:
        """End the running stages and prevent others from starting; `run` then raises in the threads that wait in it."""
        with self._lock:
            self._closed.set()
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            supervisor.stop(process)

    def _try(self, name: str, log: Callable[[str], None], deadline: float) -> _Output:
        """Run the command once, until it ends, until `deadline` (by `time.monotonic`), or until `close` is called."""
        output, command = _Output(name), [*self._dvc, "repro", "--single-item", name]
        with self._lock:
            if self._closed.is_set():
                return output
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            process = supervisor.start(command, cwd=self.root, env=self._environment, **streams)
            self._running.add(process)
        alarm = threading.Timer(max(deadline - time.monotonic(), 0.0), supervisor.stop, [process])
        alarm.start()
        try:
            with process:
                for raw in process.stdout or ():
                    # A progress bar redraws itself after each carriage return; keep its last state.
                    if line := raw.decode(errors="replace").rstrip().rpartition("\r")[2]:
                        output.add(line)
                        log(line)
                output.status = process.wait()
        finally:
            alarm.cancel()
            with self._lock:
                self._running.discard(process)
        return output


@dataclass
class _Output:
    """The exit status and the end of the output of one `dvc` process."""

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
        """Return the last line that is not dvc's own error message, which only says that the command failed."""
        own = [line for line in self.lines if not line.startswith((_DVC_ERROR, "Running stage", "> "))]
        return (own or [*self.lines] or [f"exit status {self.status}"])[-1]

    @property
    def locked(self) -> bool:
        return self.status == _DVC_FAILED and any(line.startswith(_DVC_ERROR) and _LOCKED.search(line) for line in self.lines)

    @property
    def refused(self) -> bool:
        """Whether the stage's command rejected its input."""
        return any(line.startswith(_DVC_ERROR) and line.endswith(f"exited with {STATUS_BAD_INPUT}") for line in self.lines)


def repair(root: Path) -> None:
    """Remove what a `dvc` that was killed, or had no space left, leaves behind and every later one would fail on.

    That is its note of who reads and writes what and `dvc.lock`, if they are only half there, and empty folders of its cache of
    runs. The half of `dvc.lock` is kept under another name; DVC writes it again from its cache of runs and from the stages.
    """
    note, lock = root / ".dvc" / "tmp" / "rwlock", root / "dvc.lock"
    if _is_torn(note, json.loads):
        note.unlink(missing_ok=True)
    if _is_torn(lock, _read_lock):
        kept = lock.replace(lock.with_name("dvc.lock.damaged"))
        log.warning("dvc.lock was only half written; it is now %s, and a new one is made", kept.name)
    for folder in (root / ".dvc" / "cache" / "runs").glob("*/*"):
        with contextlib.suppress(OSError):  # it holds a run, as it should
            folder.rmdir()


def _is_torn(file: Path, read: Callable[[str], object]) -> bool:
    """Whether what a file holds cannot be read, also after a second: another `dvc` may be writing it at this moment."""
    for pause in (1.0, 0.0):
        try:
            with contextlib.suppress(FileNotFoundError):
                read(file.read_text(encoding="utf-8"))
        except ValueError:
            time.sleep(pause)
        else:
            return False
    return True


def _read_lock(text: str) -> None:
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA

    try:
        COMPILED_LOCKFILE_SCHEMA(yaml.safe_load(text))
    except Exception as error:
        if "<<<<<<<" not in text:  # DVC says what to do where git has left a conflict
            raise ValueError(str(error)) from error


def environment(flow_run: str = "") -> dict[str, str]:
    """Return this environment without the flow engine's own variables and with this interpreter's folder first on PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT__")}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    run = {FLOW_RUN: flow_run} if flow_run else {}
    return kept | {"PATH": path, "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "true"} | run
