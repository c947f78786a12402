"""Judge Decoding: speculative sampling that also accepts what a judge holds for good (Bachmann et al., arXiv 2501.19309)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.decoding.acceptance_rules import AcceptanceRule, speculative_sampling
from tasks.decoding.distributions import full_precision
from tasks.errors import InputError
from tasks.models.extras import Judge, judge_of, state_width

if TYPE_CHECKING:
    from tasks.decoding.method import Pair


def judged(judge: Callable[[Tensor], Tensor], min_judgement: float) -> AcceptanceRule:
    """Accept x with probability min(1, p(x)/q(x)), and always where σ(w·h + b) > δ, else draw from norm(max(0, p - q)).

    h is the target's last hidden state after x. The rule is no function of p and q, so that neither a runtime that applies
    rules by itself nor a replay has it.

    Args:
        judge: Maps states (..., width) to logits (...).
        min_judgement: δ; at 1 nothing is accepted that speculative sampling rejects.
    """

    def pardon(states: Tensor) -> Tensor:
        return torch.sigmoid(full_precision(judge(states))) > min_judgement

    return dataclasses.replace(speculative_sampling, greedy=None, accept_mask=None, judge=pardon)


def judge_of_pair(pair: Pair) -> Judge:
    """Return the judge of a pair, which the small model carries.

    Raises:
        InputError: it has none, or one for the states of another large model.
    """
    drafter, large = pair.small.capabilities.transformers_model, pair.large.capabilities.transformers_model
    judge = None if drafter is None else judge_of(drafter)
    if judge is None:
        raise InputError(
            f"speculative_judge needs a judge, and the {pair.small.name} model has none; train one with align.judge"
        )
    if large is not None and len(judge.weight) != state_width(large):
        raise InputError(
            f"the judge of the {pair.small.name} model reads states of {len(judge.weight)} numbers, but the {pair.large.name} "
            f"model's have {state_width(large)}; train it with this large model"
        )
    return judge
