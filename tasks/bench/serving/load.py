"""Load on a server: so many clients, each of which sends its next text when it has the answer to the last one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class LoadResult:
    """What came back."""

    seconds: float = 0.0
    """From the first request to the last answer."""
    latencies: list[float] = field(default_factory=list)
    """Seconds of each answered request."""
    choices: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Position of the text, and its output."""
    lost: int = 0
    """Requests without an answer of status 200."""

    @property
    def texts_per_second(self) -> float:
        """Goodput: answered texts over the time of all."""
        return len(self.choices) / self.seconds


def load(url: str, prompts: Sequence[str], clients: int) -> LoadResult:
    """Send every prompt once, greedily, from some clients at a time.

    Args:
        url: Of the server.
        prompts: One request each, taken in order.
        clients: Requests that are under way at any time, until the prompts run out.
    """
    return asyncio.run(_load(f"{url}/v1/completions", prompts, clients))


async def _load(url: str, prompts: Sequence[str], clients: int) -> LoadResult:
    import aiohttp

    result, waiting = LoadResult(), list(enumerate(prompts))[::-1]
    connector = aiohttp.TCPConnector(limit=clients)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def client() -> None:
            while waiting:
                position, prompt = waiting.pop()
                begun = time.perf_counter()
                try:
                    async with session.post(url, json={"prompt": prompt}) as answer:
                        found = await answer.json()
                        good = answer.status == 200
                except (aiohttp.ClientError, TimeoutError):
                    good = False
                if not good:
                    result.lost += 1
                    continue
                result.latencies.append(time.perf_counter() - begun)
                result.choices.append((position, found["choices"][0]))

        begun = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        result.seconds = time.perf_counter() - begun
    return result
