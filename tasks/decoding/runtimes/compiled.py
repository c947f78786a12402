"""Compiles `native.cpp` for this processor, once, and gives its functions."""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SOURCE = Path(__file__).with_name("native.cpp")
_FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC"]
# In order of preference: not every compiler knows every one.
_TUNED: tuple[list[str], ...] = (
    ["-march=native", "-fopenmp"],
    ["-mcpu=native", "-fopenmp"],
    ["-march=native"],
    ["-mcpu=native"],
    [],
)

_Pointer = ctypes.c_void_p


class Linear(ctypes.Structure):
    """`native.cpp`: Linear."""

    _fields_ = (
        ("weight", _Pointer),
        ("scale", _Pointer),
        ("bias", _Pointer),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
    )


class Norm(ctypes.Structure):
    """`native.cpp`: Norm."""

    _fields_ = (("weight", _Pointer), ("bias", _Pointer))


class Layer(ctypes.Structure):
    """`native.cpp`: Layer."""

    _fields_ = (
        ("norm", Norm),
        ("query_key_value", Linear),
        ("out", Linear),
        ("cross_norm", Norm),
        ("cross_query", Linear),
        ("cross_key_value", Linear),
        ("cross_out", Linear),
        ("feed_norm", Norm),
        ("feed_in", Linear),
        ("feed_out", Linear),
    )


class Stack(ctypes.Structure):
    """`native.cpp`: Stack."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "width", "heads", "key_value_heads", "head_width")),
        *((name, ctypes.c_int32) for name in ("activation", "gated", "causal", "format", "threads")),
        *((name, ctypes.c_float) for name in ("epsilon", "score_scale", "head_scale")),
        ("layer", ctypes.POINTER(Layer)),
        ("embedding", _Pointer),
        ("learned_positions", _Pointer),
        ("norm", Norm),
        ("head", Linear),
    )


class Cache(ctypes.Structure):
    """`native.cpp`: Cache."""

    _fields_ = (
        ("keys", _Pointer),
        ("values", _Pointer),
        ("layer_stride", ctypes.c_int64),
        ("slots", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("cross_keys", _Pointer),
        ("cross_values", _Pointer),
        ("source_capacity", ctypes.c_int64),
        ("source_lengths", _Pointer),
        ("bias", _Pointer),
        ("cosines", _Pointer),
        ("sines", _Pointer),
    )


class Rows(ctypes.Structure):
    """`native.cpp`: Rows."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("tokens", _Pointer),
        ("begin", _Pointer),
        ("cached", _Pointer),
        ("slots", _Pointer),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled functions; none where no C++ compiler makes them."""
    compiler = _compiler()
    if compiler is None:
        return None
    flags = repr((_FLAGS, _TUNED)).encode()
    key = hashlib.sha256(b"\0".join([_SOURCE.read_bytes(), flags, _version(compiler), _processor()])).hexdigest()[:32]
    for folder in _folders():
        path = folder / f"native-{key}.so"
        functions = _opened(path)
        if functions is None and _compile(compiler, path):
            functions = _opened(path)
        if functions is not None:
            return functions
    return None


def _compiler() -> list[str] | None:
    """A command, with what CXX may have behind it."""
    named = shlex.split(os.environ.get("CXX", ""))
    return next((one for one in ([named] if named else [["c++"], ["g++"], ["clang++"]]) if shutil.which(one[0])), None)


def _version(compiler: list[str]) -> bytes:
    try:
        return repr(compiler).encode() + subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout  # noqa: S603
    except OSError:
        return b""


def _processor() -> bytes:
    """What tells processors apart that do not have the same instructions."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}".encode()


def _folders() -> Iterator[Path]:
    """The user's own cache folder, where nobody else may put a library; then one of this process."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftline"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid == os.getuid() and not found.st_mode & 0o022:
            yield folder
    except (OSError, RuntimeError):  # no place to write to, or no home at all
        pass
    own = Path(tempfile.mkdtemp(prefix="draftline-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    yield own


def _opened(path: Path) -> ctypes.CDLL | None:
    """None where there is no library, or half of one: the loader does not check, and reads past the end of a cut file."""
    try:
        sound = _digest_file(path).read_text() == hashlib.sha256(path.read_bytes()).hexdigest()
        return _declared(ctypes.CDLL(str(path))) if sound else None
    except OSError:
        return None


def _compile(compiler: list[str], path: Path) -> bool:
    """Compiles to a name of its own and renames, so that processes side by side do not meet."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            for tuned in _TUNED:
                command = [*compiler, *_FLAGS, *tuned, str(_SOURCE), "-o", str(made)]
                if subprocess.run(command, capture_output=True, check=False).returncode == 0:  # noqa: S603 (the user's compiler)
                    _digest_file(made).write_text(hashlib.sha256(made.read_bytes()).hexdigest())
                    made.replace(path)
                    _digest_file(made).replace(_digest_file(path))
                    return True
    except OSError:  # a folder that cannot be written to, a full disk
        pass
    return False


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _declared(functions: ctypes.CDLL) -> ctypes.CDLL:
    integer, real, pointer = ctypes.c_int64, ctypes.c_double, _Pointer
    stack, cache, rows = (ctypes.POINTER(one) for one in (Stack, Cache, Rows))
    model, predicted = [stack, cache, rows], [integer, integer, pointer]
    signatures = {
        "draftline_panel": ([], integer),
        "draftline_run": ([*model, pointer], None),
        "draftline_read": ([stack, cache, pointer, integer, integer], None),
        "draftline_predict": ([stack, pointer, integer, pointer, *predicted], None),
        "draftline_extend": (
            [*model, integer, real, real, pointer, integer, pointer, pointer, *predicted, pointer],
            integer,
        ),
        "draftline_check": ([*model, integer, real, ctypes.c_int32, pointer, pointer, *predicted], integer),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(functions, name)
        function.argtypes, function.restype = arguments, result
    return functions
