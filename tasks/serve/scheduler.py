"""The queue of a server: texts wait here, and one worker thread decodes those that fit together as a batch.

What arrives while a batch runs forms the next one; nothing waits for company. Texts share a batch if they have the same length
limit and sampling, since a batch has one of each. A text whose client has hung up is left out, and a batch that nobody waits
for any more ends at its next turn. The metrics are named as engines name them: `vllm:spec_decode_num_draft_tokens_total`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tasks.console import log
from tasks.decoding.generation import Generation
from tasks.decoding.method import Request
from tasks.decoding.turn import AbandonedError, Abandonment
from tasks.serve.pacing import Batch, BatchKind, Engine, Pacing, Way
from tasks.settings import setting, settings


@dataclass(eq=False)
class Job:
    """One text on its way through the server. The callbacks run on the worker thread."""

    row: list[int]
    """Token ids of the source."""
    request: Request
    done: Callable[[Generation, str], None]
    """Takes what was generated and the method that did it."""
    failed: Callable[[Exception], None]
    grown: Callable[[list[int]], bool] | None = None
    """Takes the tokens so far after each turn, and returns whether the text ends there; None where nobody watches it."""
    example: int | None = None
    """Keys the random draws; None: a number of the server's own."""
    arrived: float = field(default_factory=time.perf_counter)
    cancelled: Abandonment = field(default_factory=Abandonment)
    """Set by the server when the client has hung up."""

    def fits(self, other: Job) -> bool:
        """Whether both may share a batch."""
        alike = self.request == other.request and (self.grown is None) == (other.grown is None)
        return alike and (self.example is None and other.example is None)


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class ServerMetrics:
    """The metrics of one server, in a registry of their own. Prometheus' client makes them safe for threads."""

    def __init__(self) -> None:
        """Register everything at zero."""
        self._registry = CollectorRegistry()
        self.waiting = self._gauge("num_requests_waiting", "Texts in the queue")
        self.running = self._gauge("num_requests_running", "Texts of the batch that is decoded")
        self.refused = self._counter("requests_refused", "Requests answered with 4xx, by status", "status")
        self.aborted = self._counter("requests_aborted", "Texts whose client hung up before their end")
        self._prompt = self._counter("prompt_tokens", "Tokens of the sources")
        self._generated = self._counter("generation_tokens", "Tokens of the outputs")
        self._success = self._counter("request_success", "Texts decoded, by the reason that ended them", "finished_reason")
        self._drafts = self._counter("spec_decode_num_drafts", "Drafts that the large model verified")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Drafted tokens")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Drafted tokens that the large model kept")
        self._positions = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Drafts whose token at this position, from 0, was kept", "position"
        )
        self._large = self._counter("large_model_runs", "Runs of the large model")
        self._latency = self._histogram("e2e_request_latency_seconds", "From arrival to the whole text")
        self.first_token = self._histogram("time_to_first_token_seconds", "From arrival to the first streamed tokens")
        labels = ("batch_size", "greedy", "streamed", "drafting", "together")
        self._pace = Gauge("draftline:seconds_per_token", "Moving average by way of decoding", labels, registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"draftline:{name}", text, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"draftline:{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"draftline:{name}", text, registry=self._registry, buckets=_SECONDS)

    def finished(self, job: Job, generation: Generation, ends: frozenset[int], *, drafting: bool) -> None:
        """Count a text."""
        counts = generation.counts
        self._prompt.inc(len(job.row))
        self._generated.inc(len(generation.tokens))
        # Whole before its limit: by an end token or by a stop.
        early = len(generation.tokens) < job.request.max_new_tokens
        self._success.labels("stop" if early else finish_reason(generation, ends)).inc()
        self._large.inc(counts.large_calls)
        self._latency.observe(time.perf_counter() - job.arrived)
        if drafting:
            self._draft_tokens.inc(counts.drafted)
            self._accepted.inc(counts.accepted)
            for (_, kept), number in counts.kept.items():
                self._drafts.inc(number)
                for position in range(kept):
                    self._positions.labels(str(position)).inc(number)

    def paces(self, table: dict[BatchKind, dict[Way, float]]) -> None:
        """Publish what the server knows of its ways of decoding."""
        for kind, ways in table.items():
            for way, seconds in ways.items():
                flags = (kind.greedy, kind.streamed, way.drafting, way.together)
                self._pace.labels(str(kind.size), *(str(flag).lower() for flag in flags)).set(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


def finish_reason(generation: Generation, ends: frozenset[int]) -> str:
    """Return `stop` where the text ended by itself, else `length`."""
    return "stop" if generation.tokens and generation.tokens[-1] in ends else "length"


@settings
class ServerSettings:
    """A server's limits, and how it paces its work."""

    drafting: str = setting("auto: where it is faster.", default="auto", choices=("auto", "always", "never"))
    max_batch: int = setting("Most texts of a batch.", default=32, ge=1)
    max_queue: int = setting("Most texts that wait.", default=256, ge=1)
    max_tokens: int = setting("Most tokens of an output.", default=512, ge=1)
    max_prompts: int = setting("Most texts of a request.", default=64, ge=1)
    max_body: int = setting("Largest request, in bytes.", default=1 << 20, unit="bytes", ge=1)
    patience: float = setting("For a request's headers, then its body.", default=30.0, unit="seconds", gt=0)
    warm_up: float = setting("Longest warm-up, in seconds.", default=20.0, unit="seconds", ge=0)


class StoppedError(RuntimeError):
    """The server stops before a text was decoded."""


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
            self._waiting.popleft().failed(StoppedError("the server stops"))

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

        def watch(position: int, so_far: list[int]) -> bool:
            grown = batch[position].grown
            return grown is not None and grown(so_far)

        flags = [job.cancelled for job in batch]
        texts = Batch([job.row for job in batch], examples, request, finish, watch if streamed else None, flags)
        try:
            self._engine.run(texts, way)
        except AbandonedError:
            return
        except Exception as error:  # noqa: BLE001 (a failing batch must not end the server)
            log.warning("a batch could not be decoded: %s: %s", type(error).__name__, error)
            for job in batch:
                job.failed(error)
            return
        with self._changed:
            self._pacing.learn(kind, way, time.perf_counter() - begun, tokens)
