"""The configuration that DeepSpeed receives, the optimisers against the paper, and the schedule."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.training.engine import deepspeed_config, make_optimizer, rate_factor
from tasks.training.settings import TrainingSettings


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_deepspeed_converts_weights_for_float16_alone(precision: str) -> None:
    found = deepspeed_config(TrainingSettings(precision=precision))
    assert found["fp16"] == {"enabled": precision == "float16"}
    # Only the forward pass uses bfloat16: weights and optimiser remain in float32.
    assert "bf16" not in found


def test_what_is_split_and_what_is_kept_in_main_memory() -> None:
    def zero(**changes: Any) -> Any:
        return deepspeed_config(TrainingSettings(optimizer="adamw", **changes))["zero_optimization"]

    cpu = {"device": "cpu"}
    assert zero() == {"stage": 0}
    assert zero(zero_stage=2, offload="optimizer") == {"stage": 2, "offload_optimizer": cpu}
    assert zero(zero_stage=3, offload="optimizer") == {"stage": 3, "offload_optimizer": cpu}
    assert zero(zero_stage=3, offload="parameters") == {"stage": 3, "offload_optimizer": cpu, "offload_param": cpu}


def test_clipping_and_accumulation_are_always_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed clips at 1 where nothing is said, and checks its three batch sizes against each other."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    found = deepspeed_config(TrainingSettings(gradient_clipping=0.0, accumulation=3, batch_size=64))
    assert found["gradient_clipping"] == 0.0
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert [found[name] for name in sizes] == [12, 1, 3]


@pytest.mark.parametrize(("decay", "factors"), [("constant", [0.5, *[1] * 6]), ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25, 0])])
def test_the_rate_rises_is_constant_or_falls(decay: str, factors: list[float]) -> None:
    settings = TrainingSettings(warmup_steps=2, steps=6, decay=decay)
    assert [rate_factor(settings, step) for step in range(7)] == factors


SHAPES = [(6, 4), (3,), (2, 3, 4), (1, 1)]
STEPS = 12
RATE = 0.4
"""Above 1/sqrt(step) from step 7 on, so that the bound of a relative rate counts."""


def gradient(shape: tuple[int, ...], step: int) -> Tensor:
    """Some are tiny, some huge, and one row is zero."""
    rng = torch.Generator().manual_seed(100 + step)
    drawn = torch.randn(shape, generator=rng) * 10.0 ** (step % 5 * 2 - 4)
    return drawn if shape[0] == 1 or len(shape) == 1 else torch.cat([torch.zeros_like(drawn[:1]), drawn[1:]])


def moved_by_the_paper(start: Tensor, *, relative: bool) -> Tensor:
    """Return the weight after all steps of algorithm 4 or 5 of Shazeer and Stern, in float64."""
    weight, rows, columns, squares = start.double(), 0.0, 0.0, 0.0
    for step in range(1, STEPS + 1):
        found = gradient(tuple(start.shape), step).double()
        beta, seen = 1 - step**-0.8, found**2 + 1e-30
        if weight.dim() < 2:
            squares = beta * squares + (1 - beta) * seen
            estimate = squares
        else:
            rows = beta * rows + (1 - beta) * seen.mean(-1, keepdim=True)
            columns = beta * columns + (1 - beta) * seen.mean(-2, keepdim=True)
            estimate = rows * columns / rows.mean(-2, keepdim=True)
        update = found / estimate.sqrt()
        update /= max(1.0, float(update.square().mean().sqrt()))
        rate = min(RATE, step**-0.5) * max(1e-3, float(weight.square().mean().sqrt())) if relative else RATE
        weight = weight - rate * update
    return weight


@pytest.mark.parametrize("relative", [False, True])
def test_adafactor_is_that_of_the_paper(relative: bool) -> None:
    starts = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in SHAPES]
    model = torch.nn.Module()
    for index, start in enumerate(starts):
        model.register_parameter(str(index), torch.nn.Parameter(start.clone()))
    optimizer = make_optimizer(model, TrainingSettings(learning_rate=RATE, relative_rate=relative))
    for step in range(1, STEPS + 1):
        for weight in model.parameters():
            weight.grad = gradient(tuple(weight.shape), step)
        optimizer.step()
    for weight, start in zip(model.parameters(), starts, strict=True):
        known = moved_by_the_paper(start, relative=relative)
        torch.testing.assert_close(weight.double(), known, rtol=2e-5, atol=2e-6)
        assert (weight - start).abs().max() > 1e-2


def test_the_settings_choose_the_optimizer_and_its_parameters() -> None:
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    chosen = make_optimizer(model, TrainingSettings(optimizer="adafactor", learning_rate=0.25, weight_decay=0.5))
    assert [weight.shape for weight in chosen.param_groups[0]["params"]] == [(2, 3)]
    assert (chosen.param_groups[0]["lr"], chosen.param_groups[0]["weight_decay"]) == (0.25, 0.5)
    other = make_optimizer(model, TrainingSettings(optimizer="adamw", learning_rate=0.125))
    assert isinstance(other, torch.optim.AdamW)
    assert other.param_groups[0]["lr"] == 0.125
