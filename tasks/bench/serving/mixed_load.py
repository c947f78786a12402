"""Mixed load on a server: whole and streamed texts of several lengths, drawn texts, clients that hang up, bad requests."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

WHOLE, STREAM, HANG_UP, DRAWN, BAD = "whole", "stream", "hang-up", "drawn", "bad"
_SHARES = {WHOLE: 0.35, STREAM: 0.25, HANG_UP: 0.15, DRAWN: 0.15, BAD: 0.1}
_BAD_BODIES = (b"{", b"{}", b'{"prompt": "a", "max_tokens": 0}', b'{"prompt": "a", "temperature": -1}')
_TIMEOUT = 120.0
"""Seconds after which a request counts as lost."""

Texts = Mapping[tuple[str, int], frozenset[str]]
"""The right texts of a prompt at a length: one, or one by each way of decoding where the method is lossy."""


@dataclass
class MixedResult:
    """What came back."""

    requests: Counter[str] = field(default_factory=Counter)
    """Sent requests by kind."""
    lost: int = 0
    """Good requests without an answer, and bad ones that were not refused with 4xx."""
    wrong: int = 0
    """Greedy answers that are not the offline text."""


async def mixed_load(url: str, texts: Texts, clients: int, rate: float, seconds: float, seed: int = 0) -> MixedResult:
    """Send requests of all kinds at random for some time.

    Args:
        url: Of the server.
        texts: The prompts and lengths to ask for, with their right greedy texts.
        clients: Clients, each of which waits for its answer.
        rate: Requests a second of all clients together, at most.
        seconds: How long.
        seed: Of the requests.
    """
    import aiohttp

    result, end = MixedResult(), time.monotonic() + seconds
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        load = _Load(session, f"{url}/v1/completions", list(texts.items()), result)
        draws = [random.Random(f"{seed} {one}") for one in range(clients)]  # noqa: S311 (which requests, not a secret)
        await asyncio.gather(*(load.client(drawn, clients / rate, end) for drawn in draws))
    return result


@dataclass
class _Load:
    session: aiohttp.ClientSession
    url: str
    texts: Sequence[tuple[tuple[str, int], frozenset[str]]]
    result: MixedResult

    async def client(self, rng: random.Random, pause: float, end: float) -> None:
        """Send one request after the other until `end`, each at least `pause` seconds after the last one on average."""
        import aiohttp

        while (begun := time.monotonic()) < end:
            [kind] = rng.choices(list(_SHARES), list(_SHARES.values()))
            self.result.requests[kind] += 1
            try:
                good = await self._send(kind, rng)
            except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError, KeyError):
                good = False
            self.result.lost += not good
            await asyncio.sleep(max(0.0, min(begun + rng.uniform(0, 2 * pause), end) - time.monotonic()))

    async def _send(self, kind: str, rng: random.Random) -> bool:
        """Send a request and return whether it was treated as it must be; a wrong text is counted apart."""
        if kind == BAD:
            async with self.session.post(self.url, data=rng.choice(_BAD_BODIES)) as answer:
                await answer.read()
                return 400 <= answer.status < 500
        (prompt, length), right = rng.choice(self.texts)
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": length}
        if kind == DRAWN:
            body |= {"temperature": 0.9, "seed": rng.randrange(1 << 30)}
        if kind in (STREAM, HANG_UP):
            return await self._stream(body, right, hang_up=kind == HANG_UP)
        async with self.session.post(self.url, json=body) as answer:
            if answer.status != 200:
                return False
            [choice] = (await answer.json())["choices"]
        self.result.wrong += kind == WHOLE and choice["text"] not in right
        return True

    async def _stream(self, body: dict[str, Any], right: frozenset[str], *, hang_up: bool) -> bool:
        text = ""
        async with self.session.post(self.url, json={**body, "stream": True}) as answer:
            if answer.status != 200:
                return False
            async for line in answer.content:
                if line.startswith(b"data: [DONE]"):
                    self.result.wrong += text not in right
                    return True
                if line.startswith(b"data: {"):
                    text += json.loads(line.removeprefix(b"data: "))["choices"][0]["text"]
                    if hang_up:
                        answer.close()
                        return True
        return False
