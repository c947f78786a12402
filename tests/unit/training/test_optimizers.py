"""Adafactor moves weights as that of transformers does, however they are stacked, and goes on where a checkpoint left it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers.optimization import Adafactor as Known

from tasks.training import optimizers
from tasks.training.optimizers import Adafactor, make_optimizer, rate_factor
from tasks.training.settings import TrainingSettings

SHAPES = [(6, 4), (3,), (6, 4), (), (4, 6), (2, 3, 4), (3,), (6, 4), (2, 3, 4), (1, 1)]


def weights(seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=rng).requires_grad_() for shape in SHAPES]


def set_gradients(sets: list[list[Tensor]], step: int, missing: frozenset[int]) -> None:
    """The same gradients everywhere, and none for those that are missing; some are tiny, some huge."""
    rng = torch.Generator().manual_seed(100 + step)
    for place in range(len(SHAPES)):
        gradient = torch.randn(SHAPES[place], generator=rng) * 10.0 ** (step % 5 * 2 - 4)
        for one in sets:
            one[place].grad = None if place in missing else gradient.clone()


@pytest.mark.parametrize("together", [1, 60, 1 << 18])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("relative", [False, True])
def test_adafactor_is_that_of_transformers(
    relative: bool, weight_decay: float, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizers, "_TOGETHER", together)
    ours, theirs = weights(), weights()
    known = Known(theirs, lr=2e-2, scale_parameter=relative, relative_step=False, weight_decay=weight_decay)
    stacked = Adafactor(ours, 2e-2, relative=relative, weight_decay=weight_decay)
    for step in range(12):
        set_gradients([ours, theirs], step, frozenset({0, 1, 8}) if step in (0, 3) else frozenset())
        for optimizer in (known, stacked):
            optimizer.param_groups[0]["lr"] = 2e-2 / (step + 1)
            optimizer.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=1e-7)
    moved = [(one - start).abs().max().item() for one, start in zip(ours, weights(), strict=True)]
    assert min(moved) > 1e-3


def test_a_zero_gradient_moves_nothing_and_stays_finite() -> None:
    ours = weights()
    optimizer = Adafactor(ours, 1e-2)
    for weight in ours:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for weight, start in zip(ours, weights(), strict=True):
        assert torch.equal(weight, start)


def test_a_saved_state_resumes_to_the_bit(tmp_path: Path) -> None:
    whole = weights()
    optimizer = Adafactor(whole, 1e-2, relative=True)
    resumed: list[Tensor] = []
    for step in range(6):
        if step == 3:
            resumed = [weight.detach().clone().requires_grad_() for weight in whole]
            torch.save(optimizer.state_dict(), tmp_path / "state.pt")
        set_gradients([whole], step, frozenset({2}) if step < 2 else frozenset())
        optimizer.step()
    again = Adafactor(resumed, 1.0)
    again.load_state_dict(torch.load(tmp_path / "state.pt"))
    for step in range(3, 6):
        set_gradients([resumed], step, frozenset())
        again.step()
    assert all(torch.equal(one, other) for one, other in zip(resumed, whole, strict=True))


def test_the_settings_choose_the_optimizer_and_its_parameters() -> None:
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    chosen = make_optimizer(model, TrainingSettings(optimizer="adafactor", learning_rate=0.25, weight_decay=0.5))
    assert isinstance(chosen, Adafactor)
    assert [weight.shape for weight in chosen.param_groups[0]["params"]] == [(2, 3)]
    assert (chosen.param_groups[0]["lr"], chosen.param_groups[0]["weight_decay"]) == (0.25, 0.5)
    other = make_optimizer(model, TrainingSettings(optimizer="adamw", learning_rate=0.125))
    assert isinstance(other, torch.optim.AdamW)
    assert other.param_groups[0]["lr"] == 0.125


def test_the_rate_rises_and_falls() -> None:
    settings = TrainingSettings(steps=10, warmup_steps=2, decay="linear")
    assert [rate_factor(settings, step) for step in (0, 1, 2, 6, 10)] == [0.5, 1.0, 1.0, 0.5, 0.0]
    assert rate_factor(TrainingSettings(), 500) == 1.0
