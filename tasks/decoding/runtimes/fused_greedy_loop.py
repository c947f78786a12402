"""Greedy continuation on the device: each token is fed to the next step where it lies, and the host looks on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from tasks.decoding.decoder import Continuation, StopRule
from tasks.decoding.runtimes.cuda_graphs import fetch
from tasks.decoding.runtimes.fused_cache import rounded
from tasks.decoding.runtimes.fused_step import StepOutput, StepRunner, SyncPolicy

_UNIT = 64
"""Steps are noted in room for no fewer."""


EACH_STEP, ONE_AHEAD, WHOLE_DRAFT = SyncPolicy(), SyncPolicy(syncs_in_flight=1), SyncPolicy(steps_per_sync=_UNIT)


class GreedyLoop:
    """The state of a continuation of one row, all of it on the device."""

    def __init__(self, decoder: StepRunner) -> None:
        self._decoder = decoder
        self._inputs = torch.zeros(1, 2, dtype=torch.long, device=decoder.device)
        """Cached length and next token."""
        self._place = torch.zeros(1, dtype=torch.long, device=decoder.device)
        self._found = torch.zeros(2, 0, dtype=torch.float64, device=decoder.device)
        """Tokens and their softmax, of each place."""
        self._logits = torch.zeros(0, decoder.vocabulary, dtype=decoder.model.dtype, device=decoder.device)
        """Of the latest places, round and round."""

    def follow(self, pending: list[int], cached: int, budget: int, until: StopRule, with_logits: bool) -> Continuation:
        """`Decoder.extend`, for a row with `cached` tokens whose cache has room for all of it."""
        sync_policy = self._decoder.sync_policy
        self._fit(budget, sync_policy.steps_per_sync * (sync_policy.syncs_in_flight + 1), with_logits)
        asks = until.confidence > 0 or until.cumulative_confidence > 0
        before = cached + len(pending) - 1
        self._inputs.copy_(torch.tensor([[before, pending[-1]]]), non_blocking=True)
        self._place.zero_()
        seen = _Seen(until, self._decoder.end_tokens)
        waiting: deque[Callable[[], list[Any]]] = deque()
        looked = 0
        for place in range(budget):
            if place == 0 and len(pending) > 1:
                self._note(self._decoder.run([pending], len(pending) - 1), asks)
            else:
                self._step(before + place, asks)
            if place + 1 - looked == sync_policy.steps_per_sync or place + 1 == budget:
                waiting.append(fetch(self._found[:, looked : place + 1]))
                looked = place + 1
                if len(waiting) > sync_policy.syncs_in_flight and seen.ends_in(*waiting.popleft()()):
                    break
        while waiting and not seen.ended:
            seen.ends_in(*waiting.popleft()())
        count = len(seen.tokens)
        kept = self._logits[:count] if with_logits else self._logits[(count - 1) % len(self._logits)][None]
        return Continuation(seen.tokens, seen.confidence, kept[None].clone())

    def _step(self, position: int, asks: bool) -> None:
        changing = (self._inputs, self._place, self._found, self._logits)
        self._decoder.recorded(("chain", asks), position, lambda reach: self._one(reach, asks), changing)

    def _one(self, reach: int, asks: bool) -> None:
        self._note(self._decoder.predicted(self._inputs, reach), asks)

    def _note(self, predicted: StepOutput, asks: bool) -> None:
        """Writes down what was predicted, and makes it the next input."""
        logits, best = predicted.logits[0], predicted.best[0]
        confidence = torch.softmax(logits.float(), -1).amax(-1) if asks else torch.ones_like(best)
        self._found.index_copy_(1, self._place, torch.stack([best.double(), confidence.double()]))
        self._logits.index_copy_(0, self._place.remainder(len(self._logits)), logits)
        self._inputs[:, 0].add_(1)
        # A broken step goes on from any token; what it gives is never looked at.
        self._inputs[:, 1].copy_(best.clamp_min(0))
        self._place.add_(1)

    def _fit(self, budget: int, unseen: int, with_logits: bool) -> None:
        """Room for what is looked at: all logits, or those that may have been written since the last look."""
        found, kept = rounded(budget, _UNIT), rounded(budget if with_logits else min(budget, unseen), _UNIT)
        if found > self._found.shape[1] or kept > len(self._logits):
            self._found = self._found.new_zeros(2, max(found, self._found.shape[1]))
            self._logits = self._logits.new_zeros(max(kept, len(self._logits)), self._logits.shape[1])
            self._decoder.forget("chain")


class _Seen:
    """What the host knows of a continuation."""

    def __init__(self, until: StopRule, ends: frozenset[int]) -> None:
        self.tokens: list[int] = []
        self.confidence: list[float] = []
        self.ended = False
        self._until = until
        self._ends = ends | {-1}
        self._cumulative_confidence = 1.0

    def ends_in(self, tokens: list[float], confidence: list[float]) -> bool:
        """Reads on, up to where the text, the rule or a broken step ends it; whether it does."""
        for token, sure in zip(tokens, confidence, strict=True):
            self.tokens.append(int(token))
            self.confidence.append(sure)
            self._cumulative_confidence *= sure
            self.ended = (
                int(token) in self._ends
                or sure <= self._until.confidence
                or self._cumulative_confidence < self._until.cumulative_confidence
            )
            if self.ended:
                break
        return self.ended
