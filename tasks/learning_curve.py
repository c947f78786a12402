"""Forecast what more calibration texts would bring the aligned drafter, before anyone writes them.

`python -m tasks.learning_curve --task translation` trains the drafter of each seed on an eighth, a quarter, half and all of the
calibration set and measures its acceptance by the large model along the held-out texts. The recipe is that of `align`, with its
steps; only the texts differ. A law is fitted to the four points, checked by predicting the last one from the others, and
gives what twice and ten times the texts would bring. An interrupted run goes on where it was; the weights are not kept.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from scipy.special import boxcox

from tasks.align import alignment_job
from tasks.alignment.settings import AlignSettings
from tasks.alignment.spec import HeldOutAcceptance, alignment_spec
from tasks.config import Task, load, task_parser
from tasks.console import add_json, aligned_columns, answer, log
from tasks.errors import InputError, stage
from tasks.evaluation.scoring.metrics import Floats
from tasks.evaluation.scoring.statistics import Interval, percentile_interval, resampled_sums
from tasks.files import atomic_write, remove
from tasks.lineage import hardware
from tasks.locks import folder_lock
from tasks.machine import MachineSettings
from tasks.paths import TaskPaths
from tasks.training import distributed
from tasks.training.data import BucketBatchSampler, DatasetSource, TokenDataset
from tasks.training.stage import TrainingJob, open_context, room_to_train, train_opened

SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""Of the calibration set."""
MULTIPLES = (2, 10)
"""Of the calibration set, for which acceptance is forecast."""
LEAST = 64
"""Texts at the first point."""
_SAMPLES = 1000
MEASURES = {"acceptance_greedy": "greedy acceptance", "acceptance_rate": "acceptance rate at temperature 1"}


# --- the law --------------------------------------------------------------------------------------------------------------

LAWS = {"straight line in the logarithm": np.zeros(1), "power law": np.geomspace(0.05, 2, 80)}
"""The exponents of each law; the simpler one first."""


class Laws(NamedTuple):
    """Acceptance by x, the texts as a multiple of the calibration set, for several curves: level + slope · (1 − x^−c) / c.

    That is a power law, which ends at level + slope / c, and for c = 0 a straight line: level + slope · ln x. Each `[curves]`.
    """

    level: Floats
    """At the calibration set, x = 1."""
    slope: Floats
    exponent: Floats

    def at(self, x: float) -> Floats:
        """Return the acceptance of each curve, in 0…1."""
        found: Floats = np.clip(self.level + self.slope * boxcox(x, -self.exponent), 0.0, 1.0)
        return found


def fit(x: Sequence[float], rates: Floats, exponents: Floats) -> Laws:
    """Fit a law to the rates `[curves, points]` of each curve at the points x, by least squares.

    For a given exponent the law is linear, so that the best of the exponents is found without a start.
    """
    # 1. Level and slope for each exponent.
    terms = boxcox(np.asarray(x), -exponents[:, None])  # (exponents, points)
    apart, away = terms - terms.mean(axis=1, keepdims=True), rates - rates.mean(axis=1, keepdims=True)
    scale = (apart**2).sum(axis=1)
    slopes = away @ apart.T / scale  # (curves, exponents)
    # 2. The exponent that explains the most.
    best = (slopes**2 * scale).argmax(axis=1)
    slope = slopes[np.arange(len(rates)), best]
    return Laws(rates.mean(axis=1) - slope * terms.mean(axis=1)[best], slope, exponents[best])


# --- points, check and forecast -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Acceptance with a part of the calibration set."""

    texts: int
    rate: float
    """Mean over seeds."""
    interval: Interval
    by_seed: dict[int, float]


@dataclass(frozen=True)
class Check:
    """The last point as a law predicts it from the others."""

    law: str
    rate: float
    interval: Interval
    """Where the measured rate is to be expected."""
    held: bool
    """Whether it is there."""


@dataclass(frozen=True)
class Forecast:
    """What a multiple of the calibration set would bring."""

    multiple: int
    rate: float
    interval: Interval
    gain: float
    """Against the calibration set as it is, both by the law."""
    gain_interval: Interval


