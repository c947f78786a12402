"""Training in one call, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tasks.training.data import BatchSource, DatasetSource, TokenDataset
from tasks.training.loop import Evaluator, LogMetrics, TrainingResult, train
from tasks.training.objective import Loss, Objective
from tasks.training.settings import TrainingSettings

CPU = torch.device("cpu")


class InterruptedRun(Exception):
    """Raised by a test to interrupt a run."""


def interrupt_at(step: int | None) -> LogMetrics:
    """Return a log that interrupts the run at the first evaluation from this step on; never if None."""

    def log(metrics: dict[str, float], at: int) -> None:
        if step is not None and at >= step and "validation_loss" in metrics:
            raise InterruptedRun

    return log


def train_on(
    model: Any,
    examples: TokenDataset,
    settings: TrainingSettings,
    folder: Path,
    log: LogMetrics | None = None,
    *,
    measure: Evaluator | None = None,
    source: BatchSource | None = None,
    loss: Loss | None = None,
) -> TrainingResult:
    """Train `model` in place on a CPU, with its training examples as held-out data."""
    return train(
        Objective(model, settings, loss),
        source or DatasetSource(examples, settings),
        examples,
        settings,
        CPU,
        measure=measure,
        resume=folder,
        log=log or interrupt_at(None),
        label="test",
    )
