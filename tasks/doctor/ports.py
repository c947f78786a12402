"""Checks the ports of this machine's loopback interface: MLflow's pages, Prefect's server, and any at all."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import re
import socket
from pathlib import Path

from tasks.doctor.facts import Facts
from tasks.doctor.finding import OK, WARNING, Check, Finding

LOOPBACK = "127.0.0.1"
PREFECT_PORT = 4200
"""Where `flows.server` starts Prefect's server if it can."""
_SECONDS = 2.0
_PORTS, _NEAR = 1 << 16, 100
_DEFAULT = re.compile(r"^PORT \?= (\d+)$", re.MULTILINE)


def loopback(_: Facts) -> Finding:
    """Whether a process can talk to another one of this machine."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=_SECONDS), server.accept()[0]:
                return Finding(OK, f"{LOOPBACK} answers")
    except OSError as error:
        return Finding(WARNING, f"no connection to {LOOPBACK}: {error}", "allow connections on the loopback interface")


def ui_port() -> int:
    """Return the port of `make ui`: PORT of the environment, which make sets from its command line, or the Makefile's.

    Raises:
        ValueError: PORT is no port.
    """
    found = _DEFAULT.search(Path("Makefile").read_text(encoding="utf-8"))
    text = os.environ.get("PORT") or (found[1] if found else "")
    if not text.isdecimal() or not 0 < int(text) < _PORTS:
        raise ValueError(f"PORT is {text!r}, which is no port; give a number from 1 to 65535")
    return int(text)


def make_ui(_: Facts) -> Finding:
    """Whether `make ui` can listen."""
    port = ui_port()
    reason = taken(port)
    if not reason:
        return Finding(OK, f"{port} is free")
    if _is_mlflow(port):
        return Finding(OK, f"{port}: MLflow answers at http://{LOOPBACK}:{port} already")
    free = next((other for other in range(port + 1, min(port + _NEAR, _PORTS)) if not taken(other)), None)
    another = f"run make ui PORT={free or 'NUMBER'}"
    return Finding(WARNING, f"{port}: {reason}", f"{another}, or end the program that listens on {port}")


def prefect(_: Facts) -> Finding:
    """Whether Prefect's server gets its usual port; if not, `flows.server` takes another one."""
    reason = taken(PREFECT_PORT)
    return Finding(OK, f"{PREFECT_PORT}: {reason}; flows take another port" if reason else f"{PREFECT_PORT} is free")


def taken(port: int) -> str:
    """Return why this port of the loopback interface cannot be listened on; empty if it can."""
    # Where addresses may be reused, some systems let two programs listen on one port.
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=_SECONDS):
        return "another program listens on it"
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        return "another program has it" if error.errno == errno.EADDRINUSE else str(error.strerror)
    return ""


def _is_mlflow(port: int) -> bool:
    """Whether an MLflow server answers there: its page names it."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_SECONDS)
    try:
        connection.request("GET", "/")
        return b"<title>MLflow</title>" in connection.getresponse().read(65536)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


CHECKS = (
    Check("loopback", "MLflow's and Prefect's servers, and training on several processes", loopback),
    Check("port of make ui", "make ui", make_ui),
    Check("port of Prefect", "python -m flows.pipeline and flows.serve", prefect),
)
