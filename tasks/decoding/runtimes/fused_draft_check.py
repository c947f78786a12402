"""Draft checks on the device: one piece of work runs the model and applies the rule; the host fetches a few numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.decoding.acceptance_rules import first_rejected_agrees, next_accepted
from tasks.decoding.decoder import CheckedDraft, GreedyAcceptance, Step
from tasks.decoding.distributions import entropy, probability, rank
from tasks.decoding.runtimes.cuda_graphs import fetch
from tasks.decoding.runtimes.fused_step import StepOutput, StepRunner

_LONGEST = 16
"""Drafted tokens up to which a check is recorded as a graph."""


_Kind = tuple[bool, bool, bool, int]
"""What recorded operations depend on: does the rule read scores and ranks, is it `first_only`, its pardon's window or 0."""


@dataclass(frozen=True)
class _CheckedOnDevice:
    """A draft of one row after its check, on the device."""

    output: StepOutput
    """The predictions after the token before the draft and after each drafted one."""
    numbers: Tensor
    """(drafted + 2,), int64: the likeliest token at each of those positions, then the number of accepted tokens."""


def _numbers(rule: GreedyAcceptance) -> tuple[float, ...]:
    least = math.inf if rule.pardon is None else rule.pardon.min_entropy
    return rule.max_surprisal, rule.min_share, rule.max_gap, rule.min_score, rule.max_excess, least, rule.max_rank


class DraftChecker:
    """Checks drafts of one row; keeps the rule and the draft where recorded graphs read them."""

    def __init__(self, decoder: StepRunner) -> None:
        self._decoder = decoder
        self._inputs = torch.zeros(1, 2 + _LONGEST, dtype=torch.long, device=decoder.device)
        """Cached length, the token before the draft, the draft."""
        self._rule: GreedyAcceptance | None = None
        self._bounds = torch.zeros(8, device=decoder.device)
        """The rule: whether the likeliest token is accepted, then what `_numbers` gives; float32, as scores are."""

    def check_draft(self, pending: list[int], drafted: list[int], cached: int, rule: GreedyAcceptance) -> CheckedDraft:
        """Do what `decoder.DraftCheck` describes, for a row with `cached` tokens whose cache is long enough for all of it.

        A -1 among the step's `best` reports broken logits.
        """
        if rule != self._rule:
            self._bounds.copy_(torch.tensor([float(rule.keep_agreed), *_numbers(rule)]), non_blocking=True)
            self._rule = rule
        kind = rule.reads_scores, rule.max_rank > 0, rule.first_only, 0 if rule.pardon is None else rule.pardon.window
        checked = self._check(pending, drafted, cached, kind)
        numbers = fetch(checked.numbers)
        # Copied before anything else runs, while the numbers are on their way.
        logits, hidden = checked.output.logits.clone(), checked.output.hidden.clone()
        *best, accepted = numbers().tolist()
        return CheckedDraft(Step(logits, [len(best)], hidden, best=[best]), accepted, best[accepted])

    def _check(self, pending: list[int], drafted: list[int], cached: int, kind: _Kind) -> _CheckedOnDevice:
        """Run a graph recorded for the draft's length; after a prompt, whose length may be any, run without one."""
        count = len(drafted)
        if len(pending) > 1 or count > _LONGEST:
            output = self._decoder.run([pending + drafted], len(pending) - 1)
            return self._apply(output, torch.tensor(drafted, dtype=torch.long, device=self._inputs.device), kind)
        inputs = self._inputs[:, : 2 + count]
        inputs.copy_(torch.tensor([[cached, *pending, *drafted]]), non_blocking=True)
        checked: _CheckedOnDevice = self._decoder.run_recorded(
            ("check", count, *kind),
            cached + count,
            lambda kv_length: self._apply(self._decoder.predict_step(inputs, kv_length), inputs[0, 2:], kind),
        )
        return checked

    def _apply(self, output: StepOutput, drafted: Tensor, kind: _Kind) -> _CheckedOnDevice:
        """Apply the rule to `drafted` (drafted,), int64; surprisals are computed as the rules on the host compute them."""
        best, (reads_scores, ranks, first_only, window) = output.best[0], kind
        agrees = best[:-1] == drafted
        keep_agreed, max_surprisal, min_share, max_gap, min_score, max_excess, pardon_entropy, max_rank = self._bounds
        accept = agrees & (keep_agreed > 0)
        if reads_scores:
            scores = torch.softmax(output.logits[0, :-1], -1, dtype=torch.float32)
            drafted_scores = probability(scores, drafted)
            highest = scores.amax(-1)
            surprisals = -drafted_scores.log()
            accept = accept | (surprisals <= max_surprisal) | (highest - drafted_scores <= max_gap)
            accept = accept | (drafted_scores >= min_share * highest) | (drafted_scores >= min_score)
            nats = entropy(scores, scores.log())
            accept = accept | (surprisals - nats <= max_excess)
            if ranks:
                accept = accept | (rank(output.logits[0, :-1], drafted[:, None])[:, 0] < max_rank)
            if window:
                accept = accept | ((nats >= pardon_entropy) & next_accepted(accept, window))
        if first_only:
            accept = accept | first_rejected_agrees(accept, agrees)
        return _CheckedOnDevice(output, torch.cat([best, accept.long().cumprod(0).sum(0, keepdim=True)]))
