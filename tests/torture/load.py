"""Mixed load on a server by many clients at once, some of them hostile, while the server is frozen, ended and killed.

`python -m tests.torture.load --minutes 10 --clients 256` serves a tiny pair on loopback. Each client asks again and again in
one of the ways of `WAYS`: whole and streamed texts, several at once, and what a server meets in the open: a wrong key, a text
of a million characters, half a request, a client that leaves before its answer. Every few seconds the server is frozen, told
to end or killed, and started again at the same address. The last line is JSON; the exit status is 1 unless `lost`, `wrong`,
`hung` and `errors` are all 0:

- `lost`: requests to a server that lived all the time which got no answer;
- `wrong`: texts that are not the offline ones, and refusals without their status or their `Retry-After`;
- `hung`: connections that were still open two minutes after they had to end;
- `errors`: answers 5xx of a server that was not about to end, and tracebacks in its log.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks import supervisor
from tasks.console import log, set_up
from tasks.decoding import load_pair
from tests.calibration import SOURCES
from tests.pair_folders import tiny_pair
from tests.services import HOST, free_port

_KEY = "a key of the load test"
_PATIENCE, _GRACE = 3.0, 120.0
"""Seconds: what the server allows for headers and body; and how much longer the longest wait of a busy machine may be."""
_QUEUE = 16
"""Of waiting texts: fewer than the clients send at once, so that some are told to come back."""


@dataclass
class Server:
    """A server that is started again and again at one address."""

    folder: Path
    pair: Path
    port: int = field(default_factory=free_port)
    disturbed: int = 0
    """Rises with each fault; a request during which it rises may fail."""
    _process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start the server and wait until it answers."""
        words = ["--pair", str(self.pair), "--port", str(self.port), "--threads", "1", "--warm-up", "1"]
        words += ["--patience", str(_PATIENCE), "--max-queue", str(_QUEUE)]
        with self.log.open("ab") as output:
            # The server itself, not a supervisor of it: the faults are for the process that serves.
            environment = os.environ | {"DRAFTLINE_API_KEY": _KEY}
            command = [sys.executable, "-m", "tasks.serve", *words]
            self._process = subprocess.Popen(command, env=environment, stderr=output, preexec_fn=supervisor.die_with_parent)
        while (await exchange(self.port, _get("/health"))).status != 200:
            assert self._process.poll() is None, self.log.read_text(errors="replace")[-2000:]
            await asyncio.sleep(0.2)

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.folder / "server.log"

    async def disturb(self, fault: str) -> None:
        """Freeze the server for a moment, or end it and start it again."""
        assert self._process is not None
        self.disturbed += 1
        if fault == "freeze":
            self._process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(2)
            self._process.send_signal(signal.SIGCONT)
        else:
            self._process.send_signal(signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            await asyncio.to_thread(self._process.wait, _GRACE)
            await self.start()
        # What began before this moment met the fault, what begins from now on does not.
        self.disturbed += 1

    def stop(self) -> None:
        """End the server."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_GRACE)


@dataclass
class Answer:
    """What came back over a connection: status 0 where nothing did."""

    status: int = 0
    head: str = ""
    body: bytes = b""
    hung: bool = False


async def exchange(port: int, sent: bytes, read: int = -1, *, close: bool = False) -> Answer:
    """Send bytes over a new connection and read until the server closes it, or leave after `read` bytes of its answer.

    With `close` this side of the connection ends with what is sent.
    """
    try:
        async with asyncio.timeout(_PATIENCE + _GRACE), _connection(port) as (reader, writer):
            writer.write(sent)
            await writer.drain()
            if close:
                writer.write_eof()
            received = await reader.read(read)
    except TimeoutError:
        return Answer(hung=True)
    except OSError:
        return Answer()
    head, _, body = received.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    return Answer(int(words[1]) if len(words) > 1 else 0, head.decode("latin-1").lower(), body)


@contextlib.asynccontextmanager
async def _connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        yield reader, writer
    finally:
        writer.close()


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()


def _post(body: object, key: str = _KEY) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def _texts(answer: Answer) -> list[str]:
    """Return the texts of an answer, whole or streamed.

    Raises:
        ValueError: the answer was cut off, or the server said in it that it stops.
    """
    # The lines of a stream's events are whole in its chunks.
    events = [json.loads(line[6:]) for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
    if events and b"data: [DONE]" not in answer.body:
        raise ValueError("a stream without its end")
    found: dict[int, str] = {}
    for event in events or [json.loads(answer.body)]:
        if "error" in event:
            raise ValueError(event["error"]["message"])
        for choice in event["choices"]:
            found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return [found[index] for index in sorted(found)]


@dataclass
class Way:
    """One way of asking: what is sent, and which status is right for it (0: the connection may just end)."""

    name: str
    make: Callable[[list[str]], bytes]
    statuses: tuple[int, ...] = (200, 429)
    texts: int = 1
    read: int = -1
    close: bool = False


_WHOLE = Way("whole", lambda texts: _post({"prompt": texts[0]}))
WAYS = [
    *[_WHOLE] * 6,
    *[Way("streamed", lambda texts: _post({"prompt": texts[0], "stream": True}))] * 4,
    *[Way("several", lambda texts: _post({"prompt": texts}), texts=5)] * 2,
    Way("drawn", lambda texts: _post({"prompt": texts[0], "temperature": 1.0, "seed": 1, "max_tokens": 8}), texts=0),
    Way("leaves at once", lambda texts: _post({"prompt": texts}), (0,), 8, 0),
    Way("leaves its stream", lambda texts: _post({"prompt": texts[0], "stream": True}), (200, 429), 0, 200),
    Way("half a body", lambda texts: _post({"prompt": texts[0]})[:-4], (408,)),
    Way("half a body, half closed", lambda texts: _post({"prompt": texts[0]})[:-4], (0, 400), close=True),
    Way("half a head", lambda texts: _post({"prompt": texts[0]})[:60], (0,)),
    Way("a million characters", lambda texts: _post({"prompt": texts[0] * (1_000_000 // len(texts[0]))}), (400,)),
    Way("two million bytes", lambda _: _post(b"x" * 2_000_000), (413, 0)),
    Way("no JSON", lambda _: _post(b"\xff{"), (400,)),
    Way("a wrong key", lambda texts: _post({"prompt": texts[0]}, "wrong"), (401,)),
]


@dataclass
class Load:
    """The clients, and the counts of what became of their requests."""

    server: Server
    offline: dict[str, str]
    counts: Counter[str] = field(default_factory=Counter)
    slowest_health: float = 0.0

    async def client(self, rng: random.Random, end: float) -> None:
        """Ask in one way after another until the end; a client that is told to come back later does."""
        while time.monotonic() < end:
            way = rng.choice(WAYS)
            texts = rng.sample(SOURCES, max(way.texts, 1))
            before = self.server.disturbed
            answer = await exchange(self.server.port, way.make(texts), way.read, close=way.close)
            self.count(way, texts, answer, peaceful=before == self.server.disturbed and before % 2 == 0)
            await asyncio.sleep(1.0 if answer.status in (0, 429) else rng.random() / 4)

    def count(self, way: Way, texts: list[str], answer: Answer, *, peaceful: bool) -> None:
        """Add one request."""
        self.counts["requests"] += 1
        self.counts["hung"] += answer.hung
        if answer.status == 429:
            self.counts["refused"] += 1
            self._wrong("no Retry-After" if "\r\nretry-after: " not in answer.head else "", way)
        elif answer.status == 200 and way.texts:
            try:
                right = _texts(answer) == [self.offline[text] for text in texts]
            except ValueError:  # as where the server was killed
                right = not peaceful
            self.counts["answered"] += right
            self._wrong("" if right else f"{texts} gave {answer.body[:300]!r}", way)
        if not peaceful:
            self.counts["disturbed"] += 1
        elif answer.status >= 500:
            self.counts["errors"] += 1
            log.warning("%s: %s", way.name, answer.body[:300])
        elif answer.status not in way.statuses and not answer.hung:
            self.counts["lost"] += answer.status == 0
            self._wrong(f"status {answer.status}: {answer.body[:300]!r}" if answer.status else "", way)

    def _wrong(self, reason: str, way: Way) -> None:
        self.counts["wrong"] += bool(reason)
        if reason:
            log.warning("%s: %s", way.name, reason)

    async def look(self, end: float) -> None:
        """Ask for the server's health twice a second, and keep the longest wait in peace."""
        while time.monotonic() < end:
            before, begun = self.server.disturbed, time.monotonic()
            answer = await exchange(self.server.port, _get("/health"))
            if before == self.server.disturbed and before % 2 == 0:
                self.slowest_health = max(self.slowest_health, time.monotonic() - begun)
                self.counts["lost"] += answer.status != 200
            await asyncio.sleep(0.5)

    async def disturb(self, rng: random.Random, peace: float, end: float) -> None:
        """Freeze, end or kill the server after each time of peace."""
        while time.monotonic() + peace < end:
            await asyncio.sleep(peace)
            await self.server.disturb(rng.choice(("freeze", "end", "kill")))
            self.counts["faults"] += 1


async def run(load: Load, clients: int, seconds: float, peace: float, seed: int) -> None:
    """Load the server, with clients that differ by the seed."""
    await load.server.start()
    end = time.monotonic() + seconds
    asking = [load.client(random.Random(f"{seed} {number}"), end) for number in range(clients)]
    await asyncio.gather(*asking, load.look(end), load.disturb(random.Random(seed), peace, end))


@contextlib.contextmanager
def prepared() -> Iterator[Load]:
    """Make a tiny pair in a temporary folder, with what it says offline."""
    with tempfile.TemporaryDirectory(prefix="draftline-load-") as temporary:
        folder = Path(temporary)
        pair = tiny_pair(folder, max_target_tokens=24)
        opened = load_pair(pair, threads=1)
        offline = {source: opened.generate(source, method="vanilla_large")[0].text for source in SOURCES}
        load = Load(Server(folder, pair), offline)
        try:
            yield load
        finally:
            load.server.stop()


def main() -> int:
    """Load the server and print what became of the requests; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--peace", type=float, default=20.0, help="seconds between two faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with prepared() as load:
        asyncio.run(run(load, arguments.clients, 60 * arguments.minutes, arguments.peace, arguments.seed))
        load.counts["errors"] += load.server.log.read_text(errors="replace").count("Traceback")
    names = ("faults", "requests", "answered", "refused", "disturbed", "lost", "wrong", "hung", "errors")
    found: dict[str, Any] = {name: load.counts[name] for name in names}
    print(json.dumps(found | {"slowest_health_ms": round(1000 * load.slowest_health)}))
    return int(any(found[name] for name in ("lost", "wrong", "hung", "errors")))


if __name__ == "__main__":
    set_up()
    raise SystemExit(main())
