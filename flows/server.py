"""The Prefect server that a flow reports to: the one in PREFECT_API_URL, or else a local one that ends with this process.

Prefect's own ephemeral server does not run schedules reliably and outlives a killed flow, so a full server is started instead.
`flows.serve` announces the address of its server, and `flows.pipeline` reports to that server while it is up.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError

import psutil
from prefect.client.orchestration import get_client
from prefect.context import refresh_global_settings_context
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import get_current_settings

from flows.lockfile import AlreadyLockedError, lock_file
from flows.settings import SERVER_STARTUP_SECONDS, prefect_home
from tasks import supervisor
from tasks.errors import InputError

LOOPBACK = "127.0.0.1"
_USUAL_PORT = 4200
_DRAIN_SECONDS = 10.0
_RESTART_SECONDS = 1.0


@contextlib.contextmanager
def prefect_server(*, announce: bool = False) -> Iterator[str]:
    """Yield the API address of a running server, which Prefect uses inside the block.

    Args:
        announce: let other processes use the server that is started here; only one server per `PREFECT_HOME` can do so.

    Raises:
        InputError: the configured server does not answer, the local one does not start, or another one is announced already.
    """
    configured = get_current_settings().api.url
    if configured:
        _check(configured)
        yield configured
    elif announce:
        try:
            with lock_file(_announcement()) as lock, _own_server() as url, _as_api_url(url):
                lock.write(url)
                yield url
        except AlreadyLockedError as error:
            raise InputError(
                f"a flow is already served from {prefect_home()} at {error.note or 'an address not known yet'}; stop it first"
            ) from None
    elif (announced := _announced_url()) is not None:
        with _as_api_url(announced):
            yield announced
    else:
        with _own_server() as url, _as_api_url(url):
            yield url


def _announcement() -> Path:
    return prefect_home() / "served"


def _announced_url() -> str | None:
    """Return the address of the server that `flows.serve` runs at the moment, if there is one."""
    try:
        with lock_file(_announcement()):
            return None
    except AlreadyLockedError as error:
        return error.note if error.note and is_up(error.note) else None


def _check(url: str) -> None:
    """Raise `InputError` if the configured server does not answer to the configured credentials."""
    with get_client(sync_client=True) as client:
        error = client.api_healthcheck()
    if error is not None:
        raise InputError(f"no Prefect server answers at PREFECT_API_URL, {url}: {error!r}; start it, or unset the variable")


@contextlib.contextmanager
def _as_api_url(url: str) -> Iterator[None]:
    """Set the address for this process and for those that it starts."""
    os.environ["PREFECT_API_URL"] = url
    refresh_global_settings_context()
    try:
        yield
    finally:
        _drain_logs()
        del os.environ["PREFECT_API_URL"]
        refresh_global_settings_context()


def _drain_logs() -> None:
    """Make Prefect send buffered logs and task states before the server stops."""
    for worker in (EventsWorker, APILogWorker):
        worker.drain_all(timeout=_DRAIN_SECONDS)


@contextlib.contextmanager
def _own_server() -> Iterator[str]:
    """Run a server on a free loopback port during the block; it never outlives this process."""
    log = prefect_home() / "server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        server, url = _first_up(log, stack)
        with server.kept():
            yield url


def _first_up(log: Path, stack: contextlib.ExitStack) -> tuple[_KeptProcess, str]:
    """Start a server that answers, on another port if some program takes the first one before the server does.

    Raises:
        InputError: it does not start; names the log.
    """
    while True:
        port = _free_port(stack)
        server = _KeptProcess(functools.partial(_start_server, port, log))
        stack.callback(server.stop)
        if _comes_up(server.process, port):
            return server, f"http://{LOOPBACK}:{port}/api"
        if server.process.poll() is None or _is_free(port):
            raise InputError(f"the Prefect server did not start within {SERVER_STARTUP_SECONDS} s; its log is {log}")


def _start_server(port: int, log: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PREFECT_SERVER_API_HOST": LOOPBACK, "PREFECT_SERVER_API_PORT": str(port)}
    with log.open("ab") as output:
        command = [sys.executable, "-m", "prefect", "server", "start"]
        return supervisor.start(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


class _KeptProcess:
    """A process that is started again when it ends by itself, as a server whose process was killed."""

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._start, self.process = start, start()
        self._stopping, self._lock = threading.Event(), threading.Lock()

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Watch the process during the block, which ends it."""
        keeper = threading.Thread(target=self._keep, name="keeper of the Prefect server", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            self.stop()
            keeper.join()

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()
        supervisor.stop(self.process)

    def _keep(self) -> None:
        while True:
            status = self.process.wait()
            if self._stopping.wait(_RESTART_SECONDS):
                return
            with self._lock:
                if self._stopping.is_set():
                    return
                print(f"the Prefect server ended with status {status}; starting it again", file=sys.stderr, flush=True)
                self.process = self._start()


def _free_port(stack: contextlib.ExitStack) -> int:
    """Return a free port: the usual one, if no other server of this user has it or is about to start again on it.

    A server takes its port half a minute after its start, and again after each restart. So its owner holds a lock meanwhile.
    """
    with contextlib.suppress(AlreadyLockedError, OSError):
        stack.enter_context(lock_file(_port_lock()))
        if _is_free(_USUAL_PORT):
            return _USUAL_PORT
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _port_lock() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftline" / f"port-{_USUAL_PORT}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
        return True
    return False


def _comes_up(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait for a server, and say whether it answers; the answer of another program on its port does not count."""
    deadline = time.monotonic() + SERVER_STARTUP_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if _listens(process, port) and is_up(f"http://{LOOPBACK}:{port}/api"):
            return True
        time.sleep(0.2)
    return False


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Whether a process, or one below it, has the port."""
    with contextlib.suppress(psutil.Error):
        family = [(top := psutil.Process(process.pid)), *top.children(recursive=True)]
        return any(
            one.status == psutil.CONN_LISTEN and one.laddr.port == port
            for member in family
            for one in member.net_connections(kind="tcp4")
        )
    return False


def is_up(url: str) -> bool:
    """Whether a server answers at an API address, even if only to ask for credentials."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 (the address is our own or the user's)
            return True
    except HTTPError:
        return True
    except OSError:
        return False
