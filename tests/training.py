"""Training in one call, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tasks.training.data import TokenDataset
from tasks.training.loop import EvaluationData, Evaluator, LogMetrics, TrainingResult, train
from tasks.training.losses import Loss
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tasks.training.sources import BatchSource, DatasetSource

CPU = torch.device("cpu")


class InterruptedRun(Exception):
    """What a test cuts a run short with."""


def interrupt_at(step: int | None) -> LogMetrics:
    """A log that cuts the run short at the first evaluation from this step on; none: never."""

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
    """Trains `model` in place on a CPU, and judges it by what it learns from."""
    return train(
        Objective(model, settings, loss),
        source or DatasetSource(examples, settings),
        EvaluationData(examples, measure),
        settings,
        CPU,
        resume=folder,
        log=log or interrupt_at(None),
        label="test",
    )
