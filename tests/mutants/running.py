"""Runs breaks on copies of the repository, each in a forked process that dies with its tests.

The parent imports the heavy libraries once and none of the project's modules, so that each child imports those anew from its
copy, with the break in them. Breaks run concurrently, each on its own copy.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
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
CPU_SECONDS = 200
"""A child that computes longer is ended and counts as a survivor; on a busy machine that may take far longer by the clock."""
HANGING_SECONDS = 1800
"""A child that waits for ever is ended after this time."""
_ALL_TESTS = 10
"""The tests that noticed any break are run together, in so many times the processor time of one break."""
_OPTIONS = ("-q", "--no-header", "--tb=line", "-p", "no:cacheprovider")
_PASSED, _FAILED = 0, 1


@dataclass(frozen=True)
class Outcome:
    """What became of one break."""

    name: str
    noticed_by: tuple[str, ...]
    """The tests that failed and prove it; none where it survived."""
    seconds: float
    """Of the processor."""
    detail: str
    """How the tests ended."""


class BaselineError(Exception):
    """The tests cannot be run without a break."""


def preload(modules: Sequence[str] = HEAVY) -> None:
    """Import what the children share."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def copy_tree(root: Path, copies: Sequence[Path]) -> None:
    """Copy every file of the working tree that git does not ignore, links aside, and compile the Python files."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=root, capture_output=True, check=True
    )
    first, *others = copies
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = root / name
        if source.is_file() and not source.is_symlink():
            (first / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, first / name)
    compileall.compile_dir(first, quiet=2)
    for copy in others:
        shutil.copytree(first, copy)


def run_breaks(root: Path, copies: Sequence[Path], breaks: Sequence[Break]) -> Iterator[Outcome]:
    """Yield the outcome of each break, in the order in which they end; as many run at once as there are copies."""
    waiting, free = list(breaks), list(copies)
    running: dict[int, tuple[Break, Path, Callable[[], None]]] = {}
    try:
        while waiting or running:
            while waiting and free:
                change, copy = waiting.pop(0), free.pop()
                restore = _apply(change, copy)
                options = () if change.every else ("-x",)
                pid = _forked(root, copy, change.tests, *options, private_cache=change.file.suffix != ".py")
                running[pid] = change, copy, restore
            pid, raw, usage = os.wait3(0)
            change, copy, restore = running.pop(pid)
            _end_group(pid)
            restore()
            free.append(copy)
            status = os.waitstatus_to_exitcode(raw)
            proof, detail = _outcome_of(change, _failures(copy) if status == _FAILED else [], _ended(status))
            yield Outcome(change.name, proof, usage.ru_utime + usage.ru_stime, detail)
    finally:
        for pid in running:
            _end_group(pid)


def _outcome_of(change: Break, failed: Sequence[str], ended: str) -> tuple[tuple[str, ...], str]:
    """Return the tests that prove that a break was noticed, and otherwise why it was not."""
    if not failed or not change.every:
        return tuple(failed[:1]), ended
    first = {
        test: next((one for one in failed if one == test or one.startswith((f"{test}[", f"{test}::"))), "")
        for test in change.tests
    }
    blind = [test for test, noticed in first.items() if not noticed]
    return ((), f"not noticed by {', '.join(blind)}") if blind else (tuple(first.values()), ended)


def failing_unbroken(root: Path, copy: Path, tests: Sequence[str]) -> list[str]:
    """Return those of the tests that fail without any break.

    Raises:
        BaselineError: pytest did not run them.
    """
    pid = _forked(root, copy, sorted(set(tests)), cpu_seconds=_ALL_TESTS * CPU_SECONDS)
    _, raw = os.waitpid(pid, 0)
    _end_group(pid)
    status = os.waitstatus_to_exitcode(raw)
    if status not in (_PASSED, _FAILED):
        raise BaselineError(f"without any break, {_ended(status)}:\n{_log(copy).read_text(errors='replace')[-4000:]}")
    return _failures(copy)


def _ended(status: int) -> str:
    """Say what a child's exit status means."""
    if status == _PASSED:
        return "all tests pass"
    if status == -signal.SIGXCPU:
        return f"the tests took more than {CPU_SECONDS} s of processor time"
    if status == -signal.SIGALRM:
        return f"the tests took more than {HANGING_SECONDS} s"
    return "tests fail" if status == _FAILED else f"pytest ended with status {status}, which is no failed test"


def _apply(change: Break, copy: Path) -> Callable[[], None]:
    """Put the break into the copy; return what takes it out again."""
    file = copy / change.file
    before, stat = file.read_text(encoding="utf-8"), file.stat()
    file.write_text(broken(before, change), encoding="utf-8")
    # Python takes a compiled file for up to date by the source's size and whole second, which a break may leave as they were.
    os.utime(file, (stat.st_atime, stat.st_mtime - 10))

    def restore() -> None:
        file.write_text(before, encoding="utf-8")
        os.utime(file, (stat.st_atime, stat.st_mtime))

    return restore


class _Failures:
    """A pytest plugin that writes down the ids of failing tests."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(report.nodeid + "\n")


def _forked(
    root: Path, copy: Path, tests: Sequence[str], *options: str, private_cache: bool = False, cpu_seconds: int = CPU_SECONDS
) -> int:
    """Start pytest on `copy` in a process group of its own; return its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 0xFF
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
        signal.alarm(HANGING_SECONDS)
        with _log(copy).open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        log = _failure_log(copy)
        log.write_text("", encoding="utf-8")
        os.chdir(copy)
        # A compiled file of broken code must not be left to the next break.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        if private_cache:
            os.environ["XDG_CACHE_HOME"] = str(copy / ".cache")
        sys.path[:] = [str(copy), *(path for path in sys.path if path and Path(path) != root)]
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "tasks", "flows")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        status = int(pytest.main([*_OPTIONS, *options, f"--basetemp={copy}.tmp", *tests], plugins=[_Failures(log)]))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _log(copy: Path) -> Path:
    return copy.with_suffix(".log")


def _failure_log(copy: Path) -> Path:
    return copy.with_suffix(".failed")


def _failures(copy: Path) -> list[str]:
    return list(dict.fromkeys(_failure_log(copy).read_text(encoding="utf-8").splitlines()))


def _end_group(pid: int) -> None:
    """End what a child's tests may have left running."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