@dataclass(frozen=True)
class LearningCurve:
    """What was measured, and the forecast that follows."""

    points: list[Point]
    read: int
    """Texts that the recipe's steps read."""
    checks: list[Check]
    law: str
    """The key of `LAWS` that was chosen."""
    parameters: dict[str, float]
    """See `Laws`; x counts at most `read` texts."""
    forecasts: list[Forecast]


def learning_curve(sizes: Sequence[int], read: int, rates: Mapping[int, Floats], resampled: Floats) -> LearningCurve:
    """Fit a law to the points, check it, and forecast.

    Each resample chooses and fits a law of its own, so that the intervals hold the doubt about the law.

    Args:
        sizes: Texts of each point, ascending; the last is the calibration set.
        read: Texts that the recipe's steps read. More texts are as good as so many, of which none is read twice.
        rates: Acceptance `[sizes]` of each seed.
        resampled: `[samples, sizes]`, see `resample`.
    """
    whole = sizes[-1]
    x = [min(size, read) / whole for size in sizes]
    table = np.stack(list(rates.values()), axis=1)  # (sizes, seeds)
    curves = np.vstack([table.mean(axis=1), resampled])  # (1 + samples, sizes): as measured, then each resample
    # 1. The law that predicts the last point best from the others.
    expected = np.stack([fit(x[:-1], curves[:, :-1], exponents).at(x[-1]) for exponents in LAWS.values()])
    best = np.abs(expected - curves[:, -1]).argmin(axis=0)
    fitted = [fit(x, curves, exponents) for exponents in LAWS.values()]
    laws = Laws(*(np.choose(best, parts) for parts in zip(*fitted, strict=True)))
    # 2. The last point and its prediction are of the same held-out texts: their difference is resampled.
    checks = []
    for name, predicted in zip(LAWS, expected, strict=True):
        low, high = percentile_interval(predicted[1:] - curves[1:, -1])
        interval = curves[0, -1] + low, curves[0, -1] + high
        checks.append(Check(name, float(predicted[0]), interval, low <= 0 <= high))
    # 3. More texts.
    forecasts = []
    for multiple in MULTIPLES:
        found = laws.at(min(multiple * whole, read) / whole)
        gains = found - laws.at(x[-1])
        interval, gained = percentile_interval(found[1:]), percentile_interval(gains[1:])
        forecasts.append(Forecast(multiple, float(found[0]), interval, float(gains[0]), gained))
    points = [
        Point(size, float(column[0]), percentile_interval(column[1:]), dict(zip(rates, row.tolist(), strict=True)))
        for size, column, row in zip(sizes, curves.T, table, strict=True)
    ]
    law = {name: float(values[0]) for name, values in laws._asdict().items()}
    return LearningCurve(points, read, checks, list(LAWS)[best[0]], law, forecasts)


def resample(rates: Mapping[int, Floats], sums: Sequence[Floats], positions: Floats, samples: int = _SAMPLES) -> Floats:
    """Draw the mean rates of other held-out texts and of other trainings, `[samples, sizes]`.

    Texts are drawn by the bootstrap, the same ones for all sizes and seeds. To each mean is added Student's t times its
    standard error over seeds, whose deviation is pooled over the sizes; with one seed nothing is known of other trainings.

    Args:
        rates: Acceptance `[sizes]` of each seed.
        sums: Accepted positions `[texts]` of each size, the mean over seeds.
        positions: Of each text.
        samples: How many.
    """
    drawn = resampled_sums(np.column_stack([*sums, positions]), samples, seed=1)
    found: Floats = drawn[:, :-1] / drawn[:, -1:]
    if len(rates) > 1:
        variances = np.stack(list(rates.values())).var(axis=0, ddof=1)  # (sizes,)
        freedom = len(variances) * (len(rates) - 1)
        found += math.sqrt(variances.mean() / len(rates)) * np.random.default_rng(1).standard_t(freedom, found.shape)
    return found


# --- the measurement ------------------------------------------------------------------------------------------------------


def chosen_texts(count: int, share: float, seed: int) -> list[int]:
    """Draw a share of so many texts; larger shares of one seed hold the smaller ones.

    Where `calibrate.samples` is above 1, texts of one input are drawn apart: the curve then understates what new inputs bring.
    """
    order = random.Random(f"learning curve {seed}").sample(range(count), count)  # noqa: S311 (an order, not a secret)
    return sorted(order[: round(share * count)])


