"""The two models of a task, loaded once for all points of a sweep, and what is measured of them whatever the method."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.corpora.example import read_jsonl
from tasks.decoding.decoder import Rows
from tasks.decoding.opening import OpenedModels, open_models
from tasks.decoding.registry import Pair, Request, build_method
from tasks.decoding.settings import CALIBRATED, SamplingSettings
from tasks.errors import InputError
from tasks.evaluation.acceptance import measure_acceptance
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.model_sizes import sizes_of
from tasks.evaluation.results.pair import AcceptanceRate, DraftVocabulary, PairAcceptance, PairSizes
from tasks.evaluation.sweeping.grid import SweepPoint
from tasks.models.pruned_head import pruned_head
from tasks.models.tokenizers import encode
from tasks.paths import TaskPaths
from tasks.schema import Params, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
    """Target tokens of the calibration set, at most `limit` each; empty if no point drafts from it.

    Raises:
        InputError: the calibration set is missing or empty.
    """
    if not any(getattr(point.settings, "drafter", None) in CALIBRATED for point in grid):
        return []
    examples = read_jsonl(path)
    if not examples:
        raise InputError(f"{path} is empty; run the stage calibrate again (dvc repro)")
    return encode(tokenizer, [example.references[0] for example in examples], limit)


@dataclass(frozen=True)
class LoadedPair(OpenedModels):
    """The two models of a task, loaded for a sweep."""

    inputs: list[Path]
    """Files and folders whose content a row depends on."""

    @property
    def draft_vocabulary(self) -> DraftVocabulary | None:
        """What the small model predicts; None where that is all tokens."""
        head = pruned_head(self.models["small"])
        return None if head is None else DraftVocabulary(tokens=head.rows, **head.coverage)


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
    large = paths.model("large")
    loaded = open_models(drafter, large, params.machine, task.text)
    calibration = calibration_targets(grid, paths.calibration_set, loaded.tokenizer, task.text.max_target_tokens)
    # The calibration set counts even if no point drafts from it, so that rows stay valid when such a point is added.
    inputs = [drafter, large, paths.split(CHOSEN_ON), paths.split(REPORTED_ON), paths.calibration_set]
    pair = dataclasses.replace(loaded.pair, calibration=calibration)
    return LoadedPair(pair, loaded.models, loaded.tokenizer, loaded.device, inputs)


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
