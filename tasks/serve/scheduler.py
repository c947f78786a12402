"""The queue of a server: texts wait here, and one worker thread decodes those that fit together as a batch.

What arrives while a batch runs forms the next one; nothing waits for company. Texts share a batch if they have the same length
limit and sampling, since a batch has one of each. A text whose client has hung up is left out, and a batch that nobody waits
for any more ends at its next turn.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque

from tasks.decoding.generation import Generation
from tasks.decoding.turn import AbandonedError
from tasks.serve.executing import Batch, Engine
from tasks.serve.job import Job
from tasks.serve.metrics import ServerMetrics
from tasks.serve.pacing import BatchKind, Pacing, Way


class QueueFullError(Exception):
    """As many texts wait as the limit allows."""


class Scheduler:
    """Runs jobs on a thread of its own, several at a time where they fit together."""

    def __init__(self, engine: Engine, pacing: Pacing, metrics: ServerMetrics, *, max_batch: int, max_queue: int) -> None:
        """Take what decodes and the limits; `start` begins to work."""
        self._engine, self._pacing, self._metrics = engine, pacing, metrics
        self._max_batch, self._max_queue = max_batch, max_queue
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._examples = itertools.count()
        self._thread = threading.Thread(target=self._work, name="decoding", daemon=True)

    def start(self) -> None:
        """Start the worker."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker after the batch that it decodes; what waits fails."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()
        while self._waiting:
            self._waiting.popleft().failed(RuntimeError("the server stops"))

    @property
    def alive(self) -> bool:
        """Whether the worker runs."""
        return self._thread.is_alive()

    def paces(self) -> dict[BatchKind, dict[Way, float]]:
        """Return the seconds a token of every way of decoding that was tried so far."""
        with self._changed:
            return self._pacing.table()

    def add(self, jobs: list[Job]) -> None:
        """Queue jobs, all or none.

        Raises:
            QueueFullError: more would wait than the limit.
        """
        with self._changed:
            # A client that has hung up holds no place.
            self._waiting = deque(job for job in self._waiting if not job.cancelled.is_set())
            if len(self._waiting) + len(jobs) > self._max_queue:
                raise QueueFullError
            self._waiting.extend(jobs)
            self._metrics.waiting.set(len(self._waiting))
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return
                batch = self._next_batch()
                self._metrics.waiting.set(len(self._waiting))
            if batch:
                self._metrics.running.set(len(batch))
                self._run(batch)
                self._metrics.running.set(0)

    def _next_batch(self) -> list[Job]:
        """Take the oldest job and those behind it that fit."""
        waiting = [job for job in self._waiting if not job.cancelled.is_set()]
        batch = [job for job in waiting[1:] if waiting[0].fits(job)][: self._max_batch - 1]
        batch = [*waiting[:1], *batch]
        chosen = set(map(id, batch))
        self._waiting = deque(job for job in waiting if id(job) not in chosen)
        return batch

    def _run(self, batch: list[Job]) -> None:
        request, streamed = batch[0].request, batch[0].grown is not None
        kind = BatchKind.of(len(batch), greedy=request.sampling.greedy, streamed=streamed)
        way = self._pacing.choose(kind)
        examples = [next(self._examples) if job.example is None else job.example for job in batch]
        method, tokens, begun = self._engine.described(way), 0, time.perf_counter()

        def finish(position: int, generation: Generation) -> None:
            nonlocal tokens
            tokens += len(generation.tokens)
            self._metrics.finished(batch[position], generation, self._engine.ends, drafting=way.drafting)
            batch[position].done(generation, method)

        def watch(position: int, so_far: list[int]) -> None:
            grown = batch[position].grown
            if grown is not None:
                grown(so_far)

        flags = [job.cancelled for job in batch]
        texts = Batch([job.row for job in batch], examples, request, finish, watch if streamed else None, flags)
        try:
            self._engine.run(texts, way)
        except AbandonedError:
            return
        except Exception as error:  # noqa: BLE001 (a failing batch must not end the server)
            for job in batch:
                job.failed(error)
            return
        with self._changed:
            self._pacing.learn(kind, way, time.perf_counter() - begun, tokens)
