"""Opens DeepSpeed for one CPU, one GPU or many processes; the only module that imports it."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tasks.training import distributed
from tasks.training.optimizers import make_optimizer, rate_factor
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from transformers import PreTrainedModel

_LINEAR = torch.nn.functional.linear


def create_engine(
    model: PreTrainedModel,
    settings: TrainingSettings,
    device: torch.device,
) -> DeepSpeedEngine:
    """Return a DeepSpeed engine around `model`, with the optimiser and schedule of `settings`, in the group of all processes.

    The engine averages gradients over processes and micro-batches; `loss_scale` undoes that.
    """
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    # DeepSpeed requires this variable even for one process.
    os.environ.setdefault("LOCAL_RANK", "0")
    deepspeed = _import_deepspeed()
    _quiet()
    if device.type == "cpu":
        # This extension takes a minute to compile and serves only inference over several processes.
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


def _import_deepspeed() -> Any:
    """Import DeepSpeed without its autotuner's import of mlflow, which takes seconds and is not needed."""
    hidden = not {"deepspeed", "mlflow"} & sys.modules.keys()
    if hidden:
        sys.modules["mlflow"] = None  # type: ignore[assignment]  # Python's way to make an import fail
    try:
        import deepspeed
    finally:
        if hidden:
            del sys.modules["mlflow"]
    return deepspeed


def loss_scale(settings: TrainingSettings) -> int:
    """Return the factor that turns the engine's mean over processes and micro-batches back into a sum."""
    return distributed.world_size() * settings.accumulation


def backward(engine: DeepSpeedEngine, loss: Tensor, settings: TrainingSettings) -> None:
    """Add the gradients of a micro-batch's share of the loss; a single process skips the all-reduce, which would copy them."""
    alone = distributed.world_size() == 1 and settings.zero_stage == 0
    with engine.no_sync() if alone else contextlib.nullcontext():
        engine.backward(loss * loss_scale(settings))


@contextlib.contextmanager
def gathered_weights(engine: DeepSpeedEngine) -> Iterator[None]:
    """Give every process the complete weights for reading, also if ZeRO stage 3 partitions them."""
    if engine.zero_optimization_stage() < 3:
        yield
        return
    import deepspeed

    weights, hooks = list(engine.module.parameters()), engine.optimizer.parameter_offload
    with deepspeed.zero.GatheredParameters(weights):
        # DeepSpeed's hooks would release each layer's weights as soon as that layer has run.
        for weight in weights:
            weight.ds_active_sub_modules.clear()
        for hook in (*hooks.forward_hooks, *hooks.backward_hooks):
            hook.remove()
        hooks.forward_hooks, hooks.backward_hooks = [], []
        try:
            yield
        finally:
            hooks._register_deepspeed_module(hooks.module)


def weights_finite(engine: DeepSpeedEngine) -> bool:
    """Whether the weights of all processes are finite: a finite loss can still have an infinite gradient."""
    parts = (getattr(weight, "ds_tensor", weight) for weight in engine.module.parameters())
    broken = sum(not bool(part.isfinite().all()) for part in parts)
    return not distributed.all_reduce(torch.tensor(float(broken), device=engine.device))


def step_was_skipped(engine: DeepSpeedEngine) -> bool:
    """Whether ZeRO has silently skipped a step over a gradient that is not finite; float16 training expects such steps."""
    return engine.skipped_steps > 0 and not engine.fp16_enabled()


def close(engine: DeepSpeedEngine) -> None:
    """Destroy an engine; every process keeps the complete weights of the model."""
    weights = list(engine.module.parameters())
    with gathered_weights(engine):
        whole = [weight.detach().clone() for weight in weights] if engine.zero_optimization_stage() == 3 else []
    engine.destroy()
    # ZeRO stage 3 replaces this function for the life of the process.
    torch.nn.functional.linear = _LINEAR
    for weight, values in zip(weights, whole, strict=False):
        weight.data = values


def deepspeed_config(settings: TrainingSettings) -> dict[str, object]:
    """Return DeepSpeed's configuration. A micro-batch counts as one example, since the loss handles batch sizes itself."""
    zero: dict[str, object] = {"stage": settings.zero_stage}
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
    # DeepSpeed calls functions of torch by names that are deprecated; nothing can be done about it here.
    warnings.filterwarnings("ignore", category=FutureWarning, message=r".*`torch\.distributed\.")
