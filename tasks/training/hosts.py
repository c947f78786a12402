"""A hostfile, in DeepSpeed's form, and the hosts that it names: read, and reached before any work begins."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import InputError
from tasks.paths import CACHE

SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=15")
"""Asks for no password, and notices within a minute that a host is gone."""
_LINE = re.compile(r"(?P<name>[A-Za-z0-9_][\w.:@-]*)\s+slots\s*=\s*(?P<slots>[1-9]\d{0,3})")
_FORM = "`host slots=N`, with N the processes of that host, 1 to 9999"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SSH_FAILED = 255
_REACH_SECONDS = 60
_FREE_PORT = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"


@dataclass(frozen=True)
class Host:
    """A machine, as `ssh` knows it."""

    name: str
    slots: int
    """How many processes run there."""

    @property
    def here(self) -> bool:
        """Whether it is this machine."""
        return "@" not in self.name and (self.loopback or self.name in (socket.gethostname(), socket.getfqdn()))

    @property
    def loopback(self) -> bool:
        """Whether its name means another machine on each machine."""
        return self.address in _LOOPBACK

    @property
    def address(self) -> str:
        """Its name without the user's."""
        return self.name.rpartition("@")[2]


def read_hostfile(path: Path) -> list[Host]:
    """The hosts of a file with a line `host slots=N` for each; what follows `#` is a comment.

    Raises:
        InputError: no file, no host in it, or a line of another form; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise InputError(f"the hostfile {path} cannot be read: {reason}; it has a line for each host, {_FORM}") from None
    hosts = list(_hosts(path, lines))
    if not hosts:
        raise InputError(f"the hostfile {path} names no host; give each a line, {_FORM}")
    if len(hosts) > 1 and hosts[0].loopback:
        raise InputError(
            f"the hostfile {path} begins with {hosts[0].name}, where each of the other hosts would look on itself; "
            "call it what the others call it"
        )
    return hosts


def _hosts(path: Path, lines: list[str]) -> Iterator[Host]:
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        found = _LINE.fullmatch(entry)
        if found is None:
            raise InputError(f"{path}, line {number}: {entry!r} is not {_FORM}")
        host = Host(found["name"], int(found["slots"]))
        place = _LOOPBACK[0] if host.here else host.address
        if place in seen:
            before = f"{host.name} stands on line {seen[place]} already"
            raise InputError(f"{path}, line {number}: {before}; give it one, with all slots")
        seen[place] = number
        yield host


def reach(hosts: list[Host], folder: Path, python: str) -> int:
    """Runs `python` in `folder` on all hosts; gives a port that is free on the first.

    Raises:
        InputError: a host cannot be reached, or does not share the folder; names it with the reason.
    """
    if shutil.which("ssh") is None:
        raise InputError("a hostfile needs ssh, which is not on PATH; install it, or train on this host with --nproc")
    shared = folder / CACHE / f"reach-{uuid.uuid4().hex}"
    shared.parent.mkdir(parents=True, exist_ok=True)
    shared.touch()
    try:
        command = f"test -e {shlex.quote(str(shared))} && {remote(folder, {}, [python, '-c', _FREE_PORT])}"
        with ThreadPoolExecutor(max_workers=32) as pool:
            said = list(pool.map(lambda host: _answer(host, command, folder), hosts))
    finally:
        shared.unlink()
    return int(said[0])


def remote(folder: Path, environment: dict[str, str], arguments: list[str]) -> str:
    """A shell's line that runs a command in a folder and leaves no shell before it."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    return f"cd {shlex.quote(str(folder))} && exec {shlex.join(['env', *variables, *arguments])}"


def _answer(host: Host, command: str, folder: Path) -> str:
    arguments = ["sh", "-c", command] if host.here else [*SSH, host.name, command]
    try:
        done = subprocess.run(  # noqa: S603 (ssh to a host that the user names)
            arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_REACH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"the host {host.name} gives no answer in {_REACH_SECONDS} s; try `ssh {host.name} true`") from None
    if done.returncode == _SSH_FAILED:
        reason = (done.stderr.strip().splitlines() or ["ssh gives no reason"])[-1]
        raise InputError(
            f"the host {host.name} cannot be reached ({reason}); `ssh {host.name} true` must work without a password, and "
            f"the host must share the folder {folder}"
        )
    if done.returncode or not done.stdout.strip().isdigit():
        raise InputError(
            f"the host {host.name} is reached, but does not share the folder {folder} with {sys.executable}; "
            "mount both there at the same path"
        )
    return done.stdout.strip()
