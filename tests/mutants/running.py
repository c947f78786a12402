"""Runs breaks one after the other on copies of the repository, each in a forked process that dies with its tests.

The parent imports the heavy libraries once and none of the project's modules, so that each child imports those anew from the
copy, with the break in them. The breaks are run on the machine's idle cores: every slot has a copy of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants.patching import Break, broken

HEAVY = (
    *("torch", "numpy", "scipy.stats", "transformers", "transformers.models.t5.modeling_t5"),
    *("transformers.models.llama.modeling_llama", "transformers.models.gpt2.modeling_gpt2", "hypothesis", "pydantic"),
    *("safetensors.torch", "sacrebleu", "rouge_score.rouge_scorer", "sentencepiece", "yaml", "jinja2", "tqdm"),
)
"""What most tests import; a library that is not installed is left to the tests that need it."""
SECONDS = 300
"""A child that runs longer is ended by an alarm and counts as a survivor."""
_OPTIONS = ("-q", "--no-header", "--tb=line", "-p", "no:cacheprovider")
_TESTS_FAILED = 1
_OTHER_MTIME = 10


@dataclass(frozen=True)
class Outcome:
    """What became of one break."""

    name: str
    killed: bool
    seconds: float
    detail: str
    """The test that failed, or why none did."""


class BaselineError(Exception):
    """The selected tests do not all pass without any break."""


def preload(modules: Sequence[str] = HEAVY) -> None:
    """Import what the children share."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def copy_tree(root: Path, target: Path) -> None:
    """Copy every file of the working tree that git does not ignore; links are left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=root, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = root / name
        if source.is_file() and not source.is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def check_baseline(root: Path, copy: Path, tests: Sequence[str], log: Path) -> float:
    """Run the tests on an unbroken copy; return the seconds that they took.

    Raises:
        BaselineError: not all of them pass.
    """
    begun = time.monotonic()
    status = _waited(_forked(root, copy, sorted(set(tests)), log, stop_first=False, private_cache=False, seconds=10 * SECONDS))
    if status != 0:
        raise BaselineError(f"without any break, {_ended(status)}:\n{_tail(log)}")
    return time.monotonic() - begun


def run_breaks(root: Path, copies: Sequence[Path], breaks: Sequence[Break], logs: Path) -> Iterator[Outcome]:
    """Yield the outcome of each break, in the order in which they end; as many run at once as there are copies."""
    waiting, free = list(breaks), list(copies)
    running: dict[int, tuple[Break, Path, float, Callable[[], None]]] = {}
    try:
        while waiting or running:
            while waiting and free:
                change, copy = waiting.pop(0), free.pop()
                restore = _apply(change, copy)
                private = change.file.suffix != ".py"
                log = logs / f"{change.name}.log"
                pid = _forked(root, copy, change.tests, log, stop_first=True, private_cache=private, seconds=SECONDS)
                running[pid] = change, copy, time.monotonic(), restore
            pid, raw = os.wait()
            change, copy, begun, restore = running.pop(pid)
            _end_group(pid)
            restore()
            free.append(copy)
            yield _outcome(change, os.waitstatus_to_exitcode(raw), time.monotonic() - begun, logs / f"{change.name}.log")
    finally:
        for pid in running:
            _end_group(pid)


def _outcome(change: Break, status: int, seconds: float, log: Path) -> Outcome:
    if status != _TESTS_FAILED:
        return Outcome(change.name, False, seconds, _ended(status))
    failed = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return Outcome(change.name, True, seconds, failed[0].split(" - ")[0].split(" ", 1)[1] if failed else "")


def _ended(status: int) -> str:
    """Say what a child's exit status means."""
    if status == 0:
        return "all tests pass"
    if status == -signal.SIGALRM:
        return f"the tests took more than {SECONDS} s"
    return "tests fail" if status == _TESTS_FAILED else f"pytest ended with status {status}, which is no failed test"


def _apply(change: Break, copy: Path) -> Callable[[], None]:
    """Put the break into the copy; return what takes it out again."""
    file = copy / change.file
    before, stat = file.read_text(encoding="utf-8"), file.stat()
    file.write_text(broken(before, change), encoding="utf-8")
    # Compiled files are told apart by size and whole seconds, which a quick change may leave as they were.
    os.utime(file, (stat.st_atime, stat.st_mtime - _OTHER_MTIME))

    def restore() -> None:
        file.write_text(before, encoding="utf-8")
        os.utime(file, (stat.st_atime, stat.st_mtime))

    return restore


def _forked(
    root: Path, copy: Path, tests: Sequence[str], log: Path, *, stop_first: bool, private_cache: bool, seconds: int
) -> int:
    """Start pytest on `copy` in a process group of its own; return its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 3
    try:
        os.setpgid(0, 0)
        signal.alarm(seconds)
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(copy)
        # Only the unbroken run may leave compiled files: they are those of the code as it is.
        sys.dont_write_bytecode = stop_first
        if stop_first:
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        if private_cache:
            os.environ["XDG_CACHE_HOME"] = str(copy / ".cache")
        sys.path[:] = [str(copy), *(path for path in sys.path if path and Path(path) != root)]
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "tasks", "flows")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        status = int(pytest.main([*_OPTIONS, *(["-x"] if stop_first else []), f"--basetemp={copy}.tmp", *tests]))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _waited(pid: int) -> int:
    _, raw = os.waitpid(pid, 0)
    _end_group(pid)
    return os.waitstatus_to_exitcode(raw)


def _end_group(pid: int) -> None:
    """End what a child's tests may have left running."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
