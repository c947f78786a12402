"""Train one model on a file of examples; resumable at every checkpoint, and the same from there on."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from tasks.errors import InputError
from tasks.training import checkpoints
from tasks.training.acceptance import Measure
from tasks.training.data import IGNORED, Batch, TokenisedSet, ordered_batches
from tasks.training.engine import open_engine
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings

_LOG_EVERY = 20
_EVALUATION_BATCH = 64

Log = Callable[[dict[str, float], int], None]
"""Takes metrics by name and the step they belong to."""


class DivergedError(InputError):
    """The training loss is no longer a number."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    loss: float
    """Mean training loss a token since the last log line, in nats."""
    validation_loss: float
    """Mean of the same loss on the held-out examples, in nats."""
    seconds: float
    resumed_from: int
    """The step at which the run was taken up; 0 for a run from the start."""
    measured: dict[str, float] = field(default_factory=dict)
    """What `measure` gave at the end."""


def train(
    model: Any,
    examples: TokenisedSet,
    held_out: TokenisedSet,
    settings: TrainingSettings,
    device: torch.device,
    resume: Path,
    log: Log,
    label: str,
    measure: Measure | None = None,
) -> Outcome:
    """Trains `model`, and what `settings` add to it, in place for `settings.steps` steps.

    Args:
        model: A model of `transformers`, encoder-decoder or decoder-only; `examples` must be made for its kind.
        examples: What it learns from.
        held_out: What its validation loss is measured on.
        settings: The recipe.
        device: Where to train.
        resume: Folder for checkpoints, this run's alone; removed at the end.
        log: Called every few steps.
        label: Stands before the progress bar.
        measure: What else to learn of the model whenever its validation loss is.

    Raises:
        DivergedError: the loss became NaN or infinite; names the step.
        InputError: the model is not built for what the settings train.
    """
    begun = time.monotonic()
    objective = Objective(model.to(device), settings)
    engine = open_engine(objective, settings, device)
    first = checkpoints.load_latest(engine, resume)
    batches = ordered_batches(examples, settings.batch_size, settings.seed, first, settings.steps)
    meter = _Meter(log)
    loss, validation_loss = math.nan, math.nan
    measured: dict[str, float] = {}
    with tqdm(total=settings.steps, initial=first, desc=label, unit="step", mininterval=2.0) as bar:
        for step, batch in enumerate(batches, start=first + 1):
            # Seeding each step by its number makes dropout after a resume what it would have been.
            torch.manual_seed(settings.seed * 1_000_003 + step)
            meter.add(_train_step(engine, batch, device, step), batch)
            if step % _LOG_EVERY == 0 or step == settings.steps:
                loss = meter.flush(step, engine.get_lr()[0])
                bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            if step % settings.evaluate_every == 0 or step == settings.steps:
                validation_loss = evaluate(objective, held_out, device)
                measured = {} if measure is None else measure(objective.model)
                log({"validation_loss": validation_loss, **measured}, step)
            if step % settings.checkpoint_every == 0 and step < settings.steps:
                checkpoints.save(engine, resume, step)
            bar.update()
    engine.destroy()
    shutil.rmtree(resume, ignore_errors=True)
    return Outcome(loss, validation_loss, time.monotonic() - begun, first, measured)


def _train_step(engine: Any, batch: Batch, device: torch.device, step: int) -> float:
    engine.train()
    loss = engine(batch.source.to(device), batch.mask.to(device), batch.labels.to(device))
    value = float(loss.detach())
    if not math.isfinite(value):
        raise DivergedError(f"the training loss is {value} at step {step}; lower learning_rate in params.yaml and run again")
    engine.backward(loss)
    engine.step()
    return value


class _Meter:
    """Means since the last log line."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._reset()

    def _reset(self) -> None:
        self._loss, self._tokens, self._since = 0.0, 0, time.monotonic()

    def add(self, loss: float, batch: Batch) -> None:
        tokens = int((batch.labels != IGNORED).sum())
        self._loss += loss * tokens
        self._tokens += tokens

    def flush(self, step: int, rate: float) -> float:
        loss, seconds = self._loss / self._tokens, time.monotonic() - self._since
        self._log({"loss": loss, "learning_rate": rate, "tokens_per_second": self._tokens / seconds}, step)
        self._reset()
        return loss


@torch.inference_mode()
def evaluate(objective: Objective, examples: TokenisedSet, device: torch.device) -> float:
    """Mean loss a target token, in nats, without dropout."""
    objective.eval()
    loss, tokens = 0.0, 0
    for begin in range(0, len(examples), _EVALUATION_BATCH):
        batch = examples.batch(list(range(begin, min(begin + _EVALUATION_BATCH, len(examples)))))
        count = int((batch.labels != IGNORED).sum())
        loss += float(objective(batch.source.to(device), batch.mask.to(device), batch.labels.to(device))) * count
        tokens += count
    return loss / tokens
