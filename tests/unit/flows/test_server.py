"""The port of Prefect's own server: no two servers of a machine share one, whoever starts or is killed meanwhile."""

from __future__ import annotations

import contextlib
import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import server
from tasks import supervisor
from tasks.errors import InputError
from tests.services import HOST, free_port


@pytest.fixture(autouse=True)
def usual_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """The usual port of this test, which no other program has."""
    port = free_port()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(server, "_USUAL_PORT", port)
    return port


def test_the_usual_port_belongs_to_one_server_also_while_it_does_not_listen(usual_port: int) -> None:
    with contextlib.ExitStack() as first:
        assert server._free_port(first) == usual_port
        with contextlib.ExitStack() as second:
            assert server._free_port(second) != usual_port
    with contextlib.ExitStack() as third:
        assert server._free_port(third) == usual_port


def test_a_port_that_another_program_has_is_not_taken(usual_port: int) -> None:
    with socket.create_server((HOST, usual_port)), contextlib.ExitStack() as stack:
        assert server._free_port(stack) != usual_port


@contextlib.contextmanager
def another_program(port: int) -> Iterator[None]:
    """A program that answers on a port."""
    with http.server.ThreadingHTTPServer((HOST, port), http.server.BaseHTTPRequestHandler) as program:
        threading.Thread(target=program.serve_forever, daemon=True).start()
        yield
        program.shutdown()


def answering(port: int) -> subprocess.Popen[bytes]:
    """A server that starts; it ends where its port is taken."""
    command = [sys.executable, "-m", "http.server", str(port), "--bind", HOST]
    return supervisor.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_port_that_is_taken_before_the_server_listens_is_given_up(
    usual_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:

        def start(port: int, _: Path) -> subprocess.Popen[bytes]:
            if port == usual_port:
                stack.enter_context(another_program(port))
            return answering(port)

        monkeypatch.setattr(server, "_start_server", start)
        found, url = server._first_up(tmp_path / "log", stack)
        assert found.process.poll() is None
        assert f":{usual_port}/" not in url and server.is_up(url)


def test_a_server_that_does_not_start_is_named_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_start_server", lambda *_: supervisor.start([sys.executable, "-c", "raise SystemExit(3)"]))
    with contextlib.ExitStack() as stack, pytest.raises(InputError, match=r"did not start within .* its log is .*/log"):
        server._first_up(tmp_path / "log", stack)
