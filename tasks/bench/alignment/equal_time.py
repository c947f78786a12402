"""How many steps of a recipe take the time of its control: short runs of both, one after the other, several times."""

from __future__ import annotations

import copy
import dataclasses
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tasks.alignment.settings import AlignSettings
from tasks.bench.alignment.drafters import Comparison, timed_training
from tasks.bench.alignment.recipes import RECIPES, control_of
from tasks.bench.alignment.rows import Run, read_record, write_record
from tasks.fingerprint import fingerprint
from tasks.locks import working_lock
from tasks.training.context import open_context

_ROUNDS = 3
"""Pairs of runs: what else a machine does changes the duration of a step by tens of per cent, for both of a pair alike."""
_WARM_UP_STEPS, _TIMED_STEPS = 8, 64
"""Of a run."""
_FEWEST = 4
"""Steps of the shortest training."""


@dataclass(frozen=True, kw_only=True)
class StepRatio:
    """How long a step of the control takes beside one of a recipe."""

    work: str
    """Fingerprint of settings, data and code of both."""
    ratio: float
    """Seconds of the control over seconds of the recipe, the median of the rounds."""
    seconds: list[tuple[float, float]]
    """Of a step of the control and of the recipe, by round."""


def steps_in_equal_time(comparison: Comparison, recipe: str, seed: int) -> int:
    """Return the steps that a recipe takes in the time in which the control of its start takes `comparison.steps`.

    They are the same for every seed. A recipe without a control in this comparison's data takes `comparison.steps`.
    """
    control = control_of(recipe)
    if recipe == control or comparison.missing(control):
        return comparison.steps
    return max(_FEWEST, round(comparison.steps * _step_ratio(comparison, control, recipe, seed).ratio))


def _step_ratio(comparison: Comparison, control: str, recipe: str, seed: int) -> StepRatio:
    """Measure both, once for a comparison."""
    runs = [Run(seed, name, _steps(name)) for name in (control, recipe)]
    work = fingerprint({"of": [comparison.work(dataclasses.replace(run, seed=0)) for run in runs], "rounds": _ROUNDS}, [], [])
    file = comparison.out / "probes" / f"{recipe}.json"
    known = read_record(StepRatio, file)
    if known is not None and known.work == work:
        return known
    of_control, of_recipe = (_opened(comparison, run) for run in runs)
    seconds = [(of_control(), of_recipe()) for _ in range(_ROUNDS)]
    found = StepRatio(work=work, ratio=statistics.median(one / other for one, other in seconds), seconds=seconds)
    write_record(file, found)
    return found


def _opened(comparison: Comparison, run: Run) -> Callable[[], float]:
    """Open what a run trains; return what trains a copy of it and returns the seconds of a step."""
    opened, settings = open_context(comparison.job(run)), comparison.settings(run)

    def seconds() -> float:
        own = dataclasses.replace(opened, model=copy.deepcopy(opened.model))
        with working_lock(opened.device.type), tempfile.TemporaryDirectory() as folder:
            source = timed_training(own, settings, comparison.paths.model("large"), Path(folder) / "probe")
        return source.seconds_per_step(settings.steps, _WARM_UP_STEPS)

    return seconds


def _steps(recipe: str) -> int:
    """Return the steps of a probe. On-policy text is generated for a window of steps at once: two windows after the warm-up."""
    return _WARM_UP_STEPS + (2 * AlignSettings().write_every if RECIPES[recipe].is_on_policy else _TIMED_STEPS)
