"""The training loop: one model, resumable at every checkpoint with the same result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.console import progress
from tasks.errors import InputError
from tasks.training import checkpoints, distributed
from tasks.training.best_weights import BestWeights
from tasks.training.data import Batch, TokenDataset
from tasks.training.engine import backward, close, create_engine, gathered_weights, step_was_skipped, weights_finite
from tasks.training.log import LogMetrics, Rows, TrainingLog
from tasks.training.objective import Objective
from tasks.training.settings import TrainingSettings
from tasks.training.sources import BatchSource

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from transformers import PreTrainedModel

_LOG_EVERY = 20
_EVALUATION_BATCH = 64
_MOST_LOGITS = 2**26
"""Most logits of one evaluation batch: 256 MB in float32."""

Evaluator = Callable[["PreTrainedModel"], dict[str, float]]
"""Measures a model in training and returns numbers by name, without changing the weights."""


class DivergedError(InputError):
    """The loss, a gradient or a weight is not finite; the message names the step and the last good checkpoint."""

    def __init__(self, what: str, step: int, resume: Path) -> None:
        good = checkpoints.latest(resume)
        kept = f"the last good checkpoint is {resume / good}" if good else "there is no checkpoint yet"
        super().__init__(f"{what} at step {step}; {kept}; lower learning_rate in params.yaml and run again")


@dataclass(frozen=True)
class TrainingResult:
    """The result of a run."""

    loss: float
    """Mean training loss per token since the last log line, in nats; NaN if no step was taken."""
    seconds: float
    resumed_from: int
    """Step of the checkpoint that the run resumed from; 0 for a new run."""
    steps: int
    """Steps taken; fewer than in the settings if patience ended training."""
    kept: int
    """Step whose weights were kept."""
    measured: dict[str, float] = field(default_factory=dict)
    """`validation_loss`, in nats, and the evaluator's measurements, for those weights."""
    target_tokens: int = 0
    """Target tokens that the loss was computed on, over all steps and processes."""
    log: Rows = field(default_factory=dict)
    """What was logged step by step, from the first step on even if the run was interrupted."""


@dataclass(frozen=True)
class EvaluationData:
    """Held-out data and the measurements on it."""

    examples: TokenDataset
    """Text for the validation loss."""
    measure: Evaluator | None = None
    """Further measurements at each evaluation."""


def train(
    objective: Objective,
    source: BatchSource,
    evaluation: EvaluationData,
    settings: TrainingSettings,
    device: torch.device,
    *,
    resume: Path,
    log: LogMetrics,
    label: str,
) -> TrainingResult:
    """Train the objective's model, and the heads that the settings add to it, in place.

    With `settings.steps` 0 the model is measured and otherwise left alone; DeepSpeed is not even imported.

    Args:
        objective: The model with its loss, on `device`.
        source: Micro-batches of each step.
        evaluation: Evaluation data.
        settings: The training settings.
        device: Where to train.
        resume: Checkpoint folder, for this work alone; the caller removes it once the model is saved.
        log: Called every few steps, from the step on at which the run resumes.
        label: Label of the progress bar.

    Raises:
        DivergedError: the loss, a gradient or a weight became NaN or infinite.
        InputError: no space is left for a checkpoint, or `choose_by` names something that is not measured.
    """
    begun = time.monotonic()
    if settings.steps == 0:
        measured = _evaluated(objective, evaluation, device)
        log(measured, 0)
        return TrainingResult(math.nan, time.monotonic() - begun, 0, steps=0, kept=0, measured=measured, log={0: measured})
    engine = create_engine(objective, settings, device)
    first, state = checkpoints.load_latest(engine, resume)
    best = BestWeights(resume, settings)
    best.load_state_dict(state)
    whole = TrainingLog(state, log)
    meter = _Meter(whole.add, resume, device, whole.last("target_tokens"))
    step, measured = first, dict[str, float]()
    with progress(
        total=settings.steps, initial=first, desc=label, unit="step", mininterval=2.0, disable=not distributed.is_main()
    ) as bar:
        while step < settings.steps and not best.out_of_patience:
            # Each step has its own seed, so that dropout is the same after a resume.
            torch.manual_seed((settings.seed * 1_000_003 + step + 1) * distributed.world_size() + distributed.rank())
            parts = [part.to(device) for part in source.microbatches(step)]
            step += 1
            meter.add(step, sum(map(objective.target_tokens, parts)), *_train_step(engine, objective, parts, settings))
            if step_was_skipped(engine):
                raise DivergedError("the gradient is no longer finite", step, resume)
            saving = step % settings.checkpoint_every == 0 and step < settings.steps
            if step % _LOG_EVERY == 0 or step == settings.steps or saving:
                bar.set_postfix(meter.flush(step, engine.get_lr()[0]), refresh=False)
            evaluating = step % settings.evaluate_every == 0 or step == settings.steps
            if (evaluating or saving) and not weights_finite(engine):
                raise DivergedError("weights are no longer finite", step, resume)
            if evaluating:
                with gathered_weights(engine):
                    measured = _evaluated(objective, evaluation, device)
                    best.update(objective.model, measured, step)
                whole.add(measured, step)
            if saving:
                checkpoints.save(engine, resume, step, {**best.state_dict(), **whole.state_dict()})
                best.prune()
            bar.update()
    close(engine)
    kept = best.restore_weights(objective.model)
    if kept not in (None, step) or not measured:
        measured = _evaluated(objective, evaluation, device)
    distributed.barrier()
    seconds = time.monotonic() - begun
    return TrainingResult(meter.loss, seconds, first, step, kept or step, measured, meter.target_tokens, whole.rows)


