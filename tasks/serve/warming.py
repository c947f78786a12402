"""Times every way of decoding on example texts before the first request, so that no client pays for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Generation
from tasks.decoding.method import Request
from tasks.serve.executing import Batch, Engine
from tasks.serve.pacing import BatchKind, Pacing, Way

_TEXTS, _ROUNDS = 8, 2
"""Least numbers of texts and of batches that each way decodes."""


def warm_up(
    engine: Engine,
    pacing: Pacing,
    rows: Rows,
    request: Request,
    max_batch: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Decode example texts in every way, the smallest batches first.

    Args:
        engine: What decodes.
        pacing: Learns the times.
        rows: Token ids of example texts; none: nothing is done.
        request: Length and sampling that most requests will have.
        max_batch: The largest batch.
        seconds: Begins no further batch after this time.
        clock: Gives seconds.

    Returns:
        The largest number of texts for which every way was timed; 0 where not even one text was.
    """
    end, size, done = clock() + seconds, 1, 0
    while rows and size <= max_batch:
        kind = BatchKind.of(size, greedy=request.sampling.greedy, streamed=False)
        taken: dict[Way, list[float]] = {way: [] for way in pacing.ways(kind)}
        for number in range(1 + max(_ROUNDS, -(-_TEXTS // size))):
            batch = [rows[(number * size + one) % len(rows)] for one in range(size)]
            for way, times in taken.items():
                if clock() >= end:
                    return done
                times.append(_seconds_per_token(engine, batch, request, way, clock))
        # The first batch of a way pays for what its runtime does once.
        pacing.begin(kind, {way: statistics.fmean(times[1:]) for way, times in taken.items()})
        done, size = size, size * 2
    return done


def _seconds_per_token(engine: Engine, rows: Rows, request: Request, way: Way, clock: Callable[[], float]) -> float:
    found: dict[int, Generation] = {}
    begun = clock()
    engine.run(Batch(rows, range(len(rows)), request, found.__setitem__), way)
    return (clock() - begun) / max(1, sum(len(one.tokens) for one in found.values()))


def findings(pacing: Pacing, done: int) -> str:
    """Return one line about what was found: for which numbers of greedy texts drafting is the fastest.

    Args:
        pacing: What the warm-up taught.
        done: The largest number of texts for which every way was timed.
    """
    if pacing.fixed is not None or not pacing.drafts:
        return "decoding always in one way: " + ("by the operating point" if pacing.fixed else "by the large model alone")
    if not done:
        return "not warmed up: which way of decoding is the fastest is found while serving"
    sizes = [1 << power for power in range(done.bit_length())]
    paying = [str(size) for size in sizes if pacing.fastest(BatchKind(size, greedy=True, streamed=False)).drafting]
    if not paying:
        return f"drafting does not pay here for 1 to {done} texts at once; the large model decodes alone"
    return f"drafting pays here for {', '.join(paying)} texts at once; tried up to {done}"
