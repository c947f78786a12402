"""The configuration that DeepSpeed receives, the optimisers against the paper, and the schedule."""

import itertools
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.training.adafactor import PartitionedAdafactor
from tasks.training.engine import deepspeed_config, make_optimizer, rate_factor, tf32
from tasks.training.settings import DEEPSPEED, TrainingSettings


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


def own_file(values: object) -> str:
    """A user's own configuration in the working folder."""
    file = DEEPSPEED / "own.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values), encoding="utf-8")
    return str(file)


def test_the_user_s_own_configuration_is_passed_through_but_for_what_settings_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "4")
    zero = {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "nvme", "nvme_path": "/fast"}}
    own = {"train_batch_size": 64, "gradient_clipping": 1.0, "wall_clock_breakdown": True, "zero_optimization": zero}
    settings: dict[str, Any] = {
        "optimizer": "adamw",
        "zero_stage": 2,
        "deepspeed": own_file(own | {"fp16": {"enabled": False}}),
    }
    assert list(TrainingSettings(**settings).deepspeed_problems()) == []
    with caplog.at_level("INFO"):
        found = deepspeed_config(TrainingSettings(**settings, precision="float16"))
    kept = {
        "wall_clock_breakdown": True,
        "zero_optimization": zero | {"offload_optimizer": {"device": "none", "nvme_path": "/fast"}},
    }
    assert found == deepspeed_config(TrainingSettings(optimizer="adamw", zero_stage=2, precision="float16")) | kept
    assert [record.getMessage() for record in caplog.records] == [
        "deepspeed file data/deepspeed/own.json: train_batch_size is 64; the pipeline sets it to 4, from processes and "
        "accumulation, in micro-batches (batch_size counts texts)",
        'deepspeed file data/deepspeed/own.json: zero_optimization.offload_optimizer.device is "nvme"; the pipeline sets it to '
        '"none", from offload',
        "deepspeed file data/deepspeed/own.json: fp16.enabled is false; the pipeline sets it to true, from precision",
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"zero_optimization": {"stage": 2}}, "where zero_optimization.stage is 2, but zero_stage is 0; set both to one"),
        ({"zero_optimization": False}, "where zero_optimization is no object; write {...}"),
        ([], "where the whole is no object; write {...}"),
        ({"optimizer": {"type": "Adam"}}, "which sets optimizer, but other settings here make that; remove it from the file"),
        ({"scheduler": {}}, "which sets scheduler, but other settings here make that; remove it from the file"),
        *(
            ({name: {"enabled": True}}, f"which enables {name}, but precision decides that and is auto; remove it there")
            for name in ("fp16", "bf16", "torch_autocast")
        ),
    ],
)
def test_an_own_configuration_that_contradicts_the_settings_is_refused(
    values: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = TrainingSettings(deepspeed=own_file(values), precision="auto")
    assert list(settings.deepspeed_problems()) == [f"deepspeed is data/deepspeed/own.json, {said}"]


def test_an_own_configuration_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def problems(name: str) -> list[str]:
        return list(TrainingSettings(deepspeed=name).deepspeed_problems())

    Path(own_file({})).with_name("broken.json").write_text("{", encoding="utf-8")
    assert problems("own.json") == ["deepspeed is own.json; it must be a file in data/deepspeed, whose changes dvc sees"]
    [missing], [broken] = problems("data/deepspeed/none.json"), problems("data/deepspeed/broken.json")
    assert "none.json, which cannot be read (No such file or directory); name a JSON file in data/deepspeed" in missing
    assert "broken.json, which is not JSON: " in broken
    assert problems("data/deepspeed/own.json") == problems("") == []


@pytest.mark.parametrize(("decay", "factors"), [("constant", [0.5, *[1] * 6]), ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25, 0])])
def test_the_rate_rises_is_constant_or_falls(decay: str, factors: list[float]) -> None:
    settings = TrainingSettings(warmup_steps=2, steps=6, decay=decay)
    assert [rate_factor(settings, step) for step in range(7)] == factors


@pytest.mark.parametrize(
    ("device", "precision", "inside"),
    [("cuda", "float32", "tf32"), ("cuda", "bfloat16", "none"), ("cuda", "auto", "none"), ("cpu", "float32", "none")],
)
def test_tf32_ends_with_the_step_that_it_is_for(device: str, precision: str, inside: str) -> None:
    def step() -> None:
        with tf32(TrainingSettings(precision=precision), torch.device(device)):
            assert torch.backends.cuda.matmul.fp32_precision == inside
            raise KeyError

    with pytest.raises(KeyError):
        step()
    assert torch.backends.cuda.matmul.fp32_precision == "none"
    assert torch.get_float32_matmul_precision() == "highest"


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


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("relative", [False, True])
def test_adafactor_in_parts_is_that_of_the_paper(relative: bool, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread is a process with its part of all weights in a row, as ZeRO cuts it."""
    starts = [torch.randn(shape, generator=torch.Generator().manual_seed(0)) for shape in SHAPES]
    offsets = [0, *itertools.accumulate(start.numel() for start in starts)]
    size = math.ceil(offsets.pop() / parts)
    barrier, given = threading.Barrier(parts), dict[int, Tensor]()

    def all_reduce(numbers: Tensor) -> Tensor:
        given[threading.get_ident()] = numbers.clone()
        barrier.wait()
        numbers.copy_(torch.stack([*given.values()]).sum(0))
        barrier.wait()
        return numbers

    monkeypatch.setattr("tasks.training.adafactor.distributed.all_reduce", all_reduce)

    def part_of(tensors: list[Tensor], part: int) -> Tensor:
        row = torch.cat([one.flatten() for one in tensors])
        return torch.nn.functional.pad(row, (0, parts * size - len(row)))[part * size :][:size].clone()

    def moved(part: int) -> Tensor:
        flat = torch.nn.Parameter(part_of(starts, part))
        optimizer = PartitionedAdafactor([flat], RATE, 0.0, relative=relative)
        optimizer.lay_out([one.shape for one in starts], offsets, slice(part * size, (part + 1) * size), flat.device)
        for step in range(1, STEPS + 1):
            flat.grad = part_of([gradient(tuple(start.shape), step) for start in starts], part)
            optimizer.step()
        return flat.detach()

    with ThreadPoolExecutor(parts) as threads:
        found = torch.cat([*threads.map(moved, range(parts))])
    for start, offset in zip(starts, offsets, strict=True):
        known = moved_by_the_paper(start, relative=relative).flatten()
        torch.testing.assert_close(found[offset : offset + start.numel()].double(), known, rtol=2e-5, atol=2e-6)


def test_the_settings_choose_the_optimizer_and_its_parameters() -> None:
    model = torch.nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    chosen = make_optimizer(model, TrainingSettings(optimizer="adafactor", learning_rate=0.25, weight_decay=0.5))
    assert [weight.shape for weight in chosen.param_groups[0]["params"]] == [(2, 3)]
    assert (chosen.param_groups[0]["lr"], chosen.param_groups[0]["weight_decay"]) == (0.25, 0.5)
    other = make_optimizer(model, TrainingSettings(optimizer="adamw", learning_rate=0.125))
    assert isinstance(other, torch.optim.AdamW)
    assert other.param_groups[0]["lr"] == 0.125
