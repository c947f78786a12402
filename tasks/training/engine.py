"""Opens DeepSpeed, with optimiser and schedule, for one CPU, one GPU or many processes; the only module that imports it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tasks.console import log
from tasks.errors import InputError
from tasks.training import distributed
from tasks.training.adafactor import PartitionedAdafactor
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

_LINEAR = torch.nn.functional.linear
_EPSILON = 1e-15, 1e-3
"""Of Adafactor. torch squares the first, which gives the 1e-30 of the paper (Shazeer and Stern, 2018, algorithm 6)."""


def create_engine(model: torch.nn.Module, settings: TrainingSettings, device: torch.device) -> DeepSpeedEngine:
    """Return a DeepSpeed engine around `model`, with the optimiser and schedule of `settings`, in the group of all processes.

    The engine averages gradients over processes and micro-batches; `backward` undoes that.
    """
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    # DeepSpeed requires this variable even for one process.
    os.environ.setdefault("LOCAL_RANK", "0")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # DeepSpeed calls functions of torch by names that are deprecated; nothing can be done about it here.
    warnings.filterwarnings("ignore", category=FutureWarning, message=r".*`torch\.distributed\.")
    # A stub in the place of DeepSpeed's autotuner: no training uses it, and it imports MLflow, which takes seconds.
    autotuner = ModuleType("deepspeed.autotuning.autotuner")
    autotuner.__dict__["Autotuner"] = None
    sys.modules.setdefault(autotuner.__name__, autotuner)
    import deepspeed

    if device.type == "cpu":
        # This extension takes a minute to compile and serves only inference over several processes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # 1. The group of all processes, opened here so that one process alone needs no port.
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init(backend)
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    # 2. The engine, with an optimiser and a schedule of ours; DeepSpeed steps both.
    optimizer = make_optimizer(model, settings)
    config = deepspeed_config(settings)
    try:
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            lr_scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(settings, step)),
            config=config,
            dist_init_required=False,
        )
    except (ValueError, TypeError, AttributeError, AssertionError, deepspeed.DeepSpeedConfigError) as error:
        if not settings.deepspeed:
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"DeepSpeed refuses its configuration with {settings.deepspeed}: {reason}; correct the file") from None
    if isinstance(optimizer, PartitionedAdafactor):
        zero = engine.optimizer
        [shapes], [offsets], [size] = zero.round_robin_bit16_groups, zero.round_robin_bit16_offsets, zero.partition_size
        begin = distributed.rank() * size
        optimizer.lay_out([one.shape for one in shapes], offsets, slice(begin, begin + size), engine.device)
    return engine


def deepspeed_config(settings: TrainingSettings) -> dict[str, object]:
    """Return DeepSpeed's configuration. A micro-batch counts as one example, since the loss handles batch sizes itself."""
    own = settings.own_deepspeed()
    zero: dict[str, object] = {"stage": settings.zero_stage}
    offloaded = {"offload_optimizer": settings.offload != "none", "offload_param": settings.offload == "parameters"}
    for part, wanted in offloaded.items():
        if wanted or part in own.get("zero_optimization", {}):
            zero[part] = {"device": "cpu" if wanted else "none"}
    needed = {
        "train_batch_size": distributed.world_size() * settings.accumulation,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": settings.accumulation,
        "gradient_clipping": settings.gradient_clipping,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "fp16": {"enabled": settings.precision == "float16"},
        "steps_per_print": sys.maxsize,
    }
    return _overridden(own, needed, f"deepspeed file {settings.deepspeed}: ")


_DECIDED_BY = {
    "train_batch_size": "processes and accumulation, in micro-batches (batch_size counts texts)",
    "train_micro_batch_size_per_gpu": "batch_size, which counts texts",
    "gradient_accumulation_steps": "accumulation",
    "gradient_clipping": "gradient_clipping",
    "zero_optimization.offload_optimizer.device": "offload",
    "zero_optimization.offload_param.device": "offload",
    "fp16.enabled": "precision",
}
"""What decides a value of DeepSpeed's configuration; other values are fixed."""


