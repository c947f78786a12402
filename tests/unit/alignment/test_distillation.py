"""The token-level loss against whole forward passes, token by token, of both kinds of models."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.alignment.distillation import DivergenceLoss
from tasks.alignment.divergences import divergence, forward_kl, total_variation
from tasks.alignment.settings import DIVERGENCES
from tasks.models.pruned_head import prune_head
from tasks.training.data import Batch
from tasks.training.objective import Objective
from tasks.training.predictions import target_log_probs
from tasks.training.settings import TrainingSettings
from tests.distillation import CAUSAL, DRAFTED, TARGETS, WEIGHTS, Stored, by_single_steps, pair, whole


@CAUSAL
@pytest.mark.parametrize("loss", DIVERGENCES)
def test_a_batch_is_the_sum_over_its_positions(loss: str, causal: bool) -> None:
    drafter, large = pair(causal)
    apart = divergence(loss, 0.3)
    distilled = DivergenceLoss(apart, 24, large)
    batch = whole(causal, weights=WEIGHTS)
    [found] = distilled.sums(drafter, batch)
    parts = zip(by_single_steps(large, causal), by_single_steps(drafter, causal), WEIGHTS, strict=True)
    expected = sum(float((apart(p, q) * torch.tensor(weights)).sum()) for p, q, weights in parts)
    assert found.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert distilled.counts(batch) == [pytest.approx(sum(map(sum, WEIGHTS)))]
    assert distilled.counts(whole(causal)) == [11.0]


@CAUSAL
@pytest.mark.parametrize("live", [True, False], ids=["live", "stored"])
def test_labels_are_mixed_in_by_their_weight(causal: bool, live: bool) -> None:
    drafter, large = pair(causal)
    p, q = by_single_steps(large, causal), by_single_steps(drafter, causal)
    loss = DivergenceLoss(forward_kl, 24, large if live else None, label_weight=0.25)
    # 23 of 24 tokens are stored, so that the bucket of the others is the last token alone.
    [found] = loss.sums(drafter, whole(causal, weights=WEIGHTS, stored=None if live else Stored(p, 23)))
    expected = 0.0
    for index, (target, weights) in enumerate(zip(TARGETS, WEIGHTS, strict=True)):
        for place, (token, weight) in enumerate(zip(target, weights, strict=True)):
            soft = float(forward_kl(p[index][place], q[index][place]))
            expected += weight * (0.75 * soft - 0.25 * float(q[index][place][token]))
    assert found.item() == pytest.approx(expected, rel=1e-4)


@CAUSAL
@pytest.mark.parametrize("live", [True, False], ids=["live", "stored"])
def test_kl_turns_into_the_divergence_with_the_progress_of_training(causal: bool, live: bool) -> None:
    """Held-out texts, which have no progress, are measured by the divergence alone."""
    drafter, large = pair(causal)
    p = by_single_steps(large, causal)
    reference = large if live else None
    batch = whole(causal, weights=WEIGHTS, stored=None if live else Stored(p, 5))
    [kl], [tv] = (DivergenceLoss(apart, 24, reference, 0.25).sums(drafter, batch) for apart in (forward_kl, total_variation))
    turning = DivergenceLoss(total_variation, 24, reference, 0.25, kl_until=0.5)
    assert abs(kl.item() - tv.item()) > 0.02 * kl.item()
    for progress, share in ((0.0, 1.0), (0.125, 0.75), (0.5, 0.0), (1.0, 0.0), (None, 0.0)):
        [found] = turning.sums(drafter, dataclasses.replace(batch, progress=progress))
        assert found.item() == pytest.approx(share * kl.item() + (1 - share) * tv.item(), rel=1e-5)


@CAUSAL
def test_gradients_reach_the_drafter_alone(causal: bool) -> None:
    drafter, large = pair(causal)
    [loss] = DivergenceLoss(forward_kl, 24, large).sums(drafter, whole(causal))
    torch.autograd.backward(loss)
    assert all(weight.grad is None for weight in large.parameters())
    assert sum(float(weight.grad.abs().sum()) for weight in drafter.parameters() if weight.grad is not None) > 0


@CAUSAL
def test_stored_predictions_of_all_but_one_token_are_the_live_ones(causal: bool) -> None:
    drafter, large = pair(causal)
    [live] = DivergenceLoss(forward_kl, 24, large).sums(drafter, whole(causal))
    predicted = by_single_steps(large, causal)
    for k, low, high in ((23, 0.999, 1.001), (2, 0.0, 0.999)):
        [found] = DivergenceLoss(forward_kl, 24, None).sums(drafter, whole(causal, stored=Stored(predicted, k)))
        assert low < found.item() / live.item() < high


def test_ids_past_the_vocabulary_are_ignored() -> None:
    """Of a model that is padded with more rows, the softmax is over the tokenizer's ids alone."""
    drafter, large = pair(causal=False)
    [plain] = DivergenceLoss(forward_kl, 20, large).sums(drafter, whole(False))
    with torch.no_grad():
        for model in (drafter, large):
            model.lm_head.weight[20:] += 3.0
    [padded] = DivergenceLoss(forward_kl, 20, large).sums(drafter, whole(False))
    torch.testing.assert_close(padded, plain)


