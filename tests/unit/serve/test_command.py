"""The command of the server, its address, and the garbage that requests leave."""

from __future__ import annotations

import gc
import socket
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.errors import stage
from tasks.serve import __main__ as command
from tasks.serve.__main__ import address_of, listen, set_startup_aside


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of the error."""
    monkeypatch.setattr(sys, "argv", ["serve", *words])
    with pytest.raises(SystemExit) as end, stage():
        command.main()
    assert end.value.code == 2
    [error] = [one for one in capsys.readouterr().err.splitlines() if one.startswith("error: ")]
    return error


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "name what to serve by one of --task, --pair, or --large with --small"),
        (["--task", "a", "--pair", "b"], "name what to serve by one of"),
        (["--large", "a"], "--small is missing"),
        (["--task", "nowhere"], "results/nowhere/pair is missing; make it with dvc repro report@nowhere"),
        (["--pair", "nowhere"], "nowhere/pair.json cannot be read"),
        (["--pair", "nowhere", "--max-batch", "0"], "--max-batch is 0; it must be at least 1"),
        (["--pair", "nowhere", "--warm-up", "-1"], "--warm-up is -1.0; it must be at least 0"),
        (["--pair", "nowhere", "--port", "70000"], "--port is 70000; it must be from 0 to 65535"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in refusal(monkeypatch, capsys, *words)


def test_a_task_without_a_pair_is_told_of_those_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for task in ("news", "letters"):
        (tmp_path / "results" / task / "pair").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert refusal(monkeypatch, capsys, "--task", "leters").endswith("; there are pairs of letters, news")


def test_a_wrong_number_format_is_one_line(
    pair_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "dtype is 'int4'; it must be one of" in refusal(monkeypatch, capsys, "--pair", str(pair_folder), "--dtype", "int4")


def test_a_taken_port_is_one_line_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refusal(monkeypatch, capsys, "--pair", "nowhere", "--port", port)
    assert f"cannot listen on 127.0.0.1 port {port} (" in line


def test_an_address_of_another_machine_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot listen on 192.0.2.1" in refusal(monkeypatch, capsys, "--pair", "nowhere", "--host", "192.0.2.1")


@pytest.mark.parametrize(("host", "start"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")])
def test_an_address_can_be_opened_as_it_is_printed(host: str, start: str) -> None:
    with listen(host, 0) as bound:
        assert address_of(bound) == f"{start}{bound.getsockname()[1]}"


def test_answers_do_not_wait_for_an_acknowledgement() -> None:
    """Connections inherit it: without it each answer takes 40 ms longer on a connection that is kept."""
    with listen("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        connection, _ = bound.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class _Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def startup() -> Iterator[list[list[int]]]:
    """What a server with many libraries has made before its first request."""
    found: list[list[int]] = [[] for _ in range(400_000)]
    usual = gc.get_threshold()
    gc.set_threshold(700, 3, 3)  # soon enough for a test
    yield found
    gc.set_threshold(*usual)
    gc.unfreeze()


def full_collections(requests: int = 60_000, under_way: int = 5_000) -> int:
    """Return how often the oldest generation is collected while requests that live long enough to get there leave cycles."""
    before: int = gc.get_stats()[2]["collections"]
    living = deque[_Cycle](maxlen=under_way)
    for _ in range(requests):
        living.append(_Cycle())
    after: int = gc.get_stats()[2]["collections"]
    return after - before


@pytest.mark.usefixtures("startup")
def test_cycles_of_requests_wait_for_a_share_of_their_own_number() -> None:
    gc.collect()
    assert full_collections() == 0, "with the objects of start-up counted: otherwise this test shows nothing"
    set_startup_aside()
    assert full_collections() >= 2
