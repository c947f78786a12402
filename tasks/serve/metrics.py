"""Prometheus metrics of a server, named as engines name them (vLLM: `vllm:spec_decode_num_draft_tokens_total` and so on)."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tasks.decoding.generation import Generation
from tasks.serve.job import Job
from tasks.serve.pacing import BatchKind, Way

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
        self._success.labels(finish_reason(generation, ends)).inc()
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