def _train_step(
    engine: DeepSpeedEngine, objective: Objective, parts: list[Batch], settings: TrainingSettings
) -> tuple[float, float]:
    """Take a step; return its mean loss over all processes, and the count that the first term was divided by."""
    counts = objective.counts(parts)
    engine.train()
    loss = torch.zeros((), device=counts.device)
    for part in parts:
        mine = engine(part, counts)
        backward(engine, mine, settings)
        engine.step()
        loss += mine.detach()
    return float(distributed.all_reduce(loss)), float(counts[0])


class _Meter:
    """Means since the last log line."""

    def __init__(self, log: LogMetrics, resume: Path, device: torch.device, target_tokens: float = 0.0) -> None:
        """Take the log, the checkpoint folder that errors name, the device, and the target tokens of an interrupted run."""
        self._log, self._resume, self._device = log, resume, device
        self.target_tokens = int(target_tokens)
        """Target tokens over all steps and processes until the last log line."""
        self.loss = math.nan
        """Mean loss at the last log line."""
        self._reset()

    def _reset(self) -> None:
        self._sum, self._count, self._since = 0.0, 0.0, time.monotonic()
        self._tokens = torch.zeros((), device=self._device)

    def add(self, step: int, tokens: torch.Tensor | int, loss: float, count: float) -> None:
        if not math.isfinite(loss):
            raise DivergedError(f"the training loss is {loss}", step, self._resume)
        self._sum += loss * count
        self._count += count
        self._tokens += tokens

    def flush(self, step: int, rate: float) -> dict[str, str]:
        """Log the means; return them as text for the progress bar."""
        tokens = float(distributed.all_reduce(self._tokens))
        speed = tokens / (time.monotonic() - self._since)
        self.target_tokens += int(tokens)
        # The count is 0 where no position has a weight, as in a replay in which nothing was rejected.
        self.loss = self._sum / self._count if self._count else 0.0
        values = {"loss": self.loss, "learning_rate": rate, "tokens_per_second": speed, "target_tokens": self.target_tokens}
        self._log(values, step)
        self._reset()
        return {"loss": f"{self.loss:.3f}", "tokens/s": f"{speed:.0f}"}


def _evaluated(objective: Objective, evaluation: EvaluationData, device: torch.device) -> dict[str, float]:
    measured = {"validation_loss": evaluate(objective, evaluation.examples, device)}
    return measured if evaluation.measure is None else {**measured, **evaluation.measure(objective.model)}


@torch.inference_mode()
def evaluate(objective: Objective, examples: TokenDataset, device: torch.device) -> float:
    """Return the mean loss per target token, in nats, without dropout; every process evaluates all texts."""
    objective.eval()
    size = _evaluation_batch(examples, objective.model.config.get_text_config().vocab_size)
    batches = [examples.batch(range(begin, min(begin + size, len(examples)))) for begin in range(0, len(examples), size)]
    sums = torch.stack([objective.sums(batch.to(device)) for batch in batches]).sum(0)
    return objective.mean(sums, objective.own_counts(batches).to(device))


def _evaluation_batch(examples: TokenDataset, vocabulary: int) -> int:
    """Return how many examples fit into an evaluation batch, however long they are."""
    rows = zip(examples.sources, examples.targets, strict=True)
    longest = max(len(target) + (len(source) if examples.decoder_only else 0) for source, target in rows)
    return max(1, min(_EVALUATION_BATCH, _MOST_LOGITS // (longest * vocabulary)))
