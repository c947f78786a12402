"""pass@1: the share of programs that pass their tests (Chen et al., 2021, with one program for each example).

A generated program runs with the tests of its example in a process of its own: an empty environment, a folder of its own that
is removed, limits of time, memory, file size and processes, and on Linux no network, no other process and no writing elsewhere
(`isolation.py`). `params.yaml` has to allow it; see `run_generated_code`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_CPU_SECONDS = 5
_WALL_SECONDS = 20.0
"""Longer than the CPU seconds, so that a busy machine does not decide what passes."""
_LIMITS = {
    "RLIMIT_CPU": _CPU_SECONDS,
    "RLIMIT_AS": 1 << 30,
    "RLIMIT_FSIZE": 1 << 20,
    "RLIMIT_NOFILE": 64,
    "RLIMIT_NPROC": 0,
    "RLIMIT_CORE": 0,
}
_FENCED = re.compile(r"```[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_REMEMBERED = 1 << 16


def pass_table(hypotheses: Sequence[str], references: Sequence[tuple[str, ...]]) -> NDArray[np.float64]:
    """100 for each program that passes all tests of its example, 0 for each other one, `[examples, 1]`.

    Args:
        hypotheses: programs, or texts whose first block between lines of ``` is one.
        references: for each example a program that passes, which is not read here, and then the tests: lines of Python, such
            as `assert add(1, 2) == 3`.

    Raises:
        ValueError: an example has no test.
        RuntimeError: programs cannot be run on this machine.
    """
    for index, texts in enumerate(references):
        if len(texts) < 2:
            raise ValueError(f"example {index} has no test; give a program and then its tests as references")
    _require_runner()
    tests = ["\n".join(texts[1:]) for texts in references]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = list(threads.map(_passes, map(program_of, hypotheses), tests))
    return np.array([[100.0 * one] for one in found], dtype=np.float64)


def program_of(text: str) -> str:
    """The first fenced block of a text, or all of it where it has none."""
    fenced = _FENCED.search(text)
    return fenced[1] if fenced else text


# Points of a sweep give the same program for most examples.
@functools.lru_cache(maxsize=_REMEMBERED)
def _passes(program: str, tests: str) -> bool:
    return passes(program, tests)


def passes(program: str, tests: str, wall_seconds: float = _WALL_SECONDS) -> bool:
    """Whether a program runs to its end and its tests raise nothing, within the limits."""
    # Any other exit status is a failure, so that a program cannot pass by leaving early.
    passed = 3 + secrets.randbelow(250)
    work = json.dumps({"program": program, "tests": tests, "passed": passed, "limits": _LIMITS})
    with tempfile.TemporaryDirectory(prefix="program-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(  # noqa: S603 (restricted by isolation.py)
            # Without the packages of this environment; hashes are fixed, so that the order of a set is.
            [sys.executable, "-P", "-s", "-S", "-B", str(Path(__file__).with_name("isolation.py"))],
            cwd=folder,
            env={"PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(work.encode("utf-8", "replace"), timeout=wall_seconds)
        finally:
            _kill_group(process)
    return process.returncode == passed


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def unrestricted() -> list[str]:
    """What a program can do here in spite of `isolation.py`, tried out."""
    with tempfile.TemporaryDirectory() as elsewhere:
        attempts = {
            "open network sockets": "import socket\nsocket.socket()",
            "start processes": "import os\nif os.fork() == 0:\n    os._exit(0)",
            "write files elsewhere": f"open({str(Path(elsewhere) / 'written')!r}, 'w').close()",
        }
        return [what for what, program in attempts.items() if passes(program, "")]


@functools.cache
def _require_runner() -> None:
    """Check that programs run here, and say what is not restricted."""
    if not passes("x = 1", "assert x == 1") or passes("x = 1", "assert x == 2"):
        raise RuntimeError(f"{sys.executable} does not run generated programs here; choose another metric than pass_at_1")
    if found := unrestricted():
        print(f"warning: generated programs can {' and '.join(found)} here; run in a container without that", file=sys.stderr)


def forget() -> None:
    """Clear the cache of programs that were run, for benchmarks of the scoring."""
    _passes.cache_clear()
