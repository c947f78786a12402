"""Runs modules as `python -m` does, each in a process forked from one that has imported the heavy packages already.

An import of torch, DeepSpeed and MLflow takes ten times as long as a tiny stage. The process that forks has one thread, no
lock and no open file. It is driven by lines of JSON on its standard input; `Forks` is the side that writes them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("faults.cpp")
LONGEST = 240.0
"""Seconds that a run may take on a busy machine; one that takes longer hangs."""
IMPORTED = ("deepspeed", "mlflow", "sacrebleu", "transformers", "dvc.cli", "tasks.sweep", "tasks.report", "tasks.align")
"""What the stages import."""
MEMORY = 8 << 30
"""Bytes that a process may take: faults must not take their machine down. It also has one thread that computes."""
_POLL = 0.02
_ANSWERS = 3
"""The descriptor of answers: libraries print to standard output."""


def compiled(folder: Path) -> Path:
    """Compile what does the harm, and return its library."""
    library = folder / "faults.so"
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library


@dataclass
class Run:
    """One process: a module, its words, and what happened to it."""

    pid: int
    output: Path
    status: int | None = None
    """Exit status, or minus the number of the signal that ended it; None while it runs, or where it hung."""
    hung: bool = False

    @property
    def said(self) -> str:
        """What it printed and logged."""
        return self.output.read_text(encoding="utf-8", errors="replace")


class Forks:
    """A process that forks, and what it has forked."""

    def __init__(self, library: Path | None, imported: Sequence[str] = IMPORTED, **variables: str) -> None:
        """Start it, with these variables; the imports take seconds. Without a library no harm is done."""
        harm = {} if library is None else {"LD_PRELOAD": str(library)}
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | harm | variables
        command = [sys.executable, "-m", "tests.torture.children", str(library or ""), *imported]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, env=environment, text=True, **pipes)
        self._ask()

    def start(self, words: Sequence[str], folder: Path, environment: dict[str, str], output: Path) -> Run:
        """Fork a process that runs a module with its words in a folder."""
        asked = {"words": list(words), "folder": str(folder), "environment": environment, "output": str(output)}
        return Run(self._ask(start=asked), output)

    def wait(self, run: Run, seconds: float = LONGEST) -> str:
        """Wait until a run has ended or was stopped; one that does neither is killed. Return which it was."""
        state = self._ask(wait=run.pid, seconds=seconds)
        if isinstance(state, int):
            run.status = state
        elif state == "runs":
            run.hung = True
            os.killpg(run.pid, signal.SIGKILL)
            self._ask(wait=run.pid, seconds=seconds)
        return "ended" if isinstance(state, int) else str(state)

    def learn(self, names: Sequence[str]) -> None:
        """Import the modules that a run has needed."""
        self._ask(learn=list(names))

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, **question: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if question:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that forks has ended"
        return json.loads(answer)


@contextlib.contextmanager
def forks(library: Path, number: int, imported: Sequence[str] = IMPORTED) -> Iterator[list[Forks]]:
    """Some processes that fork, for the length of the block."""
    found = [Forks(library, imported) for _ in range(number)]
    try:
        yield found
    finally:
        for one in found:
            one.close()


def serve(imported: Sequence[str]) -> dict[str, Any] | None:
    """Answer the lines of standard input; return what to run in a forked process, None at the end of the input."""
    _answer(_import(imported))
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            _answer(_wait(question["wait"], question["seconds"]))
        elif "learn" in question:
            _answer(_import(question["learn"]))
        elif (pid := os.fork()) == 0:
            return dict(question["start"])
        else:
            _answer(pid)
    return None


def _import(names: Iterable[str]) -> int:
    for name in names:
        with contextlib.suppress(Exception):  # some exist only under conditions that held before
            importlib.import_module(name)
    # A forked process has the thread alone that forks: what another one holds would be held for ever.
    assert threading.active_count() == 1, threading.enumerate()
    return len(sys.modules)


def _answer(value: Any) -> None:
    os.write(_ANSWERS, json.dumps(value).encode() + b"\n")


def _wait(pid: int, seconds: float) -> int | str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if found and os.WIFSTOPPED(status):
            return "stopped"
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL)
    return "runs"


def become(asked: dict[str, Any]) -> None:
    """Turn a forked process into one that `python -m` has just started."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(descriptor, number)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"] | {"TORTURE_MAIN": str(os.getpid())})
    tempfile.tempdir = None
    sys.argv = asked["words"][:1] + asked["words"][1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if modules := os.environ.get("TORTURE_MODULES"):
        atexit.register(lambda: Path(modules).write_text("\n".join(sorted(sys.modules)), encoding="utf-8"))


def leave() -> None:
    """End this process, as the last of its handlers at exit: to free all that it was forked with takes Python 4 seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_status)


if __name__ == "__main__":
    os.dup2(1, _ANSWERS)
    os.dup2(2, 1)
    _library = ctypes.CDLL(sys.argv[1]) if sys.argv[1] else None
    _status = 1  # of an exception that nothing catches
    atexit.register(leave)
    if (_asked := serve(sys.argv[2:])) is not None:
        become(_asked)
        if _library is not None:
            _library.torture_arm()  # the harm begins to count
        try:
            runpy.run_module(_asked["words"][0], run_name="__main__", alter_sys=True)
            _status = 0
        except SystemExit as ended:
            _status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            raise
