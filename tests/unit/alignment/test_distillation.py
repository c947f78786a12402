"""The token-level loss against whole forward passes, token by token, of both kinds of models."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.alignment.distillation import DivergenceLoss
from tasks.alignment.divergences import divergence, forward_kl
from tasks.alignment.settings import LOSSES
from tasks.training.data import Batch, TokenDataset
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tests.architectures import gpt2
from tests.toys import toy_t5

SOURCES = [[5, 6, 1], [7, 1], [8, 9, 4, 1]]
TARGETS = [[3, 4, 5, 1], [7, 1], [2, 2, 6, 4, 1]]
WEIGHTS = [[1.0, 0.1, 0.1, 1.0], [0.5, 0.0], [0.2, 0.2, 1.0, 0.3, 0.3]]
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["encoder-decoder", "decoder-only"])


class Stored:
    """A calibration set's top predictions, made of the distributions themselves."""

    def __init__(self, predicted: list[Tensor], k: int) -> None:
        self._top = [rows.topk(k) for rows in predicted]

    def top_logits(self, example: int) -> tuple[Tensor, Tensor]:
        return self._top[example].indices, self._top[example].values


def pair(causal: bool) -> tuple[Any, Any]:
    """A drafter and a large model."""
    if causal:
        torch.manual_seed(0)
        return gpt2(1).eval(), gpt2(2).eval()
    return toy_t5(1, 1, 1), toy_t5(0, 1, 2)


@torch.inference_mode()
def by_single_steps(model: Any, causal: bool) -> list[Tensor]:
    """log softmax (target positions, vocabulary) of each example, each position from a forward pass of its own."""
    found = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        rows = []
        for place in range(len(target)):
            if causal:
                logits = model(input_ids=torch.tensor([source + target[:place]])).logits
            else:
                begun = torch.tensor([[model.config.decoder_start_token_id, *target[:place]]])
                logits = model(input_ids=torch.tensor([source]), decoder_input_ids=begun).logits
            rows.append(logits[0, -1].log_softmax(-1))
        found.append(torch.stack(rows))
    return found


def whole(causal: bool, **options: Any) -> Batch:
    return TokenDataset(SOURCES, TARGETS, 0, decoder_only=causal, **options).batch(range(3))


@CAUSAL
@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "sequence"])
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
