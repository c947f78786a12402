"""A training step as on a GPU, on a machine without one: forward and loss on tensors without numbers; backward on the CPU."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.alignment.losses import DivergenceLoss, divergence
from tasks.training.data import TokenDataset
from tasks.training.objective import Loss, Objective
from tasks.training.settings import TrainingSettings
from tests.fake_cuda import DEVICE, fake_cuda
from tests.unit.decoding.runtimes.odd import VOCABULARY, model_of
from tests.unit.decoding.runtimes.test_without_a_gpu import KINDS

SETTINGS = TrainingSettings(precision="float32")
LOSSES = ("cross_entropy", "forward_kl", "stored")
WAITS = {
    "tasks/training/objective.py _total_weight: "
    "return float((batch.labels != IGNORED).sum() if batch.weights is None else batch.weights.sum())",
    "tasks/training/objective.py target_positions: labelled = (labels != IGNORED).nonzero(as_tuple=True)",
}
"""Where a step waits for the GPU: labels are counted, for the divisor of a step and for the sizes of what they select."""
POSITIONS = {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
UNTRAINED = {"bart": {"model.shared.weight"}, "marian": POSITIONS}
"""Weights that no gradient reaches: one beside the embeddings of both sides, where these are not tied, and fixed positions."""


class Stored:
    """The large model's stored predictions, of three tokens at each position."""

    def top_logits(self, example: int) -> tuple[Tensor, Tensor]:
        positions = (3, 4)[example]
        return torch.tensor([[4, 5, 6]] * positions), torch.tensor([[-1.0, -2.0, -3.0]] * positions)


def dataset(model: Any) -> TokenDataset:
    data = TokenDataset([[3, 4, 5, 1], [5, 1]], [[6, 7, 1], [8, 9, 4, 1]], 0, decoder_only=not model.config.is_encoder_decoder)
    data.stored = Stored()
    return data


def loss_of(name: str, large: Any) -> Loss | None:
    """The loss of a name; `stored` is a divergence from stored predictions, and takes no large model."""
    if name == "cross_entropy":
        return None
    return DivergenceLoss(divergence("jensen_shannon", 0.5), VOCABULARY, None if name == "stored" else large)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_waits_in_listed_lines(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch, model_of(kind), model_of(kind)) as cuda:
        small, large = cuda.models
        batch = dataset(small).batch([0, 1]).to(DEVICE)
        # One architecture of each kind runs all losses; the others a divergence, for which both models predict.
        for name in LOSSES if kind in ("t5 relu", "llama, llama3") else ("forward_kl",):
            objective = Objective(small, SETTINGS, loss_of(name, large)).train()
            assert objective(batch, objective.counts([batch])).device == DEVICE
        assert cuda.waits == WAITS


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_pass_reaches_every_weight(kind: str) -> None:
    small = copy.deepcopy(model_of(kind))
    batch = dataset(small).batch([0, 1])
    for name in LOSSES:
        objective = Objective(small, SETTINGS, loss_of(name, model_of(kind)))
        objective.zero_grad()
        objective(batch, objective.counts([batch])).backward()
        reached = {
            name for name, weight in small.named_parameters() if weight.grad is not None and bool(weight.grad.isfinite().all())
        }
        assert {name for name, _ in small.named_parameters()} - reached == UNTRAINED.get(kind, set())
