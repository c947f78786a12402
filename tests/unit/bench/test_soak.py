"""The soak: the slope of memory, and mixed load that notices lost and wrong answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.bench.serving import soak
from tasks.bench.serving.mixed_load import mixed_load
from tasks.bench.serving.soak import memory_slope, right_texts
from tasks.decoding import load_pair
from tasks.errors import InputError
from tests.pair_folders import tiny_pair

TEXTS = {("a prompt", 4): frozenset({"right"})}


def test_the_slope_of_a_leak_is_inside_its_interval_and_not_nought() -> None:
    seconds = np.arange(0, 3600, 5.0)
    noise = np.random.default_rng(0).normal(0, 1, len(seconds))
    leak = memory_slope(seconds.tolist(), (400 + 12 * seconds / 3600 + noise).tolist())
    assert leak.low < 12 < leak.high
    assert leak.low > 0
    flat = memory_slope(seconds.tolist(), (400 + noise).tolist())
    assert flat.low < 0 < flat.high


def test_readings_that_are_alike_do_not_count_as_many() -> None:
    """The same readings four times over give the same interval, not half of it."""
    seconds = np.arange(0, 1000, 10.0)
    megabytes = 400 + np.random.default_rng(1).normal(0, 1, len(seconds))
    once, often = (memory_slope(np.repeat(seconds, n).tolist(), np.repeat(megabytes, n).tolist()) for n in (1, 4))
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_too_few_readings_are_refused() -> None:
    with pytest.raises(ValueError, match="3 readings do not fill 10 stretches"):
        memory_slope([0.0, 1.0, 2.0], [1.0, 1.0, 1.0])


@contextmanager
def server(text: str = "right", *, refuses: bool = True, ends: bool = True) -> Iterator[str]:
    """A server that answers every good request with one text; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                given = json.loads(body)
                good = given["max_tokens"] > 0 and given.get("temperature", 1) >= 0
            except (ValueError, KeyError):
                good = False
            self.send_response(400 if refuses and not good else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if good and given.get("stream"):
                pieces = [json.dumps({"choices": [{"text": piece}]}) for piece in (text[:2], text[2:])]
                for piece in [*pieces, "[DONE]"] if ends else pieces:
                    self.wfile.write(f"data: {piece}\n\n".encode())
            else:
                self.wfile.write(json.dumps({"choices": [{"text": text}]}).encode())

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Clients hang up on purpose."""

    with Server(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


def load(url: str) -> Any:
    return asyncio.run(mixed_load(url, TEXTS, clients=4, rate=200.0, seconds=1.0))


def test_all_kinds_of_requests_are_sent_and_judged() -> None:
    with server() as url:
        found = load(url)
    assert set(found.requests) == {"whole", "stream", "hang-up", "drawn", "bad"}
    assert (found.lost, found.wrong) == (0, 0)
    with server("other") as url:
        found = load(url)
    assert (found.lost, found.wrong) == (0, found.requests["whole"] + found.requests["stream"])
    with server(refuses=False) as url:
        found = load(url)
    assert (found.lost, found.wrong) == (found.requests["bad"], 0)
    with server(ends=False) as url:
        found = load(url)
    assert (found.lost, found.wrong) == (found.requests["stream"], 0)


def test_a_server_that_is_gone_loses_every_request() -> None:
    with server() as url:
        pass
    found = load(url)
    assert found.lost == sum(found.requests.values()) > 0


def test_right_texts_are_those_of_the_pair_at_three_lengths(tmp_path: Path) -> None:
    pair = load_pair(tiny_pair(tmp_path, max_target_tokens=12))
    texts = right_texts(pair, ["ab"])
    assert {length for _, length in texts} == {3, 6, 12}
    assert texts["ab", 12] == {pair.generate("ab")[0].text}


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--minutes is 0; it must be above 0"):
        soak.main([str(tmp_path), "--minutes", "0"])
    with pytest.raises(InputError, match=r"pair\.json cannot be read"):
        soak.main([str(tmp_path)])
