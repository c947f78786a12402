"""The Prefect server that a flow reports to: the one in PREFECT_API_URL, or else a local one that ends with this process.

Prefect's own ephemeral server does not run schedules reliably and outlives a killed flow, so `prefect server start` runs as a
child. `flows.serve` announces the address of its server, and other flows report to that server while it is up.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

from filelock import FileLock, Timeout
from prefect.client.orchestration import get_client
from prefect.context import refresh_global_settings_context
from prefect.events.worker import EventsWorker
from prefect.logging.configuration import setup_logging
from prefect.logging.handlers import APILogWorker
from prefect.settings import get_current_settings

from flows import SERVER_STARTUP_SECONDS
from tasks import supervisor
from tasks.console import log
from tasks.errors import InputError

LOOPBACK = "127.0.0.1"
_DRAIN_SECONDS = 10.0
_RESTART_SECONDS = 1.0


class AlreadyLockedError(Exception):
    """Another process owns a lock file; the message is its note, empty if it has not written one yet."""


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[str]:
    """Own the file until the end of the block, which empties it, or until the process dies, which leaves what it wrote into it.

    Yields:
        The note of an owner that died; empty if the last one released the file.

    Raises:
        AlreadyLockedError: another process owns it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise AlreadyLockedError(path.read_text(encoding="utf-8")) from None
    try:
        yield path.read_text(encoding="utf-8")
    finally:
        path.write_text("", encoding="utf-8")
        lock.release()


@contextlib.contextmanager
def prefect_server(*, announce: bool = False) -> Iterator[str]:
    """Yield the API address of a running server, which Prefect uses inside the block.

    Args:
        announce: let other processes use the server that is started here; only one server per `PREFECT_HOME` can do so.

    Raises:
        InputError: the configured server does not answer, the local one does not start, or another one is announced already.
    """
    # What --quiet leaves out of this program's own messages, Prefect leaves out as well, here and in the processes of its runs.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", logging.getLevelName(max(log.level, logging.INFO)))
    setup_logging()
    home = Path(os.environ["PREFECT_HOME"])
    configured = get_current_settings().api.url
    if configured:
        with get_client(sync_client=True) as client:
            error = client.api_healthcheck()
        if error is not None:
            fix = "start it, or unset the variable"
            raise InputError(f"no Prefect server answers at PREFECT_API_URL, {configured}: {error!r}; {fix}")
        yield configured
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_file(home / "served"))
            if not announce:
                stack.close()  # nobody serves; this server is for this flow alone
            url = stack.enter_context(_own_server(home / "server.log"))
            if announce:
                (home / "served").write_text(url, encoding="utf-8")
        except AlreadyLockedError as error:
            url = str(error)
            if announce:
                where = url or "an address not known yet"
                raise InputError(f"a flow is already served from {home} at {where}; stop it first") from None
            if not (url and is_up(url)):
                url = stack.enter_context(_own_server(home / "server.log"))
        # The address is for this process and for those that it starts.
        os.environ["PREFECT_API_URL"] = url
        refresh_global_settings_context()
        try:
            yield url
        finally:
            for worker in (EventsWorker, APILogWorker):  # send buffered logs and task states before the server stops
                worker.drain_all(timeout=_DRAIN_SECONDS)
            del os.environ["PREFECT_API_URL"]
            refresh_global_settings_context()


@contextlib.contextmanager
def _own_server(log_file: Path) -> Iterator[str]:
    """Run a server on a loopback port during the block, and start it again if it is killed; it never outlives this process.

    Raises:
        InputError: it does not start; names the log.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    url = f"http://{LOOPBACK}:{port}/api"
    server = _start_server(port, log_file)
    stopping, lock = threading.Event(), threading.Lock()

    def keep() -> None:
        nonlocal server
        while True:
            status = server.wait()
            if stopping.wait(_RESTART_SECONDS):
                return
            with lock:
                if not stopping.is_set():
                    log.warning("the Prefect server ended with status %s; starting it again", status)
                    server = _start_server(port, log_file)

    try:
        deadline = time.monotonic() + SERVER_STARTUP_SECONDS
        while not is_up(url):
            if server.poll() is not None or time.monotonic() > deadline:
                raise InputError(f"the Prefect server did not start within {SERVER_STARTUP_SECONDS} s; its log is {log_file}")
            time.sleep(0.2)
        threading.Thread(target=keep, name="keeper of the Prefect server", daemon=True).start()
        yield url
    finally:
        with lock:
            stopping.set()
        supervisor.stop(server)


def _start_server(port: int, log_file: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PREFECT_SERVER_API_HOST": LOOPBACK, "PREFECT_SERVER_API_PORT": str(port)}
    with log_file.open("ab") as output:
        command = [sys.executable, "-m", "prefect", "server", "start"]
        return supervisor.start(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _free_port() -> int:
    """Return PREFECT_SERVER_API_PORT, or a port that no program has."""
    if "PREFECT_SERVER_API_PORT" in os.environ:
        return int(os.environ["PREFECT_SERVER_API_PORT"])
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def is_up(url: str) -> bool:
    """Whether a server answers at an API address, even if only to ask for credentials."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 (the address is our own or the user's)
            return True
    except HTTPError:
        return True
    except OSError:
        return False
