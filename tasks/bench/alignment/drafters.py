"""Trains drafters, each by its recipe for the same time, and stores them with the cost of training."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tasks.alignment.settings import AlignSettings
from tasks.alignment.spec import alignment_spec, start_model
from tasks.bench.alignment.recipes import RECIPES, UNALIGNED, settings_of
from tasks.bench.alignment.rows import TrainingCost
from tasks.bench.alignment.timing import TimedSource, training_clock
from tasks.config import Params, Task
from tasks.errors import InputError
from tasks.evaluation.results.codec import Source, decode, encode, parse
from tasks.fingerprint import fingerprint
from tasks.locks import working_lock
from tasks.models.checkpoints import save_model
from tasks.paths import TaskPaths
from tasks.training.context import TrainingContext, TrainingJob, open_context
from tasks.training.loop import TrainingResult, train
from tasks.training.objective import Objective

CODE = ("alignment", "training", "decoding", "models")
"""Packages whose code can change a drafter."""
_COST = "training.json"
_WARM_UP_STEPS, _PROBE_STEPS = 8, 64
"""Untimed and timed steps of a probe."""

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """How long a step of a recipe takes, as a probe measured it."""

    work: str
    """Fingerprint of settings, data and code."""
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """What is compared: task, settings, training time and output folder."""

    name: str
    params: Params
    seconds: float
    out: Path

    @property
    def task(self) -> Task:
        return self.params.task(self.name)

    @property
    def paths(self) -> TaskPaths:
        return TaskPaths(self.name)

    def folder(self, recipe: str, seed: int) -> Path:
        """Return the folder of a drafter."""
        return self.paths.model("small") if recipe == UNALIGNED else self.out / "drafters" / f"{recipe}-{seed}"

    def require_trained(self) -> None:
        """Raise `InputError` if a model or data set that every recipe needs is missing."""
        needed = (self.paths.model("large"), self.paths.model("small"), self.paths.calibration_set)
        for path in needed:
            if not path.exists():
                raise InputError(f"{path} is missing; train the task's pair and calibrate first (dvc repro)")

    def has_logits(self) -> bool:
        """Whether the calibration set holds stored predictions of the large model."""
        return any(self.paths.calibration.rglob("*.safetensors"))

    def settings(self, recipe: str, seed: int, steps: int) -> AlignSettings:
        """Return the settings of one drafter."""
        return settings_of(recipe, self.task.align, self.task.finetune.small, seed, steps)

    def job(self, recipe: str, seed: int, settings: AlignSettings) -> TrainingJob:
        """Return the training job of one drafter; the seed is also that of a random start."""
        task, paths = self.task, self.paths
        return TrainingJob(
            name=f"{recipe}-{seed}",
            stage="compare",
            paths=paths,
            model=start_model(settings, dataclasses.replace(task.models.small, seed=seed), paths.model("small")),
            training=settings,
            text=task.text,
            machine=self.params.machine,
            metric=task.metric,
            train_file=paths.calibration_set,
            held_out_file=paths.held_out_calibration,
            teachers=(paths.model("large"),),
            code=CODE,
        )

    def work(self, recipe: str, seed: int) -> str:
        """Return the fingerprint of a drafter: settings, training time, data and code."""
        if recipe == UNALIGNED:
            return fingerprint({"of": self._data}, [], [])
        job = self.job(recipe, seed, self.settings(recipe, seed, _PROBE_STEPS))
        return fingerprint({"of": self._data, "model": job.model, "training": job.training, "seconds": self.seconds}, [], [])

    @cached_property
    def _data(self) -> str:
        files = [self.paths.model("large"), self.paths.model("small"), self.paths.calibration, self.paths.tokenizer]
        # Drafters may be trained on one thread each, side by side, and measured on all threads.
        machine = dataclasses.replace(self.params.machine, threads=0)
        return fingerprint({"text": self.task.text, "machine": machine}, files, list(CODE))


def train_drafter(comparison: Comparison, recipe: str, seed: int) -> TrainingCost:
    """Train the drafter of a recipe, unless it is trained already, and return the cost; without values for `UNALIGNED`.

    Raises:
        DivergedError: the loss became NaN or infinite.
    """
    if recipe == UNALIGNED:
        return TrainingCost()
    folder, work = comparison.folder(recipe, seed), comparison.work(recipe, seed)
    known = _read(TrainingCost, folder / _COST)
    if known is not None and known.work == work:
        return known
    opened = open_context(comparison.job(recipe, seed, comparison.settings(recipe, seed, _PROBE_STEPS)))
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    with working_lock(opened.device.type):
        steps = max(1, round(comparison.seconds / _step_seconds(comparison, recipe, seed, opened)))
        settings = comparison.settings(recipe, seed, steps)
        outcome, source = _run(opened, settings, comparison.paths.model("large"), unfinished)
    seconds = source.seconds_per_step(settings.evaluate_every)
    save_model(opened.model.cpu(), opened.tokenizer, folder)
    shutil.rmtree(unfinished, ignore_errors=True)
    cost = TrainingCost(
        work=work,
        steps=outcome.steps,
        kept=outcome.kept,
        training_seconds=seconds * outcome.steps,
        steps_per_second=1 / seconds,
        target_tokens=source.tokens,
        held_out=outcome.measured,
    )
    _write(folder / _COST, cost)
    return cost


def _step_seconds(comparison: Comparison, recipe: str, seed: int, opened: TrainingContext) -> float:
    """Return the seconds of a step, measured once for a recipe, so that all its seeds take the same number of steps.

    A short run of the same kind, on a copy of the model, is timed.
    """
    file = comparison.out / "probes" / f"{recipe}.json"
    work = comparison.work(recipe, 0)
    known = _read(StepTime, file)
    if known is None or known.work != work:
        settings = comparison.settings(recipe, seed, _probe_steps(recipe))
        # No evaluation in between: the step before it would be left out of the mean, with the text that is generated there.
        settings = dataclasses.replace(settings, evaluate_every=settings.steps, choose_by="last")
        own = dataclasses.replace(opened, model=copy.deepcopy(opened.model))
        with tempfile.TemporaryDirectory() as folder:
            _, source = _run(own, settings, comparison.paths.model("large"), Path(folder) / "probe")
        known = StepTime(work=work, seconds=source.seconds_per_step(settings.steps, _WARM_UP_STEPS))
        _write(file, known)
    return known.seconds


def _probe_steps(recipe: str) -> int:
    """Return the steps of a probe. On-policy text is generated for a window of steps at once: two windows after the warm-up."""
    return _WARM_UP_STEPS + (2 * AlignSettings().write_every if RECIPES[recipe].is_on_policy else _PROBE_STEPS)


def _run(opened: TrainingContext, settings: AlignSettings, large: Path, folder: Path) -> tuple[TrainingResult, TimedSource]:
    """Train the model of `opened` with these settings instead of those of its job."""
    shutil.rmtree(folder, ignore_errors=True)
    opened = dataclasses.replace(opened, job=dataclasses.replace(opened.job, training=settings), resume=folder)
    spec = alignment_spec(opened, settings, large)
    source = TimedSource(spec.source, training_clock(opened.device))
    outcome = train(
        Objective(opened.model, settings, spec.loss),
        source,
        spec.evaluation,
        settings,
        opened.device,
        resume=folder,
        log=lambda *_: None,
        label=opened.job.name,
    )
    return outcome, source


def _read(kind: type[_T], path: Path) -> _T | None:
    source = Source(str(path), "remove it")
    return decode(kind, parse(path.read_text(encoding="utf-8"), source), source) if path.is_file() else None


def _write(path: Path, record: DataclassInstance) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may time a step of one recipe at the same time: each writes a file of its own, and the last one counts.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".partial", delete=False) as partial:
        partial.write(json.dumps(encode(record), indent=2) + "\n")
    Path(partial.name).replace(path)
