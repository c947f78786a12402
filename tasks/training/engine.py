"""DeepSpeed, configured for whatever there is: the only code that imports it."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tasks.training import distributed
from tasks.training.optimizers import make_optimizer, rate_factor
from tasks.training.settings import TrainingSettings

_LINEAR = torch.nn.functional.linear


def create_engine(model: Any, settings: TrainingSettings, device: torch.device) -> Any:
    """A DeepSpeed engine around `model` with the optimiser and schedule of `settings`, in the group of all processes.

    Its gradients are means over processes and micro-batches (`scale`).
    """
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    # DeepSpeed insists on what a launcher would set.
    os.environ.setdefault("LOCAL_RANK", "0")
    import deepspeed

    _quiet()
    if device.type == "cpu":
        # Compiled for a minute, and never called: what it makes faster is inference over several processes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init(backend)
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    optimizer = make_optimizer(model, settings)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(settings, step)),
        config=deepspeed_config(settings),
        dist_init_required=False,
    )
    return engine


def loss_scale(settings: TrainingSettings) -> int:
    """What a micro-batch's part of the loss is multiplied by: the engine takes means over processes and micro-batches."""
    return distributed.world_size() * settings.accumulation


def backward(engine: Any, loss: Tensor, settings: TrainingSettings) -> None:
    """Adds the gradients of a micro-batch's part of the loss; a process by itself has nobody to copy them together for."""
    alone = distributed.world_size() == 1 and settings.zero_stage == 0
    with engine.no_sync() if alone else contextlib.nullcontext():
        engine.backward(loss * loss_scale(settings))


@contextlib.contextmanager
def gathered_weights(engine: Any) -> Iterator[None]:
    """Whole weights in every process, to read from, where ZeRO keeps a part of them in each."""
    if engine.zero_optimization_stage() < 3:
        yield
        return
    import deepspeed

    weights, hooks = list(engine.module.parameters()), engine.optimizer.parameter_offload
    with deepspeed.zero.GatheredParameters(weights):
        # Its hooks would give up each layer's weights as soon as that layer has run.
        for weight in weights:
            weight.ds_active_sub_modules.clear()
        for hook in (*hooks.forward_hooks, *hooks.backward_hooks):
            hook.remove()
        hooks.forward_hooks, hooks.backward_hooks = [], []
        try:
            yield
        finally:
            hooks._register_deepspeed_module(hooks.module)


def weights_finite(engine: Any) -> bool:
    """Whether all weights of all processes are numbers: a finite loss can still have an infinite gradient."""
    parts = (getattr(weight, "ds_tensor", weight) for weight in engine.module.parameters())
    broken = sum(not bool(part.isfinite().all()) for part in parts)
    return not distributed.all_reduce(torch.tensor(float(broken), device=engine.device))


def step_was_skipped(engine: Any) -> bool:
    """Whether ZeRO has left a step out, as it does without a word where a gradient is no number; float16 counts on that."""
    return engine.skipped_steps > 0 and not engine.fp16_enabled()


def close(engine: Any) -> None:
    """Ends an engine. Its model keeps the weights, whole and in memory of their own in every process."""
    weights = list(engine.module.parameters())
    with gathered_weights(engine):
        whole = [weight.detach().clone() for weight in weights] if engine.zero_optimization_stage() == 3 else []
    engine.destroy()
    # Stage 3 puts a function of its own in this one's place, for good.
    torch.nn.functional.linear = _LINEAR
    for weight, values in zip(weights, whole, strict=False):
        weight.data = values


def deepspeed_config(settings: TrainingSettings) -> dict[str, Any]:
    """DeepSpeed's. A micro-batch counts as one example: how many it has, and of which length, is the loss's business."""
    zero: dict[str, Any] = {"stage": settings.zero_stage}
    if settings.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if settings.offload == "parameters":
        zero["offload_param"] = {"device": "cpu"}
    return {
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


def _quiet() -> None:
    import logging

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # DeepSpeed calls torch by names that torch is about to change; nobody here can do anything about it.
    warnings.filterwarnings("ignore", category=FutureWarning, message=r".*`torch\.distributed\.")