def texts_read(examples: TokenDataset, settings: AlignSettings) -> int:
    """Return how many texts the steps of a recipe read of a calibration set.

    Raises:
        InputError: the calibration set is too small for a learning curve, or the recipe reads less than half of it.
    """
    count, least = len(examples), round(LEAST / SHARES[0])
    if count < least:
        fix = f"it takes {least}: raise calibrate.fraction, or add inputs to train or unlabelled"
        raise InputError(f"the calibration set has {count} texts, too few for a learning curve; {fix}")
    order = BucketBatchSampler(examples, settings)
    read = sum(len(order.batch_at(step)) for step in range(settings.steps))
    if read < SHARES[-2] * count:
        fix = "more texts bring nothing before align.steps is raised"
        raise InputError(f"the {settings.steps} steps of align read {read} of {count} calibration texts; {fix}")
    return read


@dataclass(frozen=True)
class Measured:
    """A drafter that learned from a part of the calibration set."""

    folder: Path
    """That of its work, named by a fingerprint."""
    texts: int
    read: int
    sums: dict[str, list[float]]
    """See `HeldOutAcceptance.by_text`."""


def measure_part(job: TrainingJob, settings: AlignSettings, share: float) -> Measured:
    """Train a drafter on a share of the calibration set and measure it; an interrupted one goes on, a finished one is read.

    Raises:
        InputError: as `train_stage`.
    """
    opened, large = open_context(job), job.paths.model("large")
    read, chosen = texts_read(opened.examples, settings), chosen_texts(len(opened.examples), share, settings.seed)
    folder = _unfinished(job.paths) / opened.resume.name
    file = folder / f"{len(chosen)}.json"
    if not file.is_file():
        opened = dataclasses.replace(opened, resume=folder / str(len(chosen)))
        # A draft vocabulary is that of the whole calibration set.
        spec = alignment_spec(opened, settings, large)
        measure = cast(HeldOutAcceptance, spec.measure)
        spec = dataclasses.replace(spec, source=DatasetSource(opened.examples, opened.job.training, chosen))
        with room_to_train(opened):
            train_opened(opened, spec, None)
            sums = measure.by_text(opened.model)
        if distributed.is_main():
            folder.mkdir(parents=True, exist_ok=True)
            atomic_write(file, json.dumps(sums))
            remove(opened.resume)
        distributed.barrier()
    return Measured(folder, len(chosen), read, json.loads(file.read_text(encoding="utf-8")))


def _unfinished(paths: TaskPaths) -> Path:
    return paths.resume("learning-curve")


def measure_all(task: Task, machine: MachineSettings, paths: TaskPaths, measure: str) -> LearningCurve:
    """Train and measure the drafters of all seeds and sizes; then fit and forecast."""
    found: dict[int, list[Measured]] = {}
    for seed in task.seeds:
        settings = dataclasses.replace(task.align, seed=seed)
        job = alignment_job("aligned", settings, task, machine, paths)
        found[seed] = []
        for share in SHARES:
            part = measure_part(job, settings, share)
            found[seed].append(part)
            rate = sum(part.sums[measure]) / sum(part.sums["positions"])
            log.info("%s: seed %d, %d texts: %s %.4f", paths.task, seed, part.texts, MEASURES[measure], rate)
    if distributed.is_main():
        kept = {part.folder for measured in found.values() for part in measured}
        for other in _unfinished(paths).glob("[!.]*"):
            if other not in kept:
                remove(other)
    parts = found[task.seeds[0]]
    positions = np.array(parts[-1].sums["positions"])
    sums = {seed: np.array([part.sums[measure] for part in measured]) for seed, measured in found.items()}  # (sizes, texts)
    rates = {seed: table.sum(axis=1) / positions.sum() for seed, table in sums.items()}
    resampled = resample(rates, list(np.mean(list(sums.values()), axis=0)), positions)
    return learning_curve([part.texts for part in parts], parts[-1].read, rates, resampled)


