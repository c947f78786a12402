"""The server as a process of its own on loopback: mixed load from many clients, hang-ups, flat memory, an orderly end."""

import json
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tasks.decoding import DecodingPair, load_pair
from tests.calibration import SOURCES
from tests.pair_folders import tiny_pair
from tests.served import until

_START = 120.0
"""Seconds within which a server must be up on a busy machine."""
_UNUSED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For connections that are not encrypted: without it, httpx reads all certificates of authorities for each of them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_pair(tmp_path_factory.mktemp("served"), max_target_tokens=24)


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str
    said: str

    def metric(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics", verify=_UNUSED).text
        return sum(float(value) for value in re.findall(rf"^draftline:{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


def started(folder: Path, *words: str, background: bool = False) -> Server:
    """Start a server, as a shell starts one in the background if so asked: there, Ctrl-C is ignored."""
    command = [sys.executable, "-m", "tasks.serve", "--port", "0", "--pair", str(folder), "--json", *words]
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN if background else signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    said, end = "", time.monotonic() + _START
    while time.monotonic() < end:
        line = process.stderr.readline()
        said += line
        found = re.search(r"on (http://\S+?): ", line)
        if found:
            assert json.loads(process.stdout.readline())["url"] == found[1]
            return Server(process, found[1], said)
        if not line and process.poll() is not None:
            break
    process.kill()
    raise AssertionError(said)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    found = started(folder, "--max-batch", "8", "--threads", "1", background=True)
    yield found
    if found.process.poll() is None:
        end(found, signal.SIGTERM)


def end(server: Server, number: signal.Signals) -> str:
    """End a server by a signal, and return what it says at its end."""
    server.process.send_signal(number)
    _, said = server.process.communicate(timeout=30)
    assert "Traceback" not in said
    return str(said)


@pytest.fixture(scope="module")
def offline(folder: Path) -> dict[str, str]:
    """Greedy texts of the large model: the operating point's output is the same."""
    pair: DecodingPair = load_pair(folder, threads=1)
    found = {}
    for source in SOURCES:
        [output] = pair.generate(source, method="vanilla_large")
        found[source] = output.text
    return found


def ask(server: Server, source: str, **rest: object) -> dict[str, object]:
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": source, **rest}, timeout=60, verify=_UNUSED)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()["choices"][0]
    return found


def stream(server: Server, source: str, pieces: int | None = None) -> str:
    """The text of a stream, or its beginning if the client hangs up after some pieces."""
    text, body = "", {"prompt": source, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60, verify=_UNUSED) as answer:
        for number, line in enumerate(one for one in answer.iter_lines() if one.startswith("data: {")):
            text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
            if number + 1 == pieces:
                break
    return text


def test_it_warms_up_and_says_what_it_found(server: Server) -> None:
    assert re.search(r"drafting (pays here for|does not pay here)", server.said)
    assert "serving toy on http://127.0.0.1:" in server.said
    assert server.metric("seconds_per_token") > 0


def test_under_mixed_load_every_greedy_answer_is_the_offline_one(server: Server, offline: dict[str, str]) -> None:
    """Whole, streamed and drawn texts from 12 clients at once; batches form, and nothing is lost or wrong."""

    def client(number: int) -> list[tuple[str, str]]:
        rng, found = random.Random(number), []
        for _ in range(12):
            source = rng.choice(SOURCES)
            if number % 3 == 0:
                found.append((source, stream(server, source)))
            elif number % 3 == 1:
                found.append((source, str(ask(server, source)["text"])))
            else:
                ask(server, source, temperature=0.9, max_tokens=rng.choice((5, 9)))
        return found

    before = server.metric("request_success_total")
    with ThreadPoolExecutor(12) as pool:
        results = [one for found in pool.map(client, range(12)) for one in found]
    assert server.metric("request_success_total") - before == 12 * 12
    assert len(results) == 8 * 12
    assert [one for one in results if offline[one[0]] != one[1]] == []


def hang_up(server: Server, source: str) -> None:
    """Ask for a stream, and close the connection with pieces unread."""
    body = json.dumps({"prompt": source, "stream": True}).encode()
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port or 0), timeout=60) as connection:
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        assert connection.recv(20).startswith(b"HTTP/1.1 200")


def test_clients_that_hang_up_are_counted_and_free_their_places(server: Server, offline: dict[str, str]) -> None:
    for number in range(10):
        stream(server, SOURCES[number], pieces=1)
    for number in range(40):
        hang_up(server, SOURCES[number])
    assert ask(server, SOURCES[0])["text"] == offline[SOURCES[0]]
    until("an idle server", lambda: server.metric("num_requests_waiting") == server.metric("num_requests_running") == 0)
    assert server.metric("requests_aborted_total") > 0


@pytest.mark.slow
def test_memory_is_flat(server: Server) -> None:
    """A short form of an hour of mixed load."""

    def load(count: int) -> float:
        def one(number: int) -> None:
            if number % 4:
                ask(server, SOURCES[number % 40], temperature=float(number % 2))
            else:
                stream(server, SOURCES[number % 40], pieces=None if number % 8 else 1)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(count)))
        return float(psutil.Process(server.process.pid).memory_info().rss) / 1e6

    load(200)
    before = load(100)
    assert load(300) - before < 25, "megabytes"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_never_drafts_decodes_by_the_large_model_and_ends(folder: Path, number: signal.Signals) -> None:
    server = started(folder, "--warm-up", "0", "--drafting", "never")
    assert "decoding always in one way: by the large model alone" in server.said
    assert ask(server, SOURCES[0])["draftline"]["method"] == "vanilla_large"
    end(server, number)
    assert server.process.returncode in (0, -signal.SIGTERM)


def test_an_interrupt_ends_it_in_order(server: Server) -> None:
    """Also in the background. asyncio would have warned of every fifth piece that it wrote to a socket that a client closed."""
    said = end(server, signal.SIGINT)
    assert "socket.send()" not in said
    assert (server.process.returncode, said.splitlines()[-1]) == (0, "stopped")
