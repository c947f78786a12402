"""Greedy continuation on the device: each token is fed to the next step where it lies, and the host reads along."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from tasks.decoding.decoder import Continuation, StopRule
from tasks.decoding.distributions import entropy
from tasks.decoding.runtimes.cuda_graphs import fetch, rounded
from tasks.decoding.runtimes.fused_step import StepOutput, StepRunner, SyncPolicy

_UNIT = 64
"""Buffers hold a power of two times this many steps."""

EACH_STEP, ONE_AHEAD, WHOLE_DRAFT = SyncPolicy(), SyncPolicy(syncs_in_flight=1), SyncPolicy(steps_per_sync=_UNIT)


_Reads = tuple[bool, bool]
"""Whether the stop rule reads softmaxes, and whether it reads entropies: what the recorded operations depend on."""


class GreedyLoop:
    """The state of a continuation of one row, all of it on the device."""

    def __init__(self, decoder: StepRunner) -> None:
        self._decoder = decoder
        self._inputs = torch.zeros(1, 2, dtype=torch.long, device=decoder.device)
        """Cached length and next token."""
        self._step = torch.zeros(1, dtype=torch.long, device=decoder.device)
        """Number of the next step."""
        self._found = torch.zeros(3, 0, dtype=torch.float64, device=decoder.device)
        """Token, softmax and entropy of each step."""
        self._logits = torch.zeros(0, decoder.vocabulary, dtype=decoder.model.dtype, device=decoder.device)
        """Logits of the latest steps, a ring buffer."""

    def follow(self, pending: list[int], cached: int, budget: int, until: StopRule, with_logits: bool) -> Continuation:
        """Do what `decoder.GreedyContinuation` describes, for a row with `cached` tokens whose cache is long enough."""
        policy = self._decoder.sync_policy
        self._fit(budget, policy.steps_per_sync * (policy.syncs_in_flight + 1), with_logits)
        reads = until.confidence > 0 or until.cumulative_confidence > 0, until.max_entropy < math.inf
        before = cached + len(pending) - 1
        self._inputs.copy_(torch.tensor([[before, pending[-1]]]), non_blocking=True)
        self._step.zero_()
        seen = _Seen(until, self._decoder.end_tokens)
        waiting: deque[Callable[[], Tensor]] = deque()
        fetched = 0
        for step in range(budget):
            if step == 0 and len(pending) > 1:
                self._record(self._decoder.run([pending], len(pending) - 1), reads)
            else:
                self._run_step(before + step, reads)
            if step + 1 - fetched == policy.steps_per_sync or step + 1 == budget:
                waiting.append(fetch(self._found[:, fetched : step + 1]))
                fetched = step + 1
                if len(waiting) > policy.syncs_in_flight and seen.ends_in(*waiting.popleft()().tolist()):
                    break
        while waiting and not seen.ended:
            seen.ends_in(*waiting.popleft()().tolist())
        count = len(seen.tokens)
        kept = self._logits[:count] if with_logits else self._logits[(count - 1) % len(self._logits)][None]
        return Continuation(seen.tokens, seen.confidence, kept[None].clone(), seen.entropies)

    def _run_step(self, position: int, reads: _Reads) -> None:
        changing = (self._inputs, self._step, self._found, self._logits)
        self._decoder.run_recorded(("greedy", *reads), position, lambda kv_length: self._one(kv_length, reads), changing)

    def _one(self, kv_length: int, reads: _Reads) -> None:
        self._record(self._decoder.predict_step(self._inputs, kv_length), reads)

    def _record(self, output: StepOutput, reads: _Reads) -> None:
        """Write down the prediction and make it the next input."""
        logits, best = output.logits[0], output.best[0]
        confidence, nats = torch.ones_like(best), torch.zeros_like(best)
        if any(reads):
            scores = torch.softmax(logits.float(), -1)
            confidence = scores.amax(-1)
            nats = entropy(scores, torch.log_softmax(logits.float(), -1)) if reads[1] else nats
        self._found.index_copy_(1, self._step, torch.stack([best.double(), confidence.double(), nats.double()]))
        self._logits.index_copy_(0, self._step.remainder(len(self._logits)), logits)
        self._inputs[:, 0].add_(1)
        # After broken logits any token will do: what follows from it is never read.
        self._inputs[:, 1].copy_(best.clamp_min(0))
        self._step.add_(1)

    def _fit(self, budget: int, unseen: int, with_logits: bool) -> None:
        """Fit the buffers to all logits, or to those that may have been written since the host last looked."""
        found, kept = rounded(budget, _UNIT), rounded(budget if with_logits else min(budget, unseen), _UNIT)
        if found > self._found.shape[1] or kept > len(self._logits):
            self._found = self._found.new_zeros(3, max(found, self._found.shape[1]))
            self._logits = self._logits.new_zeros(max(kept, len(self._logits)), self._logits.shape[1])
            self._decoder.forget("greedy")


class _Seen:
    """The part of a continuation that the host has read."""

    def __init__(self, until: StopRule, ends: frozenset[int]) -> None:
        self.tokens: list[int] = []
        self.confidence: list[float] = []
        self.entropies: list[float] = []
        self.ended = False
        self._until = until
        self._ends = ends | {-1}
        self._cumulative_confidence = 1.0

    def ends_in(self, tokens: list[float], confidence: list[float], entropies: list[float]) -> bool:
        """Read on, up to where an end token, the stop rule or a broken step ends it; return whether one does."""
        until = self._until
        for token, softmax, nats in zip(tokens, confidence, entropies, strict=True):
            self.tokens.append(int(token))
            self.confidence.append(softmax)
            self.entropies.append(nats)
            self._cumulative_confidence *= softmax
            unsure = softmax <= until.confidence or self._cumulative_confidence < until.cumulative_confidence
            self.ended = int(token) in self._ends or unsure or nats > until.max_entropy
            if self.ended:
                break
        return self.ended
