"""How a step is cut into the shares of processes and micro-batches, and that the cutting changes no loss."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tasks.training.data import IGNORED, Batch, TokenDataset
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tasks.training.sources import DatasetSource, split_microbatches
from tests.toys import END, toy_t5

TEXTS = TokenDataset(
    [[5, 6, END], [7, END], [8, 9, 4, 5, END], [6, END], [9, 9, END]],
    [[4, END], [3, 5, 6, 7, 8, END], [END], [2, END], [5, 5, 5, END]],
    0,
)


def in_process(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(world))


def shares(monkeypatch: pytest.MonkeyPatch, indices: list[int], world: int, accumulation: int) -> list[Batch]:
    found = []
    for rank in range(world):
        in_process(monkeypatch, rank, world)
        mine = split_microbatches(TEXTS, indices, accumulation)
        assert len(mine) == accumulation
        found += mine
    in_process(monkeypatch, 0, 1)
    return found


@pytest.mark.parametrize(("world", "accumulation"), [(1, 2), (2, 1), (2, 2), (3, 1), (4, 2)])
def test_the_parts_of_a_step_add_up_to_its_loss(monkeypatch: pytest.MonkeyPatch, world: int, accumulation: int) -> None:
    objective = Objective(toy_t5(3, 1, 2).eval(), TrainingSettings())
    whole = TEXTS.batch(range(5))
    counts = objective.counts([whole])
    parts = shares(monkeypatch, list(range(5)), world, accumulation)
    assert torch.equal(objective.counts(parts), counts)
    added = torch.stack([objective(part, counts) for part in parts]).detach().sum()
    torch.testing.assert_close(added, objective(whole, counts).detach())
    means = [objective(part, objective.counts([part])) for part in parts]
    assert abs(float(torch.stack(means).detach().mean() - added)) > 1e-3, "a mean of means is another loss"


def test_a_share_without_an_example_weighs_nothing_and_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    one, nothing = shares(monkeypatch, [2], 2, 1)
    assert one.labels.tolist() == [[END]]
    assert set(nothing.labels.flatten().tolist()) == {IGNORED}
    objective = Objective(toy_t5(3, 1, 2), TrainingSettings())
    loss = objective(nothing, objective.counts([one]))
    loss.backward()
    assert loss.item() == 0
    gradients = [weight.grad for weight in objective.parameters() if weight.grad is not None]
    assert gradients
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)


def test_an_unlabelled_share_of_weighed_text_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    weighed = TokenDataset(TEXTS.sources, TEXTS.targets, 0, weights=[[0.5] * len(target) for target in TEXTS.targets])
    objective = Objective(toy_t5(3, 1, 2), TrainingSettings())
    found = []
    for rank in range(2):
        in_process(monkeypatch, rank, 2)
        found += split_microbatches(weighed, [1], 1)
    in_process(monkeypatch, 0, 1)
    assert objective.counts(found).tolist() == [3.0]


def test_a_step_in_which_nothing_weighs_has_finite_gradients() -> None:
    batch = dataclasses.replace(TEXTS.batch([0]), weights=torch.zeros(1, 2))
    objective = Objective(toy_t5(3, 1, 2), TrainingSettings())
    loss = objective(batch, objective.counts([batch]))
    (loss * 8).backward()
    assert loss.item() == 0
    assert all(weight.grad.isfinite().all() for weight in objective.parameters() if weight.grad is not None)


def test_fixed_text_follows_its_order() -> None:
    source = DatasetSource(TEXTS, TrainingSettings(batch_size=5))
    (batch,) = source.microbatches(0)
    assert sorted(len(row[row != IGNORED]) for row in batch.labels) == sorted(map(len, TEXTS.targets))
