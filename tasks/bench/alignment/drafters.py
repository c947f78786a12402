"""Drafters, each trained by its recipe for the same time, and stored with the cost of training."""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tasks.alignment.settings import AlignSettings
from tasks.alignment.spec import alignment_spec, start_model
from tasks.bench.alignment.recipes import RECIPES, UNALIGNED, settings_of
from tasks.bench.alignment.timing import TimedSource, training_clock
from tasks.bench.timing import Found
from tasks.config import Params, Task
from tasks.errors import InputError
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
_WARM_UP, _PROBED = 8, 64
"""Untimed and timed steps of a probe."""

Cost = Found
"""Cost and result of training a drafter."""


@dataclass(frozen=True)
class Comparison:
    """The comparison: task, settings, training time and output folder."""

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
        """Folder of the drafter."""
        return self.paths.model("small") if recipe == UNALIGNED else self.out / "drafters" / f"{recipe}-{seed}"

    def require_trained(self) -> None:
        """Raise `InputError` where the task lacks a model or data set that every recipe needs."""
        needed = (self.paths.model("large"), self.paths.model("small"), self.paths.calibration_set)
        for path in needed:
            if not path.exists():
                raise InputError(f"{path} is missing; train the task's pair and calibrate first (dvc repro)")

    def has_logits(self) -> bool:
        """Whether the calibration set holds stored predictions of the large model."""
        return any(self.paths.calibration.rglob("*.safetensors"))

    def settings(self, recipe: str, seed: int, steps: int) -> AlignSettings:
        """Settings of one drafter."""
        return settings_of(recipe, self.task.align, self.task.finetune.small, seed, steps)

    def job(self, recipe: str, seed: int, settings: AlignSettings) -> TrainingJob:
        """Training job of one drafter; the seed is also that of a random start."""
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
        """Fingerprint of a drafter: settings, training time, data and code."""
        if recipe == UNALIGNED:
            return fingerprint({"of": self._data}, [], [])
        job = self.job(recipe, seed, self.settings(recipe, seed, _PROBED))
        return fingerprint({"of": self._data, "model": job.model, "training": job.training, "seconds": self.seconds}, [], [])

    @cached_property
    def _data(self) -> str:
        files = [self.paths.model("large"), self.paths.model("small"), self.paths.calibration, self.paths.tokenizer]
        # Drafters may be trained on one thread each, side by side, and measured on all threads.
        machine = dataclasses.replace(self.params.machine, threads=0)
        return fingerprint({"text": self.task.text, "machine": machine}, files, list(CODE))


def trained(comparison: Comparison, recipe: str, seed: int) -> Cost:
    """The drafter of a recipe, trained unless it is there.

    Returns:
        `steps`, `kept` (the step whose weights were chosen), `training_seconds` (evaluations aside), `steps_per_second`,
        `target_tokens` and what was measured on held-out text. Of the model that is not aligned, nothing.

    Raises:
        DivergedError: the loss became NaN or infinite.
    """
    if recipe == UNALIGNED:
        return {}
    folder, work = comparison.folder(recipe, seed), comparison.work(recipe, seed)
    known = _read(folder / _COST)
    if known.get("work") == work:
        return known
    opened = open_context(comparison.job(recipe, seed, comparison.settings(recipe, seed, _PROBED)))
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    with working_lock(opened.device.type):
        steps = max(1, round(comparison.seconds / _seconds_of_a_step(comparison, recipe, seed, opened)))
        settings = comparison.settings(recipe, seed, steps)
        outcome, clocked = _run(opened, settings, comparison.paths.model("large"), unfinished)
    each = clocked.seconds_per_step(settings.evaluate_every)
    save_model(opened.model.cpu(), opened.tokenizer, folder)
    shutil.rmtree(unfinished, ignore_errors=True)
    cost = {
        "work": work,
        "steps": outcome.steps,
        "kept": outcome.kept,
        "training_seconds": each * outcome.steps,
        "steps_per_second": 1 / each,
        "target_tokens": clocked.tokens,
        "held_out": outcome.measured,
    }
    return _write(folder / _COST, cost)


def _seconds_of_a_step(comparison: Comparison, recipe: str, seed: int, opened: TrainingContext) -> float:
    """Measured once for a recipe, so that its seeds take as many steps: on a short run of the same kind, of another model."""
    place = comparison.out / "probes" / f"{recipe}.json"
    work = comparison.work(recipe, 0)
    known = _read(place)
    if known.get("work") != work:
        settings = comparison.settings(recipe, seed, _probed(recipe))
        # In one piece: what is evaluated between would be left out of the mean, and what is written there with it.
        settings = dataclasses.replace(settings, evaluate_every=settings.steps, choose_by="last")
        own = dataclasses.replace(opened, model=copy.deepcopy(opened.model))
        with tempfile.TemporaryDirectory() as folder:
            _, clocked = _run(own, settings, comparison.paths.model("large"), Path(folder) / "probe")
        known = _write(place, {"work": work, "seconds": clocked.seconds_per_step(settings.steps, _WARM_UP)})
    return float(known["seconds"])


def _probed(recipe: str) -> int:
    """Steps of a probe: of text that is written for many steps at once, two such pools after the warm-up."""
    written = RECIPES[recipe].changes.get("on_policy", 0.0) > 0
    return _WARM_UP + (2 * AlignSettings().write_every if written else _PROBED)


def _run(opened: TrainingContext, settings: AlignSettings, large: Path, folder: Path) -> tuple[TrainingResult, TimedSource]:
    """Train the model of `opened` with these settings instead of those of its job."""
    shutil.rmtree(folder, ignore_errors=True)
    opened = dataclasses.replace(opened, job=dataclasses.replace(opened.job, training=settings), resume=folder)
    learned = alignment_spec(opened, settings, large)
    clocked = TimedSource(learned.source, training_clock(opened.device))
    outcome = train(
        Objective(opened.model, settings, learned.loss),
        clocked,
        learned.held,
        settings,
        opened.device,
        resume=folder,
        log=lambda *_: None,
        label=opened.job.name,
    )
    return outcome, clocked


def _read(path: Path) -> Cost:
    found: Cost = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _write(path: Path, cost: Cost) -> Cost:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may measure one recipe's step at the same time: each its own file, and the last one counts.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".partial", delete=False) as partial:
        partial.write(json.dumps(cost, indent=2) + "\n")
    Path(partial.name).replace(path)
    return cost
