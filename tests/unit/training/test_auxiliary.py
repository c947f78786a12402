"""The losses of inner layers, heads and classifier, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tasks.training.auxiliary import (
    AuxiliaryLoss,
    classifier_loss_sum,
    cross_entropy_sum,
    exit_loss_sum,
    head_loss_sums,
    layer_weights,
)
from tasks.training.data import IGNORED, Batch
from tasks.training.settings import TrainingSettings


def logits_of(probabilities: list[float], positions: int) -> Tensor:
    """(1, positions, vocabulary): the same prediction everywhere."""
    return torch.tensor(probabilities).log().expand(1, positions, -1)


def labelled(*labels: int, weights: list[float] | None = None) -> Batch:
    """One example; its source does not matter."""
    weighed = None if weights is None else torch.tensor([weights])
    return Batch(torch.ones(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.long), torch.tensor([labels]), weighed)


def test_a_sum_over_real_tokens() -> None:
    logits = logits_of([0.5, 0.25, 0.25], 3)
    assert cross_entropy_sum(logits, labelled(0, 1, IGNORED)).item() == pytest.approx(math.log(2) + math.log(4))
    assert cross_entropy_sum(logits, labelled(0, 1, IGNORED, weights=[0.5, 2.0, 0.0])).item() == pytest.approx(
        4.5 * math.log(2)
    )
    assert cross_entropy_sum(logits, labelled(*[IGNORED] * 3)).item() == 0


@pytest.mark.parametrize(
    ("kind", "layers", "exit_layer", "weights"),
    [
        ("none", 3, 1, {3: 1.0}),
        ("first_last", 8, 1, {1: 0.5, 8: 0.5}),
        ("first_last", 8, 3, {3: 0.5, 8: 0.5}),
        ("weighted", 3, 1, {1: 1 / 6, 2: 2 / 6, 3: 3 / 6}),
        ("weighted", 1, 1, {1: 1.0}),
    ],
)
def test_what_each_layer_weighs(kind: str, layers: int, exit_layer: int, weights: dict[int, float]) -> None:
    assert layer_weights(kind, layers, exit_layer) == pytest.approx(weights)


def test_the_exit_loss_is_the_weighted_sum() -> None:
    predictions = {1: logits_of([0.5, 0.5], 2), 3: logits_of([0.75, 0.25], 2)}
    loss = exit_loss_sum(predictions.__getitem__, labelled(0, 1), {1: 0.5, 3: 0.5})
    assert loss.item() == pytest.approx(0.5 * 2 * math.log(2) + 0.5 * (-math.log(0.75) - math.log(0.25)))


def test_head_j_predicts_the_label_j_positions_ahead() -> None:
    """Labels 0 1 2 and padding: head 1 stands before 1, 2; head 2 before 2; head 3 before nothing but padding."""
    first, second, third = ([0.1, 0.2, 0.7], [0.2, 0.3, 0.5], [0.3, 0.3, 0.4])
    logits = torch.stack([logits_of(head, 4) for head in (first, second, third)], dim=2)
    sums = [loss.item() for loss in head_loss_sums(logits, labelled(0, 1, 2, IGNORED))]
    assert sums == pytest.approx([-(math.log(0.2) + math.log(0.7)), -math.log(0.5), 0.0])


def test_a_head_uses_the_weights_of_the_labels_that_it_predicts() -> None:
    logits = logits_of([0.5, 0.25, 0.25], 3)[:, :, None]
    (head,) = head_loss_sums(logits, labelled(0, 1, 2, weights=[5.0, 1.0, 0.5]))
    assert head.item() == pytest.approx(1.5 * math.log(4))


def test_heads_that_look_past_every_text_lose_nothing() -> None:
    logits = torch.zeros(2, 1, 3, 5, requires_grad=True)
    batch = Batch(torch.ones(2, 1), torch.ones(2, 1), torch.tensor([[1], [1]]))
    losses = head_loss_sums(logits, batch)
    assert [loss.item() for loss in losses] == [0, 0, 0]
    [gradient] = torch.autograd.grad(torch.stack(losses).sum(), [logits])
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_the_classifier_learns_where_a_layer_agrees_with_the_last() -> None:
    """Two layers, two real tokens and one of padding; a confidence of 0 is even odds."""
    confidences = [torch.tensor([[0.0, math.log(3), 50.0]]), torch.tensor([[0.0, 0.0, -50.0]])]
    agreements = [torch.tensor([[True, False, False]]), torch.tensor([[True, True, True]])]
    expected = ((math.log(2) - math.log(0.25)) + 2 * math.log(2)) / 2
    assert classifier_loss_sum(confidences, agreements, labelled(4, 5, IGNORED)).item() == pytest.approx(expected)


def test_terms_and_counts_of_a_trunk_two_heads_and_a_classifier() -> None:
    loss = AuxiliaryLoss(TrainingSettings(draft_heads=2, exit_classifier=True))
    assert loss.term_weights() == [1 / 3, 1 / 3, 1 / 3, 1.0]
    assert loss.counts(labelled(3, 4, 5, IGNORED)) == [3, 2, 1, 3]
    frozen = AuxiliaryLoss(TrainingSettings(draft_heads=2, trunk="frozen"))
    assert frozen.term_weights() == [1 / 2, 1 / 2]
    assert frozen.counts(labelled(3, 4, 5, IGNORED)) == [2, 1]
