"""The configuration that DeepSpeed receives."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.training.engine import deepspeed_config
from tasks.training.optimizers import rate_factor
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


@pytest.mark.parametrize(
    ("decay", "factors"), [("constant", [0.5, 1, 1, 1, 1, 1, 1]), ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25, 0])]
)
def test_the_rate_rises_is_constant_or_falls(decay: str, factors: list[float]) -> None:
    settings = TrainingSettings(warmup_steps=2, steps=6, decay=decay)
    assert [rate_factor(settings, step) for step in range(7)] == factors