def test_the_engine_does_not_train_the_large_model() -> None:
    drafter, large = pair(causal=False)
    objective = Objective(drafter, TrainingSettings(), DivergenceLoss(forward_kl, 24, large))
    assert {id(weight) for weight in objective.parameters()} == {id(weight) for weight in drafter.parameters()}


def test_a_batch_without_a_reference_is_an_error() -> None:
    drafter, _ = pair(causal=False)
    batch = dataclasses.replace(whole(False), top=None)
    with pytest.raises(ValueError, match="no predictions of the large model"):
        DivergenceLoss(forward_kl, 24, None).sums(drafter, batch)


@CAUSAL
@pytest.mark.parametrize("live", [True, False], ids=["live", "stored"])
@pytest.mark.parametrize("loss", DIVERGENCES)
def test_a_draft_vocabulary_learns_p_given_that_the_token_is_in_it(loss: str, live: bool, causal: bool) -> None:
    """Each position counts by the probability of that; labels outside are left out. Stored are the five likeliest tokens."""
    drafter, large = pair(causal)
    p, q = by_single_steps(large, causal), by_single_steps(drafter, causal)
    apart = divergence(loss, 0.3)
    distilled = DivergenceLoss(apart, 24, large if live else None, label_weight=0.25)
    batch = whole(causal, weights=WEIGHTS, stored=None if live else Stored(p, 5))
    prune_head(drafter, DRAFTED)
    objective = Objective(drafter, TrainingSettings(precision="float32"), distilled)
    expected = count = 0.0
    for index, (target, weights) in enumerate(zip(TARGETS, WEIGHTS, strict=True)):
        for place, (token, weight) in enumerate(zip(target, weights, strict=True)):
            if token not in DRAFTED:
                continue
            here = p[index][place].exp()
            log_q = q[index][place][DRAFTED].log_softmax(-1)
            if live:
                share = here[DRAFTED].sum()
                divergence_here = apart((here[DRAFTED] / share).log(), log_q)
            else:
                known = [int(one) for one in here.topk(5).indices]
                share = 1 - here[[one for one in known if one not in DRAFTED]].sum()
                inside = [one for one in known if one in DRAFTED]
                p_inside, q_inside = here[inside] / share, log_q[[DRAFTED.index(one) for one in inside]].exp()
                divergence_here = apart(*(torch.cat([one, 1 - one.sum()[None]]).log() for one in (p_inside, q_inside)))
            expected += weight * (0.75 * float(share * divergence_here) - 0.25 * float(log_q[DRAFTED.index(token)]))
            count += weight
    assert objective.own_counts([batch]).tolist() == [pytest.approx(count)]
    assert objective.sums(batch).item() == pytest.approx(expected, rel=1e-4)


def test_the_gradient_is_that_of_the_forward_divergence_over_all_tokens() -> None:
    """KL(p|q) over all tokens is this loss and a term without gradient, which is infinite and floored there."""
    drafter, large = pair(causal=True)
    batch = whole(True)
    prune_head(drafter, DRAFTED)
    everywhere = [token in DRAFTED for token in range(24)]
    gradients = []
    for loss in (
        DivergenceLoss(forward_kl, 24, large).sums(drafter, batch)[0],
        sum_of_forward_kl(drafter, large, batch, torch.tensor(everywhere)),
    ):
        drafter.zero_grad()
        torch.autograd.backward(loss)
        gradients.append([weight.grad.clone() for weight in drafter.parameters() if weight.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 5
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def sum_of_forward_kl(drafter: Any, large: Any, batch: Batch, inside: Tensor) -> Tensor:
    """Of the terms that depend on the drafter: those of its own tokens."""
    log_p = target_log_probs(large, batch, 24).detach()
    log_q = target_log_probs(drafter, batch, 24)
    assert bool((log_q[:, ~inside] == -torch.inf).all())
    return (log_p.exp() * (log_p - log_q))[:, inside].sum()


@pytest.mark.parametrize("half", ["float32", "bfloat16"])
@CAUSAL
def test_cross_entropy_leaves_labels_outside_the_draft_vocabulary_out(causal: bool, half: str) -> None:
    drafter, _ = pair(causal)
    q = by_single_steps(drafter, causal)
    prune_head(drafter, DRAFTED)
    objective = Objective(drafter, TrainingSettings(precision=half))
    batch = whole(causal)
    kept = [
        -float(rows[DRAFTED].log_softmax(-1)[DRAFTED.index(token)])
        for predicted, target in zip(q, TARGETS, strict=True)
        for rows, token in zip(predicted, target, strict=True)
        if token in DRAFTED
    ]
    assert len(kept) == 8
    counts = objective.own_counts([batch])
    assert counts.tolist() == [8.0]
    loss = objective(batch, counts)
    assert loss.item() == pytest.approx(sum(kept) / 8, rel=1e-4 if half == "float32" else 0.05)
    torch.autograd.backward(loss)
    assert all(bool(weight.grad.isfinite().all()) for weight in drafter.parameters() if weight.grad is not None)


def test_the_tokens_that_are_learnt_are_counted() -> None:
    drafter, _ = pair(causal=True)
    objective = Objective(drafter, TrainingSettings())
    assert int(objective.target_tokens(whole(True))) == 11
    prune_head(drafter, DRAFTED)
    assert int(objective.target_tokens(whole(True))) == 8
