"""The command of the server, its address, and the garbage that requests leave."""

import gc
import socket
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.serve import __main__ as command
from tasks.serve.__main__ import address_of, listen, set_startup_aside
from tests.commands import runner


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls the command with words that it refuses; gives the one line of the error."""
    run = runner(command.main, monkeypatch, capsys)

    def refusal(*words: object) -> str:
        status, _, said = run(*words)
        assert status == 2
        [error] = [one for one in said.splitlines() if one.startswith("error: ")]
        return error

    return refusal


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
    refusal: Callable[..., str], words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in refusal(*words)


def test_a_task_without_a_pair_a_number_format_and_an_address_that_are_not_there(
    refusal: Callable[..., str], pair_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task in ("news", "letters"):
        (tmp_path / "results" / task / "pair").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert refusal("--task", "leters").endswith("; there are pairs of letters, news")
    assert "dtype is 'int4'; it must be one of" in refusal("--pair", pair_folder, "--dtype", "int4")
    same = ("--large", pair_folder / "large", "--small", pair_folder / "large")
    assert "so that drafts could save nothing; draft by a smaller model, or for a larger one" in refusal(*same, "--port", "0")
    assert "cannot listen on 192.0.2.1" in refusal("--pair", "nowhere", "--host", "192.0.2.1")


def test_a_taken_port_is_one_line_before_anything_is_loaded(refusal: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refusal("--pair", "nowhere", "--port", port)
    assert f"cannot listen on 127.0.0.1 port {port} (" in line


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
