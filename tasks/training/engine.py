"""DeepSpeed, configured for whatever there is: the only code that imports it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from tasks.errors import InputError
from tasks.paths import CACHE
from tasks.training.settings import TrainingSettings


def open_engine(model: Any, settings: TrainingSettings, device: torch.device) -> Any:
    """A DeepSpeed engine (stage 0, float32) around `model` with the optimiser and schedule of `settings`.

    Raises:
        InputError: started by a launcher with several processes, which this loop does not split its data for.
    """
    _set_environment(device)
    if os.environ["WORLD_SIZE"] != "1":
        raise InputError("training runs in one process here, but the launcher started several; start it with python -m")
    import deepspeed

    _quiet()
    if device.type == "cpu" and not (shutil.which("c++") or shutil.which("g++")):
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if device.type == "cuda" else "gloo"
    if not torch.distributed.is_initialized():
        # A store in memory: a port, even one just found free, can be taken by the time it is opened.
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]  # torch does not list it, though it documents it
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    deepspeed.init_distributed(dist_backend=backend, verbose=False)
    optimizer = make_optimizer(model, settings)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(settings, step)),
        config=_configuration(settings),
        dist_init_required=False,
    )
    return engine


def make_optimizer(model: Any, settings: TrainingSettings) -> torch.optim.Optimizer:
    """Adafactor at the given rate, constant or scaled by each weight's root mean square (Shazeer and Stern, 2018), or AdamW."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True)
    from transformers.optimization import Adafactor

    adafactor: torch.optim.Optimizer = Adafactor(
        weights,
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        scale_parameter=settings.relative_rate,
        relative_step=False,
        warmup_init=False,
    )
    return adafactor


def rate_factor(settings: TrainingSettings, step: int) -> float:
    """The share of the peak rate that optimiser step `step`, counted from 0, uses."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.decay == "constant":
        return 1.0
    return max(0.0, (settings.steps - step) / (settings.steps - settings.warmup_steps))


def _configuration(settings: TrainingSettings) -> dict[str, Any]:
    return {
        "train_batch_size": settings.batch_size,
        "train_micro_batch_size_per_gpu": settings.batch_size,
        "gradient_clipping": settings.gradient_clipping,
        "zero_optimization": {"stage": 0},
        "steps_per_print": sys.maxsize,
    }


def _set_environment(device: torch.device) -> None:
    """What a launcher would set for one process; a launcher's own settings stay."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    for name, value in {**alone, "TORCH_EXTENSIONS_DIR": str((CACHE / "torch_extensions").resolve())}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    # ninja, which builds DeepSpeed's extension, is installed beside this interpreter.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _quiet() -> None:
    import logging

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
