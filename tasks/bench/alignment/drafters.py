"""Trains drafters, each by its recipe for its number of steps, and stores them with the cost of training."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tasks.alignment.settings import AlignSettings
from tasks.alignment.spec import alignment_spec, start_model
from tasks.bench.alignment.recipes import RECIPES, settings_of
from tasks.bench.alignment.rows import Run, TrainingCost, read_record, write_record
from tasks.bench.alignment.timing import TimedSource, training_clock
from tasks.errors import InputError
from tasks.fingerprint import fingerprint
from tasks.locks import working_lock
from tasks.models.checkpoints import save_model
from tasks.paths import TaskPaths
from tasks.schema import Params, Task
from tasks.training.context import TrainingContext, TrainingJob, open_context
from tasks.training.data import TokenDataset
from tasks.training.loop import EvaluationData, train
from tasks.training.objective import Objective

CODE = ("alignment", "training", "decoding", "models")
"""Packages whose code can change a drafter."""
_COST = "training.json"
_EVALUATED = 64
"""Held-out examples of the loss after the last step, which nothing here reads."""


@dataclass(frozen=True)
class Comparison:
    """What is compared: task, settings, steps of the control, examples of a split, and output folder."""

    name: str
    params: Params
    steps: int
    examples: int
    """Examples of a split that a drafter is measured on, at most."""
    out: Path

    @property
    def task(self) -> Task:
        return self.params.task(self.name)

    @property
    def paths(self) -> TaskPaths:
        return TaskPaths(self.name)

    def folder(self, run: Run) -> Path:
        """Return the folder of a drafter."""
        return self.out / "drafters" / str(run)

    def require_trained(self) -> None:
        """Raise `InputError` if a model or data set that every recipe needs is missing."""
        needed = (self.paths.model("large"), self.paths.model("small"), self.paths.calibration_set)
        for path in needed:
            if not path.exists():
                raise InputError(f"{path} is missing; train the task's pair and calibrate first (dvc repro)")

    def missing(self, recipe: str) -> str:
        """Return what the calibration set lacks for a recipe, with the fix; empty if it lacks nothing."""
        known, folder, control = RECIPES[recipe], self.paths.calibration, self.paths.control_set
        if known.needs_logits and not any(folder.rglob("*.safetensors")):
            return f"{folder} holds no logits (set calibrate.top_logits)"
        if known.learns_references and not (control.is_file() and control.stat().st_size):
            return f"{control} is missing or empty (run the stage calibrate again)"
        return ""

    def settings(self, run: Run) -> AlignSettings:
        """Return the settings of one drafter."""
        return settings_of(run.recipe, self.task.align, self.task.finetune.small, run.seed, run.steps)

    def job(self, run: Run) -> TrainingJob:
        """Return the training job of one drafter; the seed is also that of a random start."""
        task, paths, settings = self.task, self.paths, self.settings(run)
        references = RECIPES[run.recipe].learns_references
        return TrainingJob(
            name=str(run),
            stage="compare",
            paths=paths,
            model=start_model(settings, dataclasses.replace(task.models.small, seed=run.seed), paths.model("small")),
            training=settings,
            text=task.text,
            machine=self.params.machine,
            metric=task.metric,
            train_file=paths.control_set if references else paths.calibration_set,
            batched_like=paths.calibration_set if references else None,
            held_out_file=paths.held_out_calibration,
            teachers=(paths.model("large"),),
            code=CODE,
        )

    def work(self, run: Run) -> str:
        """Return the fingerprint of a drafter: settings, data and code."""
        job = self.job(run)
        made_of = {"of": self.data, "model": job.model, "training": job.training, "text": job.train_file.name}
        return fingerprint(made_of, [], [])

    @cached_property
    def data(self) -> str:
        """Fingerprint of what all drafters have in common."""
        files = [self.paths.model("large"), self.paths.model("small"), self.paths.calibration, self.paths.tokenizer]
        return fingerprint({"text": self.task.text, "machine": self.params.machine}, files, list(CODE))


def train_drafter(comparison: Comparison, run: Run) -> TrainingCost:
    """Train a drafter, unless it is trained already, and return the cost.

    Raises:
        DivergedError: the loss became NaN or infinite.
    """
    folder, work = comparison.folder(run), comparison.work(run)
    known = read_record(TrainingCost, folder / _COST)
    if known is not None and known.work == work:
        return known
    opened = open_context(comparison.job(run))
    settings, unfinished = comparison.settings(run), folder.with_name(f"{folder.name}.unfinished")
    with working_lock(opened.device.type):
        source = timed_training(opened, settings, comparison.paths.model("large"), unfinished)
    save_model(opened.model.cpu(), opened.tokenizer, folder)
    shutil.rmtree(unfinished, ignore_errors=True)
    seconds = source.seconds_per_step(settings.steps) * settings.steps
    cost = TrainingCost(work=work, training_seconds=seconds, target_tokens=source.tokens)
    write_record(folder / _COST, cost)
    return cost


def timed_training(opened: TrainingContext, settings: AlignSettings, large: Path, folder: Path) -> TimedSource:
    """Train the model of `opened` in place, and return the source of its batches, which timed the steps."""
    shutil.rmtree(folder, ignore_errors=True)
    opened = dataclasses.replace(opened, resume=folder)
    spec = alignment_spec(opened, settings, large)
    source = TimedSource(spec.source, training_clock(opened.device))
    train(
        Objective(opened.model, settings, spec.loss),
        source,
        EvaluationData(_few(spec.evaluation.examples)),
        settings,
        opened.device,
        resume=folder,
        log=lambda *_: None,
        label=opened.job.name,
    )
    return source


def _few(examples: TokenDataset) -> TokenDataset:
    """Return the first held-out examples: the last weights are kept without looking at more."""
    return TokenDataset(
        examples.sources[:_EVALUATED],
        examples.targets[:_EVALUATED],
        examples.pad,
        decoder_only=examples.decoder_only,
        stored=examples.stored,
    )
