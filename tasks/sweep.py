"""Stage `sweep`: plan and time the grid of one drafter on validation, and measure the chosen points on test.

The drafter of the first seed is swept over the whole grid, those of the others over `sweep.seed_methods`.

`python -m tasks.sweep --task translation --drafter aligned`
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from tasks.config import Params, Task
from tasks.corpora.example import read_jsonl
from tasks.decoding.decoder import Rows, Runtime
from tasks.decoding.registry import Pair, Request, build_method
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.settings import TABLES, SamplingSettings
from tasks.errors import InputError, stage
from tasks.evaluation.acceptance import measure_acceptance
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.model_sizes import pair_memory, sizes_of
from tasks.evaluation.record import SweepRecord, uploaded_hypotheses
from tasks.evaluation.results import codec
from tasks.evaluation.results.pair import (
    AcceptanceRate,
    DraftVocabulary,
    GridPoint,
    PairAcceptance,
    PairRecord,
    PairSizes,
    write_pair,
)
from tasks.evaluation.results.rows import FailedRow, SweepRow, SweepRowFile, TimedRow
from tasks.evaluation.rounds import scatter_text, vanilla_scatter
from tasks.evaluation.sweeping.batches import BatchTimer, points_by_batch
from tasks.evaluation.sweeping.grid import SweepPoint, expand
from tasks.evaluation.sweeping.outputs import Split
from tasks.evaluation.sweeping.point_evaluator import PointEvaluator
from tasks.evaluation.sweeping.row_writer import RowWriter
from tasks.evaluation.sweeping.runner import SweepRunner
from tasks.files import remove
from tasks.fingerprint import fingerprint
from tasks.lineage import lineage
from tasks.locks import timing_lock
from tasks.machine import set_up
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_architectures, check_lengths, check_pair, vocabulary_size
from tasks.models.pruned_head import pruned_head
from tasks.models.tokenizers import encode, load_tokenizer
from tasks.models.training_record import read_training_record
from tasks.paths import DRAFTERS, TaskPaths

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_CODE = [
    "decoding",
    "models",
    *(
        f"evaluation/sweeping/{module}"
        for module in ("costs", "hypotheses", "outputs", "point_evaluator", "replaying", "shown_examples")
    ),
    "evaluation/selection",
    "evaluation/sweeping/token_check",
    *(f"evaluation/{module}" for module in ("chrf", "mismatches", "quality", "repetition", "rounds", "statistics", "timing")),
]
"""Code that a row depends on. How the grid is written, and which of its points are timed, changes no row."""
_PLANNING = ("grid", "plan", "near", "sample", "seed_methods", "margins", "batch_sizes", "batch_examples")
"""Settings that select points or come after them, and do not change how a point is measured; its row stays valid.

