"""A draft judged on the device: its run and its verdict are one piece of work, and the host fetches a few numbers, once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.decoding.decoder import CheckedDraft, GreedyAcceptance, Step
from tasks.decoding.distributions import probability
from tasks.decoding.runtimes.cuda_graphs import fetch
from tasks.decoding.runtimes.fused_step import StepOutput, StepRunner

_LONGEST = 16
"""Drafted tokens up to which a check is recorded."""


@dataclass(frozen=True)
class _Judged:
    """A draft of one row, run and judged, on the device."""

    predicted: StepOutput
    """After the token before the draft and after each drafted one."""
    numbers: Tensor
    """(drafted + 2,), int64: the likeliest token at each of those positions, then how many drafted ones stay."""


class DraftChecker:
    """The rule and the draft that are judged, where recorded work reads them."""

    def __init__(self, decoder: StepRunner) -> None:
        self._decoder = decoder
        self._inputs = torch.zeros(1, 2 + _LONGEST, dtype=torch.long, device=decoder.device)
        """Cached length, the token before the draft, the draft."""
        self._keep: GreedyAcceptance | None = None
        self._rule = torch.zeros(2, device=decoder.device)
        """Distance, and whether what is likeliest stays: float32, as scores are."""

    def check_draft(self, pending: list[int], drafted: list[int], cached: int, keep: GreedyAcceptance) -> CheckedDraft:
        """`Checking.check`, for a row with `cached` tokens whose cache has room for all of it; -1 among `best`: broken."""
        if keep != self._keep:
            self._rule.copy_(torch.tensor([keep.max_surprisal, float(keep.keep_agreed)]), non_blocking=True)
            self._keep = keep
        judged = self._judged(pending, drafted, cached, keep.max_surprisal >= 0)
        arriving = fetch(judged.numbers)
        # Copied before anything else runs, and while the numbers are on their way.
        logits, hidden = judged.predicted.logits.clone(), judged.predicted.hidden.clone()
        *best, kept = arriving()
        return CheckedDraft(Step(logits, [len(best)], hidden, best=[best]), kept, best[kept])

    def _judged(self, pending: list[int], drafted: list[int], cached: int, asks: bool) -> _Judged:
        """Recorded by the draft's length; after a prompt, whose length may be any, the draft is judged as it comes."""
        count = len(drafted)
        if len(pending) > 1 or count > _LONGEST:
            predicted = self._decoder.run([pending + drafted], len(pending) - 1)
            return self._verdict(predicted, torch.tensor(drafted, dtype=torch.long, device=self._inputs.device), asks)
        inputs = self._inputs[:, : 2 + count]
        inputs.copy_(torch.tensor([[cached, *pending, *drafted]]), non_blocking=True)
        judged: _Judged = self._decoder.recorded(
            ("check", count, asks),
            cached + count,
            lambda reach: self._verdict(self._decoder.predicted(inputs, reach), inputs[0, 2:], asks),
        )
        return judged

    def _verdict(self, predicted: StepOutput, drafted: Tensor, asks: bool) -> _Judged:
        """`drafted`: (drafted,), int64; `asks`: whether a distance is asked for, which is as rules on the host compute it."""
        best = predicted.best[0]
        stays = (best[:-1] == drafted) & (self._rule[1] > 0)
        if asks:
            scores = torch.softmax(predicted.logits[0, :-1], -1, dtype=torch.float32)
            stays = stays | (-probability(scores, drafted).log() <= self._rule[0])
        return _Judged(predicted, torch.cat([best, stays.long().cumprod(0).sum(0, keepdim=True)]))
