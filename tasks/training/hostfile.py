"""Reads hostfiles in DeepSpeed's form and reaches their hosts before any work begins."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tasks.errors import InputError

_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
_LINE = re.compile(r"(?P<name>[A-Za-z0-9_][\w.:@-]*)\s+slots=(?P<slots>[1-9]\d{0,3})")
_FORM = "`host slots=N`, with N the processes of that host, 1 to 9999"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REACH_SECONDS = 60
_FREE_PORT = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"


def read_hostfile(path: Path) -> dict[str, int]:
    """Return the processes by host from a file with a line `host slots=N` each; a line that begins with `#` is a comment.

    Raises:
        InputError: the file cannot be read, names no host, or has a line of another form; the message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise InputError(f"the hostfile {path} cannot be read: {reason}; write a line for each host, {_FORM}") from None
    hosts: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        found = _LINE.fullmatch(entry)
        if found is None:
            raise InputError(f"{path}, line {number}: {entry!r} is not {_FORM}")
        address = found["name"].rpartition("@")[2]
        machine = _LOOPBACK[0] if is_local(found["name"]) else address
        if machine in numbers:
            raise InputError(
                f"{path}, line {number}: {found['name']} is already on line {numbers[machine]}; join the two lines"
            )
        hosts[found["name"]], numbers[machine] = int(found["slots"]), number
    if not hosts:
        raise InputError(f"the hostfile {path} names no host; write a line for each, {_FORM}")
    if len(hosts) > 1 and any(name.rpartition("@")[2] in _LOOPBACK for name in hosts):
        raise InputError(
            f"the hostfile {path} names the loopback address and other hosts; use the name by which they reach this machine"
        )
    return hosts


def is_local(name: str) -> bool:
    """Whether a host of a hostfile is this machine."""
    return "@" not in name and name in (*_LOOPBACK, socket.gethostname(), socket.getfqdn())


def reach(hosts: list[str], folder: Path) -> int:
    """Run this Python in `folder` on all hosts through ssh; return a port that is free on the first host.

    Raises:
        InputError: a program is missing here, a host does not answer, or it does not share the folder; names the host.
    """
    for program in ("ssh", "pdsh"):
        if shutil.which(program) is None:
            raise InputError(
                f"training on several hosts needs {program}, which is not on PATH; install it, or use --nproc here"
            )
    command = f"cd {shlex.quote(str(folder))} && exec {shlex.join([sys.executable, '-c', _FREE_PORT])}"
    with ThreadPoolExecutor(max_workers=32) as pool:
        ports = list(pool.map(lambda host: _answer(host, command, folder), hosts))
    return ports[0]


def _answer(host: str, command: str, folder: Path) -> int:
    try:
        done = subprocess.run(  # noqa: S603 (ssh to a host that the user names)
            [*_SSH, host, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_REACH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"the host {host} does not answer within {_REACH_SECONDS} s; try `ssh {host} true`") from None
    if done.returncode or not done.stdout.strip().isdigit():
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(
            f"the host {host} cannot be used ({reason}); `ssh {host} true` must work without a password, and {folder} with "
            f"{sys.executable} must be at the same path there"
        )
    return int(done.stdout)
