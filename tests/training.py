"""Training in one call, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tasks.training.data import TextSet
from tasks.training.loop import Held, Log, Measure, Outcome, train
from tasks.training.losses import Loss
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tasks.training.sources import FixedText, TextSource

CPU = torch.device("cpu")


class InterruptedRun(Exception):
    """What a test cuts a run short with."""


def interrupt_at(step: int | None) -> Log:
    """A log that cuts the run short at the first evaluation from this step on; none: never."""

    def log(metrics: dict[str, float], at: int) -> None:
        if step is not None and at >= step and "validation_loss" in metrics:
            raise InterruptedRun

    return log


def train_on(
    model: Any,
    examples: TextSet,
    settings: TrainingSettings,
    folder: Path,
    log: Log | None = None,
    *,
    measure: Measure | None = None,
    source: TextSource | None = None,
    loss: Loss | None = None,
) -> Outcome:
    """Trains `model` in place on a CPU, and judges it by what it learns from."""
    return train(
        Objective(model, settings, loss),
        source or FixedText(examples, settings),
        Held(examples, measure),
        settings,
        CPU,
        resume=folder,
        log=log or interrupt_at(None),
        label="test",
    )
