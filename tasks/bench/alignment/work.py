"""The drafters of a comparison, trained and measured: each once, several at the same time, each kept when it is done."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tasks.bench.alignment.drafters import Comparison, train_drafter
from tasks.bench.alignment.measuring import PairEvaluation, measurement_fingerprint
from tasks.bench.alignment.rows import DrafterRow, PointResult, Run, read_record, write_record
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.results.codec import joined
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweeping.costs import Costs
from tasks.evaluation.sweeping.grid import expand
from tasks.training.loop import DivergedError

_ROW, _TESTED = "validation.json", "test.json"


@dataclass(frozen=True, kw_only=True)
class TestedPoint:
    """What test says of the point that validation chose for a drafter."""

    __test__ = False  # no test of pytest's

    measured: str
    """Fingerprint of the drafter, its point, and of settings, text, cost model and code of the measurement."""
    point: PointResult


def stored_row(comparison: Comparison, run: Run, costs: Costs) -> DrafterRow | None:
    """Return the row of a drafter that an earlier run has measured under these conditions; None if there is none."""
    known = read_record(DrafterRow, comparison.folder(run) / _ROW)
    return known if known is not None and known.measured == _measured(comparison, run, CHOSEN_ON, costs) else None


def finished_row(comparison: Comparison, run: Run, costs: Costs) -> DrafterRow | str:
    """Train a drafter and measure it on validation, unless both is done, and return its row; the error if training diverged."""
    known = stored_row(comparison, run, costs)
    if known is not None:
        return known
    try:
        cost = train_drafter(comparison, run)
    except DivergedError as error:
        return str(error)
    evaluation = PairEvaluation(comparison, comparison.folder(run), CHOSEN_ON)
    with tempfile.TemporaryDirectory() as folder:
        found = evaluation.measure(costs, Path(folder))
    named = {"recipe": run.recipe, "seed": run.seed, "steps": run.steps}
    row = joined(DrafterRow, cost, found, **named, measured=_measured(comparison, run, CHOSEN_ON, costs))
    write_record(comparison.folder(run) / _ROW, row)
    return row


def tested_point(comparison: Comparison, run: Run, costs: Costs, chosen: PointResult) -> PointResult:
    """Measure on test the point that validation chose for a drafter, unless that is done."""
    path = comparison.folder(run) / _TESTED
    work = f"{_measured(comparison, run, REPORTED_ON, costs)} {chosen.settings}"
    known = read_record(TestedPoint, path)
    if known is None or known.measured != work:
        [point] = expand([GridSettings(method="bild", values={name: [value] for name, value in chosen.settings.items()})])
        evaluation = PairEvaluation(comparison, comparison.folder(run), REPORTED_ON)
        with tempfile.TemporaryDirectory() as folder:
            found = evaluation.measure_point(point, costs, Path(folder))
        known = TestedPoint(measured=work, point=found)
        write_record(path, known)
    return known.point


def finished_rows(
    comparison: Comparison, runs: Sequence[Run], costs: Costs, processes: int
) -> Iterator[tuple[Run, DrafterRow | str]]:
    """Yield every run with its row, or with the error that ended its training, as they finish: stored ones first.

    Args:
        comparison: Its settings have one CPU thread, so that processes do not disturb each other.
        runs: The drafters, each once.
        costs: The cost model.
        processes: Drafters that are trained at the same time; 1 trains in this process.
    """
    waiting = []
    for run in runs:
        known = stored_row(comparison, run, costs)
        if known is None:
            waiting.append(run)
        else:
            yield run, known
    if processes == 1 or len(waiting) <= 1:
        yield from ((run, finished_row(comparison, run, costs)) for run in waiting)
        return
    os.environ.setdefault("TQDM_DISABLE", "1")  # the bars of several processes would overwrite each other
    # A forked process would share the threads and locks of torch with this one.
    with ProcessPoolExecutor(min(processes, len(waiting)), mp_context=multiprocessing.get_context("spawn")) as pool:
        started = {pool.submit(finished_row, comparison, run, costs): run for run in waiting}
        try:
            for future in as_completed(started):
                yield started[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _measured(comparison: Comparison, run: Run, split: str, costs: Costs) -> str:
    return measurement_fingerprint(comparison, comparison.work(run), split, costs)
