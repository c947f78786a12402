"""The Gatekeeper loss: against whole forward passes, token by token, and what a step of it does to a prediction."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.alignment.gatekeeper import GatekeeperLoss
from tasks.models.pruned_head import prune_head
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tests.distillation import CAUSAL, DRAFTED, TARGETS, WEIGHTS, by_single_steps, pair, whole, whole_of


def half_right(model: Any, causal: bool) -> list[list[int]]:
    """The texts with the model's own likeliest token at every second position."""
    targets = [list(target) for target in TARGETS]
    for place in range(1, max(map(len, targets)), 2):
        predicted = by_single_steps(model, causal, targets)
        for target, rows in zip(targets, predicted, strict=True):
            if place < len(target):
                target[place] = int(rows[place].argmax())
    return targets


def by_hand(log_q: Tensor, label: int, sure_weight: float) -> float:
    if int(log_q.argmax()) == label:
        return -sure_weight * float(log_q[label])
    return (1 - sure_weight) * float((log_q.exp() * (log_q + math.log(len(log_q)))).sum())


@CAUSAL
@pytest.mark.parametrize("sure_weight", [0.2, 0.7])
def test_a_batch_is_the_sum_over_its_positions(causal: bool, sure_weight: float) -> None:
    drafter, _ = pair(causal)
    targets = half_right(drafter, causal)
    predicted = by_single_steps(drafter, causal, targets)
    found = GatekeeperLoss(24, sure_weight).sums(drafter, whole_of(targets, causal, weights=WEIGHTS))
    right, expected = 0, 0.0
    for rows, target, weights in zip(predicted, targets, WEIGHTS, strict=True):
        for log_q, token, weight in zip(rows, target, weights, strict=True):
            right += int(log_q.argmax()) == token
            expected += weight * by_hand(log_q, token, sure_weight)
    assert 5 <= right < 11
    assert found[0].item() == pytest.approx(expected, rel=1e-4)


def test_a_draft_vocabulary_is_unsure_over_its_own_tokens() -> None:
    drafter, _ = pair(causal=False)
    predicted = by_single_steps(drafter, False)
    batch = whole(False, weights=WEIGHTS)
    prune_head(drafter, DRAFTED)
    objective = Objective(drafter, TrainingSettings(precision="float32"), GatekeeperLoss(24, 0.3))
    expected = sum(
        weight * by_hand(log_q[DRAFTED].log_softmax(-1), DRAFTED.index(token), 0.3)
        for rows, target, weights in zip(predicted, TARGETS, WEIGHTS, strict=True)
        for log_q, token, weight in zip(rows, target, weights, strict=True)
        if token in DRAFTED
    )
    assert objective.sums(batch).item() == pytest.approx(expected, rel=1e-4)


def test_ids_past_the_vocabulary_are_ignored() -> None:
    drafter, _ = pair(causal=False)
    [plain] = GatekeeperLoss(20, 0.5).sums(drafter, whole(False))
    with torch.no_grad():
        drafter.lm_head.weight[20:] += 3.0
    [padded] = GatekeeperLoss(20, 0.5).sums(drafter, whole(False))
    torch.testing.assert_close(padded, plain)


def test_training_makes_a_drafter_sure_where_it_is_right_and_unsure_elsewhere() -> None:
    drafter, _ = pair(causal=False)
    targets = half_right(drafter, False)
    batch, loss = whole_of(targets, False), GatekeeperLoss(24, 0.5)

    def confidences() -> tuple[Tensor, Tensor]:
        rows = torch.cat(by_single_steps(drafter, False, targets))
        right = rows.argmax(-1) == torch.tensor([token for target in targets for token in target])
        return right, rows.exp().max(-1).values

    right, before = confidences()
    optimizer = torch.optim.SGD(drafter.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        [found] = loss.sums(drafter, batch)
        torch.autograd.backward(found)
        optimizer.step()
    still, after = confidences()
    assert torch.equal(still, right)
    assert after[right].mean() > before[right].mean()
    assert after[~right].mean() < before[~right].mean()
