"""Weights in a draft window: by hand, from the start of each window and text, and in the losses of both kinds of models."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tasks.alignment.distillation import DivergenceLoss
from tasks.alignment.divergences import divergence, total_variation
from tasks.alignment.position_weights import DecayedSource, ReachedCrossEntropyLoss, decayed, reach
from tasks.alignment.settings import DIVERGENCES
from tasks.models.pruned_head import prune_head
from tasks.training.data import Batch, TokenDataset
from tasks.training.objective import Objective
from tasks.training.predictions import target_positions
from tasks.training.settings import TrainingSettings
from tests.distillation import CAUSAL, DRAFTED, SOURCES, TARGETS, WEIGHTS, Stored, by_single_steps, pair, whole

WINDOW = 2
"""Texts of 4, 2 and 5 tokens: windows that are full, and one that the end of its text cuts."""


def reached(acceptance: list[float]) -> list[float]:
    """The weights of one text, position by position."""
    weights = []
    for place in range(len(acceptance)):
        weight = 1.0
        for earlier in range(place - place % WINDOW, place):
            weight *= acceptance[earlier]
        weights.append(weight)
    return weights


def test_a_position_weighs_the_product_of_the_earlier_ones_of_its_window() -> None:
    acceptance = torch.tensor([0.5, 0.4, 0.1, 0.9, 0.2, 0.7, 0.8])
    # A text of five tokens, then one of two: windows begin at its first and fourth token, and at the second text.
    indices = torch.tensor([0, 1, 2, 3, 4, 0, 1])
    torch.testing.assert_close(reach(acceptance, indices, 3), torch.tensor([1.0, 0.5, 0.2, 1.0, 0.9, 1.0, 0.7]))
    torch.testing.assert_close(reach(acceptance, indices, 8), torch.tensor([1.0, 0.5, 0.2, 0.02, 0.018, 1.0, 0.7]))
    assert reach(acceptance[:0], indices[:0], 3).shape == (0,)


def test_what_is_certainly_rejected_ends_its_window_alone() -> None:
    found = reach(torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0]), torch.arange(5), 3)
    assert found.tolist() == [1.0, 0.0, 0.0, 1.0, 1.0]


def test_no_gradient_flows_through_the_weights() -> None:
    acceptance = torch.tensor([0.5, 0.4], requires_grad=True)
    assert not reach(acceptance, torch.arange(2), 3).requires_grad


@CAUSAL
def test_decay_begins_anew_in_each_window_and_text(causal: bool) -> None:
    batch = decayed(whole(causal), 2, 0.5)
    assert batch.weights is not None
    found = [row[labels >= 0].tolist() for row, labels in zip(batch.weights, batch.labels, strict=True)]
    assert found == [[1.0, 0.5, 1.0, 0.5], [1.0, 0.5], [1.0, 0.5, 1.0, 0.5, 1.0]]
    assert float(batch.weights.sum()) == sum(map(sum, found))
    three = decayed(whole(causal), 3, 0.5).weights
    assert three is not None
    assert three[2][batch.labels[2] >= 0].tolist() == [1.0, 0.5, 0.25, 1.0, 0.5]


@CAUSAL
def test_decay_multiplies_the_weights_that_a_text_has(causal: bool) -> None:
    class One:
        def microbatches(self, step: int) -> list[Batch]:
            return [whole(causal, weights=WEIGHTS)]

    [batch] = DecayedSource(One(), 2, 0.5).microbatches(0)
    assert batch.weights is not None
    expected = [[weight * 0.5 ** (place % 2) for place, weight in enumerate(row)] for row in WEIGHTS]
    found = [row[labels >= 0].tolist() for row, labels in zip(batch.weights, batch.labels, strict=True)]
    assert found == [pytest.approx(row) for row in expected]
    assert float(batch.weights.sum()) == pytest.approx(sum(map(sum, expected)))


@CAUSAL
def test_positions_are_counted_from_the_first_target_of_each_text(causal: bool) -> None:
    drafter, _ = pair(causal)
    assert target_positions(drafter, whole(causal)).indices.tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4]


@CAUSAL
@pytest.mark.parametrize("pruned", [False, True], ids=["all tokens", "draft vocabulary"])
@pytest.mark.parametrize("live", [True, False], ids=["live", "stored"])
@pytest.mark.parametrize("loss", DIVERGENCES)
def test_every_divergence_is_weighted_by_the_acceptance_before_it(loss: str, live: bool, pruned: bool, causal: bool) -> None:
    """The acceptance is Σ min(p, q) over all tokens, those that are not stored as one; q is 0 outside of a draft vocabulary."""
    drafter, large = pair(causal)
    p = by_single_steps(large, causal)
    if pruned:
        prune_head(drafter, DRAFTED)
    q = by_single_steps(drafter, causal)
    options = {} if live else {"stored": Stored(p, 5)}
    weighted = DivergenceLoss(divergence(loss, 0.3), 24, large if live else None, label_weight=0.25, window=WINDOW)
    expected = 0.0
    for index, target in enumerate(TARGETS):
        # The unweighted loss of this text, one position after the other.
        acceptance, losses = [], []
        for place in range(len(target)):
            only = [[float(one == place) for one in range(len(row))] if row is target else [0.0] * len(row) for row in TARGETS]
            batch = whole(causal, weights=only, **options)
            losses.append(weighted.sums(drafter, batch)[0].item())
            here, there = p[index][place].exp(), q[index][place].exp()
            if not live:
                known = p[index][place].topk(5).indices
                here, there = (torch.cat([one[known], 1 - one[known].sum()[None]]) for one in (here, there))
            acceptance.append(float(torch.minimum(here, there).sum()))
        for place, weight in enumerate(reached(acceptance)):
            expected += weight * losses[place] * WEIGHTS[index][place]
    batch = dataclasses.replace(whole(causal, weights=WEIGHTS, **options), progress=0.5)
    assert weighted.sums(drafter, batch)[0].item() == pytest.approx(expected, rel=1e-4)


@CAUSAL
@pytest.mark.parametrize("pruned", [False, True], ids=["all tokens", "draft vocabulary"])
def test_hard_labels_are_weighted_by_the_probability_of_those_before(causal: bool, pruned: bool) -> None:
    drafter, _ = pair(causal)
    if pruned:
        prune_head(drafter, DRAFTED)
    q = by_single_steps(drafter, causal)
    objective = Objective(drafter, TrainingSettings(precision="float32"), ReachedCrossEntropyLoss(WINDOW))
    expected = plain = 0.0
    for target, predicted in zip(TARGETS, q, strict=True):
        acceptance = [float(rows[token].exp()) for rows, token in zip(predicted, target, strict=True)]
        for place, weight in enumerate(reached(acceptance)):
            # A label outside of the draft vocabulary has no probability, is left out, and what follows it is not reached.
            if acceptance[place] > 0:
                expected -= weight * float(predicted[place][target[place]])
                plain -= float(predicted[place][target[place]])
    batch = whole(causal)
    in_training = dataclasses.replace(batch, progress=0.0)
    assert objective.sums(in_training).item() == pytest.approx(expected, rel=1e-4)
    assert objective.sums(batch).item() == pytest.approx(plain, rel=1e-4)
    # The divisor knows nothing of the models: every position that is learnt counts 1.
    assert objective.own_counts([in_training]).tolist() == objective.own_counts([batch]).tolist() == [8.0 if pruned else 11.0]


@CAUSAL
def test_the_gradient_of_a_window_is_that_of_its_weighted_positions(causal: bool) -> None:
    drafter, large = pair(causal)
    p, q = by_single_steps(large, causal), by_single_steps(drafter, causal)
    weights = [
        reached([float(torch.minimum(one.exp(), other.exp()).sum()) for one, other in zip(*rows, strict=True)])
        for rows in zip(p, q, strict=True)
    ]
    by_loss = gradients(drafter, DivergenceLoss(total_variation, 24, large, window=WINDOW), whole(causal), progress=0.0)
    by_text = gradients(drafter, DivergenceLoss(total_variation, 24, large), whole(causal, weights=weights), progress=None)
    unweighted = gradients(drafter, DivergenceLoss(total_variation, 24, large), whole(causal), progress=None)
    assert len(by_loss) > 5
    for found, expected in zip(by_loss, by_text, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)
    assert max(float((one - other).abs().max()) for one, other in zip(by_loss, unweighted, strict=True)) > 1e-3


def gradients(drafter: Any, loss: DivergenceLoss, batch: Batch, progress: float | None) -> list[torch.Tensor]:
    drafter.zero_grad()
    torch.autograd.backward(loss.sums(drafter, dataclasses.replace(batch, progress=progress))[0])
    return [weight.grad.clone() for weight in drafter.parameters() if weight.grad is not None]


def test_a_batch_without_labels_has_no_loss() -> None:
    """Every process runs the model equally often, some of them on such a batch."""
    drafter, large = pair(causal=False)
    batch = TokenDataset(SOURCES, TARGETS, 0).batch([0])
    empty = dataclasses.replace(batch, labels=torch.full_like(batch.labels, -100), progress=0.0)
    for loss in (DivergenceLoss(total_variation, 24, large, window=WINDOW), ReachedCrossEntropyLoss(WINDOW)):
        assert loss.sums(drafter, decayed(empty, WINDOW, 0.5))[0].item() == 0.0