def _overridden(own: Mapping[str, Any], needed: Mapping[str, Any], where: str, above: str = "") -> dict[str, Any]:
    """Return the user's own configuration with the values that the pipeline needs, and log each value that is replaced."""
    merged = dict(own)
    for key, value in needed.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and isinstance(own.get(key, {}), dict):
            merged[key] = _overridden(own.get(key, {}), value, where, f"{name}.")
            continue
        if key in own and own[key] != value:
            decided = f", from {_DECIDED_BY[name]}" if name in _DECIDED_BY else ""
            log.info("%s%s is %s; the pipeline sets it to %s%s", where, name, json.dumps(own[key]), json.dumps(value), decided)
        merged[key] = value
    return merged


def make_optimizer(model: torch.nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Return AdamW, or Adafactor without a first moment (Shazeer and Stern, 2018, algorithms 4 and 5).

    torch's Adafactor updates many weights in one call, but its rate is always relative to each weight's root mean square and
    at most 1/sqrt(step), as in the paper. The slower one of `transformers` takes an absolute rate. ZeRO flattens the weights,
    which needs one that knows the matrices in them.
    """
    # Tied weights come once, frozen ones not at all.
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=rate, weight_decay=decay, fused=True)
    if settings.zero_stage:
        return PartitionedAdafactor(weights, rate, decay, relative=settings.relative_rate)
    if settings.relative_rate:
        # Algorithm 5: the rate is relative to the weight.
        return torch.optim.Adafactor(weights, lr=rate, eps=_EPSILON, weight_decay=decay, foreach=True)
    from transformers.optimization import Adafactor

    chosen: torch.optim.Optimizer = Adafactor(weights, lr=rate, weight_decay=decay, scale_parameter=False, relative_step=False)
    return chosen


def rate_factor(settings: TrainingSettings, step: int) -> float:
    """Return the factor of the peak rate at optimiser step `step`, counted from 0."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.decay == "constant":
        return 1.0
    return max(0.0, (settings.steps - step) / (settings.steps - settings.warmup_steps))


def backward(engine: DeepSpeedEngine, loss: Tensor, settings: TrainingSettings) -> None:
    """Add the gradients of a micro-batch's share of the loss; a single process skips the all-reduce, which would copy them."""
    alone = distributed.world_size() == 1 and settings.zero_stage == 0
    # The factor turns the engine's mean over processes and micro-batches back into a sum.
    factor = distributed.world_size() * settings.accumulation
    with engine.no_sync() if alone else contextlib.nullcontext():
        engine.backward(loss * factor)


def gathered_weights(engine: DeepSpeedEngine) -> contextlib.AbstractContextManager[None]:
    """Give every process the complete weights, also if ZeRO stage 3 partitions them: to read them, not to run the model."""
    if engine.zero_optimization_stage() < 3:
        return contextlib.nullcontext()
    import deepspeed

    gathered: contextlib.AbstractContextManager[None] = deepspeed.zero.GatheredParameters(list(engine.module.parameters()))
    return gathered


def weights_finite(engine: DeepSpeedEngine) -> bool:
    """Whether the weights of all processes are finite: a finite loss can still have an infinite gradient."""
    # Of a partitioned weight each process checks its own part, which is all that it has.
    parts = (getattr(weight, "ds_tensor", weight) for weight in engine.module.parameters())
    broken = sum(not bool(part.isfinite().all()) for part in parts)
    return not distributed.all_reduce(torch.tensor(float(broken), device=engine.device))


@contextlib.contextmanager
def tf32(settings: TrainingSettings, device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices in TF32 on a GPU, if training is in float32; what measures and decodes stays out of this."""
    if device.type != "cuda" or settings.precision != "float32":
        yield
        return
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@contextlib.contextmanager
def restored_linear() -> Iterator[None]:
    """Restore torch's `linear` at the end, also after an error; ZeRO stage 3 replaces it for the life of the process."""
    try:
        yield
    finally:
        torch.nn.functional.linear = _LINEAR


def close(engine: DeepSpeedEngine) -> None:
    """Destroy an engine; every process keeps the complete weights of the model."""
    # Partitioned weights are copied before the engine goes, and put back into the model after it.
    weights = list(engine.module.parameters())
    with gathered_weights(engine):
        whole = [weight.detach().clone() for weight in weights] if engine.zero_optimization_stage() == 3 else []
    with restored_linear():
        engine.destroy()
    for weight, values in zip(weights, whole, strict=False):
        weight.data = values