# --- what is said ---------------------------------------------------------------------------------------------------------


def verdict(curve: LearningCurve, measure: str) -> str:
    """Return the first line: whether more texts would help."""
    twice, whole = curve.forecasts[0], curve.points[-1].texts
    if curve.read <= whole:
        fix = "Raise align.steps first."
        return f"More calibration texts would bring nothing: the steps read {curve.read:,} of {whole:,}. {fix}"
    gain = f"{twice.gain:+.4f} {_interval(twice.gain_interval)}"
    if not all(check.held for check in curve.checks if check.law == curve.law):
        gain += " (do not rely on it: the law misses the last point)"
    if twice.gain_interval[0] > 0:
        return f"Twice the calibration texts would raise the {MEASURES[measure]}: {gain}."
    return f"Twice the calibration texts are not shown to raise the {MEASURES[measure]}: {gain}."


def described(curve: LearningCurve, measure: str) -> list[str]:
    """Return points, check and forecasts as lines."""
    whole = curve.points[-1]
    rows = [["texts", "passes", MEASURES[measure], "interval"]]
    rows += [
        [f"{one.texts:,}", f"{curve.read / one.texts:.1f}", f"{one.rate:.4f}", _interval(one.interval)] for one in curve.points
    ]
    lines = [*aligned_columns(rows), "", f"the law is a {curve.law}: " + formula(curve)]
    for check in curve.checks:
        said = "inside" if check.held else "outside: do not rely on the forecast" if check.law == curve.law else "outside"
        expected = f"{check.rate:.4f} {_interval(check.interval)}"
        compared = f"{expected}, measured {whole.rate:.4f}, {said}"
        lines.append(f"the last point as the {check.law} predicts it from the others: {compared}")
    for one in curve.forecasts:
        gain = f"{one.gain:+.4f} {_interval(one.gain_interval)}"
        far = ", an extrapolation" if one.multiple == max(MULTIPLES) else ""
        lines.append(f"{one.multiple} times the texts: {one.rate:.4f} {_interval(one.interval)}, {gain}{far}")
    if curve.read < max(MULTIPLES) * whole.texts:
        lines.append(f"the steps read {curve.read:,} texts: more than so many bring nothing without a larger align.steps")
    return lines


def formula(curve: LearningCurve) -> str:
    """Return the law with its numbers; x are the texts over those of the calibration set."""
    level, slope, exponent = curve.parameters.values()
    if exponent == 0:
        return f"{level:.4f} {slope:+.4f} ln x"
    return f"{level + slope / exponent:.4f} {-slope / exponent:+.4f} x^-{exponent:.2f}"


def _interval(interval: Interval) -> str:
    return "[{:.4f}, {:.4f}]".format(*interval)


def main() -> None:
    """Measure, forecast, print, and write the results beside those of the task."""
    parser = task_parser(__doc__)
    distributed.add_arguments(parser)
    add_json(parser)
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task = params.task(arguments.task)
    distributed.run(params.machine, arguments.nproc, lambda: _forecast(arguments, task, params.machine, paths))


def _forecast(arguments: argparse.Namespace, task: Task, machine: MachineSettings, paths: TaskPaths) -> None:
    measure = "acceptance_greedy" if task.sweep.sampling.greedy else "acceptance_rate"
    with folder_lock(_unfinished(paths)) if distributed.is_main() else contextlib.nullcontext():
        curve = measure_all(task, machine, paths, measure)
    if not distributed.is_main():
        return
    held_out = str(paths.held_out_calibration)
    known = {"measure": measure, "seeds": task.seeds, "steps": task.align.steps, "held_out": held_out, **hardware()}
    values = {**known, **dataclasses.asdict(curve)}
    paths.results.mkdir(parents=True, exist_ok=True)
    file = atomic_write(paths.results / "learning_curve.json", json.dumps(values, indent=1) + "\n")
    where = f"{len(task.seeds)} seeds, {task.align.steps} steps, held out: {held_out}, {hardware()['host_cpu']}; all in {file}"
    answer(arguments, "\n".join([verdict(curve, measure), where, "", *described(curve, measure)]), **values)


if __name__ == "__main__":
    with stage(), distributed.as_rank():
        main()