Margins select points by bounds that the rows hold; their confidence changes the bounds and is part of the fingerprint.
"""
_SAMPLED = SamplingSettings(temperature=1.0)


def require_composable(grid: Iterable[SweepPoint], pair: Pair, request: Request) -> None:
    """Check that the pair can run every point, before any is measured.

    Raises:
        InputError: a method does not fit the pair or the sampling.
    """
    for point in grid:
        try:
            build_method(point.method, point.settings, pair, request)
        except InputError as error:
            raise InputError(f"sweep.grid asks for {point.method}: {error}") from None


def calibration_targets(grid: Sequence[SweepPoint], path: Path, tokenizer: PreTrainedTokenizerBase, limit: int) -> Rows:
    """Target tokens of the calibration set, at most `limit` each; empty if no point drafts from n-gram tables.

    Raises:
        InputError: the calibration set is missing or empty.
    """
    if not any(getattr(point.settings, "drafter", None) in TABLES for point in grid):
        return []
    examples = read_jsonl(path)
    if not examples:
        raise InputError(f"{path} is empty; run the stage calibrate again (dvc repro)")
    return encode(tokenizer, [example.references[0] for example in examples], limit)


@dataclasses.dataclass(frozen=True)
class LoadedPair:
    """The two models of a task, loaded for a sweep."""

    pair: Pair
    models: dict[str, PreTrainedModel]
    tokenizer: PreTrainedTokenizerBase
    device: str
    inputs: list[Path]
    """Files and folders whose content a row depends on."""

    @property
    def described(self) -> str:
        """Runtime and number format of the large model."""
        return str(getattr(self.pair.large, "described", type(self.pair.large).__name__))


def load_pair(params: Params, task: Task, paths: TaskPaths, drafter: Path, grid: Sequence[SweepPoint]) -> LoadedPair:
    """Load the models once for all points.

    Args:
        params: The whole file.
        task: The task's part of it.
        paths: Its files.
        drafter: The folder of the small model.
        grid: The points.

    Raises:
        InputError: a model is missing, or the models do not fit each other or the task.
    """
    device, dtype = set_up(params.machine)
    small, large = drafter, paths.model("large")
    tokenizer = load_tokenizer(large)
    check_pair(load_tokenizer(small), tokenizer, str(small), str(large))
    models = {name: load_model(folder, device, dtype) for name, folder in (("small", small), ("large", large))}
    check_architectures(models["small"], models["large"])
    for name, model in models.items():
        check_lengths(model, name, task.text)
    calibration = calibration_targets(grid, paths.calibration_set, tokenizer, task.text.max_target_tokens)
    runtime = Runtime.of(params.machine.runtime, params.machine.dtype)
    pair = open_pair(models["small"], models["large"], vocabulary_size(tokenizer, *models.values()), calibration, runtime)
    # The calibration set counts even if no point drafts from tables, so that rows stay valid when such a point is added.
    inputs = [small, large, paths.split(CHOSEN_ON), paths.split(REPORTED_ON), paths.calibration_set]
    return LoadedPair(pair, models, tokenizer, device.type, inputs)


def measure_pair(
    loaded: LoadedPair, sources: Rows, request: Request, task: Task, int8: bool
) -> tuple[PairAcceptance, PairSizes]:
    """Acceptance rates and sizes of the two models, which do not depend on the method."""
    sweep = task.sweep
    rates: dict[str, AcceptanceRate] = {}
    for name, sampling in (("greedy", SamplingSettings()), ("sampled", _SAMPLED)):
        with contextlib.suppress(RuntimeError):  # a model that cannot run is reported by the rows of the baselines
            rates[name] = measure_acceptance(
                *(loaded.pair, sources, sampling, sweep.seed, request.max_new_tokens, sweep.quality_batch),
                samples=sweep.bootstrap_samples,
            )
    sizes = {name: sizes_of(model, int8=int8) for name, model in loaded.models.items()}
    source_tokens = statistics.fmean(map(len, sources))
    return PairAcceptance(**rates), PairSizes(**sizes, source_tokens=source_tokens, shares_encoder=loaded.pair.shares_encoder)


def sweep_seeds(params: Params, task: Task, paths: TaskPaths, drafter: str) -> tuple[list[SweepRow], list[PairRecord]]:
    """Sweep the drafter of each seed; folders of seeds that are no longer asked for are removed.

    Returns:
        The rows of all seeds, and what each sweep recorded of its pair.
    """
    first, *others = task.seeds
    for folder in paths.sweep(drafter, first).parent.glob("*"):
        if folder.name not in map(str, others):
            remove(folder)
    done, pair = sweep(params, task, paths, drafter, first)
    pairs = [pair]
    fewer = [entry for entry in task.sweep.grid if entry.method in task.sweep.seed_methods]
    task = task.model_copy(update={"sweep": dataclasses.replace(task.sweep, grid=fewer, sample=0)})
    for seed in others:
        rows, pair = sweep(params, task, paths, drafter, seed, first=False)
        done, pairs = done + rows, [*pairs, pair]
    return done, pairs


def sweep(
    params: Params, task: Task, paths: TaskPaths, drafter: str, seed: int, *, first: bool = True
) -> tuple[list[SweepRow], PairRecord]:
    """Measure the points that have no row yet, write rows.jsonl and pair.json, and record every point in MLflow.

    Args:
        params: The whole file.
        task: The task's part of it.
        paths: Its files.
        drafter: One of `paths.DRAFTERS`.
        seed: Which of its drafters.
        first: Whether this is the first seed, whose sweep is the main one.

    Returns:
        The rows of this grid, and what it recorded of the pair.
    """
    grid = expand(task.sweep.grid)
    model, other = paths.model(drafter, seed), None if first else seed
    loaded = load_pair(params, task, paths, model, grid)
    request = Request(task.text.max_target_tokens, task.sweep.sampling, task.sweep.seed)
    require_composable(grid, loaded.pair, request)
    evaluator = PointEvaluator(loaded.pair, loaded.tokenizer, task.metric, request, task.sweep, loaded.device)
    validation, test = (
        Split(name, read_jsonl(paths.split(name)), loaded.tokenizer, task.text.max_source_tokens, task.sweep)
        for name in (CHOSEN_ON, REPORTED_ON)
    )
    origin = {
        name: value for name, value in lineage(inputs=list(map(str, loaded.inputs))).items() if not name.startswith("mlflow.")
    }
    work = work_fingerprint(params, task, loaded, origin)
    rows = SweepRowFile(paths.rows(drafter, other), work)
    measured_as = {"latency_examples": task.sweep.latency_examples, "seed": task.sweep.seed}
    settings = {"points": len(grid), **measured_as, "drafter_seed": seed}
    # The record is sent when it ends, inside the lock, so that nothing is sent during another sweep's timing.
    with timing_lock(loaded.device), SweepRecord(paths, drafter, loaded.described, settings, loaded.inputs, other) as record:
        acceptance, sizes = measure_pair(loaded, validation.sources, request, task, params.machine.dtype == "int8")
        training = read_training_record(model)
        pair = PairRecord(
            drafter=drafter,
            seed=seed,
            training=training,
            draft_vocabulary=_draft_vocabulary(loaded.models["small"]),
            runtime=loaded.described,
            acceptance=acceptance,
            sizes=sizes,
            memory=pair_memory(loaded.pair, sizes, task.text.max_source_tokens, task.text.max_target_tokens),
        )
        record.pair(pair)
        writer = RowWriter(evaluator, rows, paths.task, drafter, record.point)
        cache = cache_folder(work, paths.resume(f"sweep-{drafter}-{seed}"))
        runner = SweepRunner(writer, cache)
        done = runner.validate(grid, validation)
        done += runner.report(done, grid, test)
        rows.compact()
        by_batch = first and task.sweep.batch_sizes
        wanted = points_by_batch(done, grid, task.sweep.margins) if by_batch else []
        pair = dataclasses.replace(
            pair,
            batches=BatchTimer(evaluator, test).load_or_measure(wanted, cache) if by_batch else None,
            outputs=evaluator.check_vanilla(validation),
            vanilla_scatter=vanilla_scatter(done, CHOSEN_ON),
            costs=None if writer.costs is None else writer.costs.record(),
            plan=runner.plan,
            margins=task.sweep.margins,
            lineage={**origin, "settings": _settings_record(params, task)},
            grid=[GridPoint(method=point.method, settings=point.row_settings) for point in grid],
        )
        record.pair(pair)
        written = write_pair(pair, paths.sweep(drafter, other) / "pair.json")
        record.keep([paths.rows(drafter, other), written, *uploaded_hypotheses(written.parent)])
    return done, pair


def _draft_vocabulary(drafter: PreTrainedModel) -> DraftVocabulary | None:
    head = pruned_head(drafter)
    return None if head is None else DraftVocabulary(tokens=head.rows, **head.coverage)


def _settings_record(params: Params, task: Task) -> dict[str, JsonValue]:
    return {"sweep": codec.encode(task.sweep), "machine": codec.encode(params.machine.alone())}


def work_fingerprint(params: Params, task: Task, loaded: LoadedPair, origin: Mapping[str, str]) -> str:
    """The fingerprint of everything that a row depends on, the hardware included, since times belong to one machine."""
    hardware = {name: value for name, value in origin.items() if name.startswith("host_")}
    measured_as = {name: value for name, value in vars(task.sweep).items() if name not in _PLANNING}
    how = {
        "confidence": task.sweep.margins.confidence,
        "metric": task.metric,
        "text": task.text,
        "machine": params.machine.alone(),
        "ran on": [loaded.described, hardware],
    }
    return fingerprint(measured_as | how, loaded.inputs, _CODE)


def cache_folder(work: str, folder: Path) -> Path:
    """The folder of cached predictions for this fingerprint; folders of other fingerprints are removed."""
    for other in folder.glob("*") if folder.is_dir() else ():
        if other.name != work:
            shutil.rmtree(other)
    return folder / work


def main() -> None:
    """Sweep the drafters of one arm, resuming an interrupted sweep; failed points are listed on standard error."""
    from tasks.config import load, task_parser

    parser = task_parser(__doc__)
    parser.add_argument("--drafter", required=True, choices=DRAFTERS)
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    done, pairs = sweep_seeds(params, params.task(arguments.task), paths, arguments.drafter)
    timed = sum(isinstance(row, TimedRow) for row in done)
    failed = [row for row in done if isinstance(row, FailedRow)]
    for row in failed:
        print(f"failed: {row.split} {row.method} {row.settings}: {row.error}", file=sys.stderr)
    counts = f"{len(done)} points, {timed} timed, {len(failed)} failed"
    print(f"{arguments.task}/{arguments.drafter}: {counts} ({pairs[0].runtime})")
    for pair in pairs:
        if pair.vanilla_scatter is not None:
            print(scatter_text(pair.vanilla_scatter, f"{arguments.drafter}, seed {pair.seed}"))
    if len(failed) == len(done):
        raise InputError(f"every point of the sweep failed; the first: {failed[0].error}")


if __name__ == "__main__":
    with stage():
        main()
