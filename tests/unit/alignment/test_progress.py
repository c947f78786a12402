"""The weight of KL over training: at its ends, between them, and outside of training."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tasks.alignment.progress import ProgressSource, kl_weight
from tasks.training.data import Batch

IDS = torch.tensor([[1, 2]])


class Two:
    """Two micro-batches a step."""

    def microbatches(self, step: int) -> list[Batch]:
        return [Batch(IDS, IDS, IDS + step), Batch(IDS, IDS, IDS)]


@pytest.mark.parametrize(
    ("progress", "until", "expected"),
    [
        (0.0, 1.0, 1.0),
        (0.25, 1.0, 0.75),
        (1.0, 1.0, 0.0),
        (0.0, 0.5, 1.0),
        (0.25, 0.5, 0.5),
        (0.5, 0.5, 0.0),
        (0.9, 0.5, 0.0),
        (0.0, 0.0, 0.0),
        (None, 1.0, 0.0),
    ],
)
def test_the_weight_falls_linearly_to_zero(progress: float | None, until: float, expected: float) -> None:
    assert kl_weight(progress, until) == pytest.approx(expected)


def test_progress_runs_from_0_at_the_first_step_to_1_at_the_last() -> None:
    source = ProgressSource(Two(), 5)
    found = [[batch.progress for batch in source.microbatches(step)] for step in range(5)]
    assert found == [[0.0, 0.0], [0.25, 0.25], [0.5, 0.5], [0.75, 0.75], [1.0, 1.0]]
    assert source.microbatches(3)[0].labels.tolist() == [[4, 5]]
    assert ProgressSource(Two(), 1).microbatches(0)[0].progress == 0.0


def test_progress_goes_with_a_batch_to_its_device() -> None:
    batch = dataclasses.replace(Batch(IDS, IDS, IDS), progress=0.5)
    assert batch.to(torch.device("cpu")).progress == 0.5
    assert Batch(IDS, IDS, IDS).to(torch.device("cpu")).progress is None
