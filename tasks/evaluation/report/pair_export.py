"""The recommended pair as a folder that decodes: both models, the operating point, what it was measured to give and accept.

`tasks.decoding.pair_folder` defines the folder. The numbers under `measured` are those of `summary.json`; `accepted` says how
many drafted tokens of each setting the large model kept, for a user who runs the pair in another engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.corpora.example import read_jsonl, stream_jsonl
from tasks.decoding.method import CALIBRATED
from tasks.decoding.pair_folder import PairManifest, write_pair_folder
from tasks.decoding.registry import configure_method
from tasks.errors import InputError
from tasks.evaluation.frontier import CHOSEN_ON
from tasks.evaluation.report.headline import processor
from tasks.evaluation.results.codec import encode
from tasks.evaluation.results.rows import Measurements
from tasks.evaluation.results.summary import Summary
from tasks.models.settings import TextSettings
from tasks.paths import TaskPaths

_DRAFTER = "aligned"
"""The drafter in the folder where the large model alone is recommended."""
_MEASURED = (
    *("quality", "quality_interval", "quality_difference", "quality_difference_interval", "difference_bounds"),
    *("speedup", "speedup_interval", "latency_ms", "latency_ms_p50", "latency_ms_p95", "latency_ms_p99"),
    *("tokens_per_large_call", "mean_accepted_length", "accepted_share", "examples", "timed_examples"),
)
_EXAMPLES = 16
"""Sources of validation that are put beside the models."""
_ACCEPTED = ("drafted", "accepted", "large_calls", "tokens")


def export_pair(summary: Summary, text: TextSettings, paths: TaskPaths, seed: int) -> Path:
    """Write the recommended pair to `results/TASK/pair`.

    Args:
        summary: With the recommendation; where that is the large model alone, the point is `vanilla_large`.
        text: Lengths and chat template of the task.
        paths: The task's files.
        seed: Of the drafters that were swept.

    Raises:
        InputError: a model is missing.
    """
    best = summary.recommended
    arm = _DRAFTER if best is None else best.arm
    point = configure_method("vanilla_large", {}) if best is None else configure_method(best.method, best.settings)
    manifest = PairManifest(
        point,
        text,
        summary.task,
        summary.recommendation.headline or summary.recommendation.text,
        {**measured(summary), "accepted": list(accepted(summary, arm))},
        {"drafter": arm, "seed": seed, "sweep": summary.pairs.of(arm).lineage or {}},
    )
    large, small = paths.model("large"), paths.model(arm, seed)
    for folder, stage in ((large, "finetune_large"), (small, "align" if arm == _DRAFTER else "control")):
        if not folder.is_dir():
            raise InputError(f"{folder} is missing; train it with dvc repro {stage}@{paths.task} (make repro trains all)")
    examples = [example.source for example in itertools.islice(stream_jsonl(paths.split(CHOSEN_ON)), _EXAMPLES)]
    calibration = None
    if getattr(point.settings, "drafter", None) in CALIBRATED:
        calibration = _targets(paths, large, text.max_target_tokens)
    return write_pair_folder(paths.results / "pair", manifest, large, small, examples, calibration)


def measured(summary: Summary) -> dict[str, Any]:
    """What the recommended point was measured to give: plain values by split, beside those of the large model alone."""
    best, vanilla = summary.recommended, summary.vanilla.large
    return {
        "metric": summary.metric,
        "signature": summary.signature,
        "corpus": summary.corpus,
        "processor": processor(summary),
        "runtime": summary.pairs.of(_DRAFTER if best is None else best.arm).runtime,
        summary.split: _numbers(best),
        "test": _numbers(best and best.test),
        "vanilla": {summary.split: _numbers(vanilla), "test": _numbers(vanilla.test)},
    }


def _numbers(found: Measurements | None) -> dict[str, Any] | None:
    if found is None:
        return None
    values = encode(found)
    return {name: values[name] for name in _MEASURED if values.get(name) is not None}


def accepted(summary: Summary, arm: str) -> Iterator[dict[str, Any]]:
    """How much of its drafts the large model kept, for each setting of a method whose output is the large model's own, and for
    the recommended point, on the split of the choice. These are exact counts of the replay, greedy, not predictions.
    """
    best = summary.recommended
    for point in summary.points:
        wanted = point is best or (point.lossless and point.settings.get("drafter", "small") == "small")
        if point.arm == arm and wanted and point.counts.drafted:
            counts = point.counts
            yield {
                "method": point.method,
                "settings": dict(point.settings),
                "split": summary.split,
                "examples": point.examples,
                **{name: getattr(counts, name) for name in _ACCEPTED},
                "accepted_share": counts.accepted / counts.drafted,
                "mean_accepted_length": point.mean_accepted_length,
                "acceptance_by_position": point.acceptance_by_position,
            }


def _targets(paths: TaskPaths, large: Path, limit: int) -> list[list[int]]:
    """The target tokens of the calibration set."""
    from tasks.models.tokenizers import encode as encode_text
    from tasks.models.tokenizers import load_tokenizer

    references = [example.references[0] for example in read_jsonl(paths.calibration_set)]
    return encode_text(load_tokenizer(large), references, limit)
