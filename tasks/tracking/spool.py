"""The spool: one JSONL file a run, a sidecar with what has been sent of it, and a folder with copies of its artifacts.

Each line is an object with a `kind`: `open` (first: experiment, name, key, parent, tags, params, time, writer), then any number
of `metrics` (values, step, time), `params`, `tags`, `artifact` (path inside the run's folder, artifact folder, keys of earlier
runs that keep it as well) and `child` (a whole run: name, key, tags, params, metrics, start, end, status), and at last `end`
(status, time). Times are milliseconds since the epoch. A line counts once its newline is there, so that a writer killed in the
middle of one leaves nothing broken behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
Line = dict[str, Any]


class Busy(Exception):
    """Another process is sending this file."""


def spool_folder(root: Path = Path()) -> Path:
    """The folder that `DRAFTLINE_SPOOL` names, or `.cache/mlflow-spool` under `root`, the repository."""
    named = os.environ.get("DRAFTLINE_SPOOL")
    return Path(named) if named else root / ".cache" / "mlflow-spool"


def now_ms() -> int:
    """Milliseconds since the epoch, the unit of every time in MLflow."""
    return time.time_ns() // 1_000_000


def run_files(spool: Path) -> list[Path]:
    """The files that wait in `spool`, oldest first, so that a parent precedes its children."""
    return sorted(spool.glob("*.jsonl"))


def new_key() -> str:
    """A name for a run that no other run has, by which it is found again in MLflow."""
    return uuid.uuid4().hex


def create(spool: Path, key: str, opening: Line) -> Path:
    """Starts the file of the run `key` and gives its path.

    The file appears with its first line complete: it is written under another name and renamed.
    """
    spool.mkdir(parents=True, exist_ok=True)
    path = spool / f"{time.time_ns()}-{key}.jsonl"
    line = {"kind": "open", "format": FORMAT, "key": key, "time": now_ms(), "writer": this_writer(), **opening}
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(encode(line))
    unfinished.rename(path)
    return path


def encode(line: Line) -> bytes:
    """One line of a spool file; its numbers may be NaN or infinite, which Python's JSON writes and reads."""
    return json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n"


def read_opening(path: Path) -> Line:
    """The first line of a run's file.

    Raises:
        ValueError: the file does not begin with an opening of a format that this version reads.
    """
    with path.open("rb") as file:
        opening = json.loads(file.readline())
    if not isinstance(opening, dict) or opening.get("kind") != "open" or opening.get("format") != FORMAT:
        raise ValueError(f"its first line does not open a run of format {FORMAT}")
    return opening


def read_from(path: Path, offset: int) -> list[tuple[bytes, int]]:
    """The complete lines from byte `offset` on, each with the offset behind it."""
    with path.open("rb") as file:
        file.seek(offset)
        lines = file.read().split(b"\n")[:-1]
    placed = []
    for line in lines:
        offset += len(line) + 1
        placed.append((line, offset))
    return placed


def artifact_folder(path: Path) -> Path:
    """Where the copies of the artifacts of the run in file `path` lie."""
    return path.with_suffix(".files")


@dataclass
class Sent:
    """What has been sent of a file: to which destination (a hash, as a URI may hold a password), as which run, how far.

    Lines between `offset` and `begun` may be in MLflow already: they were on their way when this was noted.
    """

    destination: str
    run_id: str | None = None
    offset: int = 0
    begun: int = 0

    def save(self, path: Path) -> None:
        """Writes the sidecar of the file `path` in one step."""
        unfinished = path.with_suffix(".sent.new")
        unfinished.write_text(json.dumps(asdict(self)), encoding="utf-8")
        unfinished.rename(path.with_suffix(".sent"))


def load_sent(path: Path) -> Sent | None:
    """The sidecar of the file `path`, or None where nothing was sent yet."""
    try:
        return Sent(**json.loads(path.with_suffix(".sent").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def has_unsent(path: Path) -> bool:
    """Whether the file `path` is still there and holds more than has been sent."""
    sent = load_sent(path)
    try:
        return path.stat().st_size > (sent.offset if sent else 0)
    except FileNotFoundError:
        return False


def set_aside(path: Path, line: bytes) -> None:
    """Keeps a line that MLflow refuses in a file beside the run's, which is never sent again."""
    with path.with_suffix(".refused").open("ab") as file:
        file.write(line + b"\n")


def remove(path: Path) -> None:
    """Removes what was sent. The run's file goes first: without it, what a kill leaves behind is known to be waste."""
    path.unlink(missing_ok=True)
    for leftover in (path.with_suffix(".sent"), path.with_suffix(".sent.new")):
        leftover.unlink(missing_ok=True)
    shutil.rmtree(artifact_folder(path), ignore_errors=True)


def sweep_out(spool: Path) -> None:
    """Removes sidecars and artifact copies whose run was sent, left behind by a kill during `remove`."""
    for leftover in [*spool.glob("*.sent"), *spool.glob("*.sent.new"), *spool.glob("*.files")]:
        path = leftover.with_name(leftover.name.partition(".")[0] + ".jsonl")
        if not path.exists():
            remove(path)


@contextlib.contextmanager
def locked(path: Path, patience: float) -> Iterator[bool]:
    """Holds the file's lock; yields whether the file is still there, or was sent and removed by another shipper.

    The kernel frees the lock of a shipper that dies. `flock` and not `lockf`, as it also keeps two threads apart.

    Raises:
        Busy: another shipper held the lock for `patience` seconds.
    """
    until = time.monotonic() + patience
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
        except FileNotFoundError:
            yield False
            return
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise Busy("another process is sending it") from None
                time.sleep(0.05)
        yield path.exists()


def this_writer() -> Line:
    """Names this process so that it can be told from a later one with the same id."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}


def is_alive(writer: Line) -> bool:
    """Whether the process that writes a run still lives; one on another host is taken to."""
    if writer["host"] != socket.gethostname():
        return True
    if writer["started"]:
        return bool(_started(writer["pid"]) == writer["started"])
    try:
        os.kill(writer["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _started(pid: int) -> str:
    """Boot and clock tick at which a process started (Linux: proc(5), field 22 of stat); empty where none runs."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return "" if state in "ZX" else f"{boot} {fields[18]}"
