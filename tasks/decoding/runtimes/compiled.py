"""Compiles `kernel/` once for this processor, loads its functions, and measures the read bandwidth that bounds a step.

A step of one token reads every weight once, so reading bounds it. The ratio of a time to that bound says how much of the
machine is used.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tasks.decoding.runtimes.layout import declare_functions
from tasks.errors import disk_full
from tasks.files import private_folder, user_cache, warn_of_damage

KERNEL = Path(__file__).with_name("kernel")
FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC"]
# In order of preference, because not every compiler supports all of them.
_TUNED: tuple[list[str], ...] = (
    ["-march=native", "-fopenmp"],
    ["-mcpu=native", "-fopenmp"],
    ["-march=native"],
    ["-mcpu=native"],
    [],
)

LEAST_SHARE = 0.5
"""A step that uses less of the read bandwidth than this is worth a warning."""
_MIN_SECONDS = 2e-3
"""A timed call lasts at least this long, so that the call itself and the clock do not matter."""
_ROUNDS = 7


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; none where no C++ compiler can build them.

    Raises:
        OSError: no disk has space for them. With space the next process would decode in another runtime than this one.
    """
    if (compiler := compiler_command()) is None:
        return None
    sources = [path.read_bytes() for path in sorted(KERNEL.iterdir())]
    program = Path(shutil.which(compiler[0]) or compiler[0]).resolve().stat()  # another release is another file
    asked = repr((compiler, program.st_size, program.st_mtime_ns, FLAGS, _TUNED)).encode()
    # Everything that the binary depends on: sources, flags, compiler, instruction set.
    key = hashlib.sha256(b"\0".join([*sources, asked, _processor()])).hexdigest()[:32]
    # The first folder that holds the library, or in which it can be made.
    full: OSError | None = None
    for folder in cache_folders():
        path = folder / f"native-{key}.so"
        try:
            if functions := _opened(path) or _compile(compiler, path):
                return functions
        except OSError as error:
            full = error
    if full is not None:
        raise full
    return None


def compiler_command() -> list[str] | None:
    """Return the compiler's command, with the arguments that CXX may contain."""
    named = shlex.split(os.environ.get("CXX", ""))
    return next((one for one in ([named] if named else [["c++"], ["g++"], ["clang++"]]) if shutil.which(one[0])), None)


def _processor() -> bytes:
    """Return a key that differs between processors with different instruction sets."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}".encode()


def cache_folders() -> Iterator[Path]:
    """Yield the user's own cache folder, if nobody else can write to it, then a temporary folder of this process."""
    with contextlib.suppress(RuntimeError):  # no home at all
        if folder := private_folder(user_cache()):
            yield folder
    own = Path(tempfile.mkdtemp(prefix="draftline-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    yield own


def _opened(path: Path) -> ctypes.CDLL | None:
    """Load a library; none if it is missing or incomplete. The loader itself would read past the end of a truncated file."""
    try:
        # The digest was written before the library was moved to its name.
        sound = _digest_file(path).read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
        if sound:
            return declare_functions(ctypes.CDLL(str(path)))
        warn_of_damage(path, "its checksum differs")
        return None
    except (OSError, ValueError):
        return None


def _compile(compiler: list[str], path: Path) -> ctypes.CDLL | None:
    """Compile to a temporary name and rename, so that concurrent processes do not interfere; load what came of it.

    Raises:
        OSError: no space is left on the disk.
    """
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            done = build(compiler, KERNEL / "kernel.cpp", made)
            if done.returncode == 0:
                _digest_file(made).write_text(hashlib.sha256(made.read_bytes()).hexdigest())
                made.replace(path)
                _digest_file(made).replace(_digest_file(path))
                return _opened(path)
            said: Exception = RuntimeError(done.stderr.decode(errors="replace"))
    except OSError as error:
        said = error
    if disk_full(said, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    return None  # the compiler does not take the sources, or the folder cannot be written to


def build(compiler: list[str], source: Path, made: Path) -> subprocess.CompletedProcess[bytes]:
    """Compile a source to a shared library with the first of the flags that the compiler supports; return its last run.

    Raises:
        OSError: the compiler does not start.
    """
    for tuned in _TUNED:
        command = [*compiler, *FLAGS, *tuned, str(source), "-o", str(made)]
        english = os.environ | {"LC_ALL": "C"}  # of which `disk_full` knows the words
        done = subprocess.run(command, capture_output=True, check=False, env=english)  # noqa: S603 (the user's compiler)
        if done.returncode == 0:
            break
    return done


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def read_bandwidth(size: int) -> float | None:
    """Bytes a second at which one thread reads again and again from `size` bytes; the best of several rounds.

    Args:
        size: Bytes of the working set: up to a cache's size its own bandwidth, beyond all caches that of memory.

    Returns:
        Bytes a second; None where no compiler makes the kernel.
    """
    # Not before: the doctor looks for a compiler, and should not wait for torch.
    import torch

    from tasks.decoding.runtimes.packed import HugePages

    functions = library()
    if functions is None:
        return None
    # Floats of 4 bytes; a few vectors at least.
    count = max(size // 4, 1024)
    memory = HugePages(4 * count).take((count,), torch.float32).zero_()
    result = ctypes.c_float()

    def read(passes: int) -> None:
        functions.draftline_read_memory(memory.data_ptr(), count, passes, 1, ctypes.byref(result))

    return 4 * count / _seconds_each(read)


def bandwidth_share(step_bytes: int, seconds: float) -> float | None:
    """Share of the bandwidth at which one thread reads a working set of `step_bytes` that a step of `seconds` uses.

    None where the bytes are not known (0) or no compiler makes the kernel.
    """
    bandwidth = read_bandwidth(step_bytes) if step_bytes else None
    return None if bandwidth is None else step_bytes / seconds / bandwidth


def _seconds_each(repeat: Callable[[int], object]) -> float:
    """Seconds of one repetition; the best of several rounds, each of which lasts `_MIN_SECONDS` or longer."""
    count = 1
    # Double the repetitions, or more by what the last ones took, until a call is long enough to time.
    while (taken := _seconds(repeat, count)) < _MIN_SECONDS:
        count = max(2 * count, int(count * _MIN_SECONDS / max(taken, 1e-7)))
    return min(_seconds(repeat, count) for _ in range(_ROUNDS)) / count


def _seconds(repeat: Callable[[int], object], count: int) -> float:
    begun = time.perf_counter()
    repeat(count)
    return time.perf_counter() - begun
