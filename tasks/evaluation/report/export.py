"""The recommended pair as a folder that decodes, and as the model that MLflow registers.

`tasks.decoding.pair_folder` defines the folder: both models, the operating point, and what it was measured to give. The numbers
under `measured` are those of `summary.json`; `accepted` says how many drafted tokens of each setting the large model kept, for
a user who runs the pair in another engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.corpora.example import stream_jsonl
from tasks.decoding.pair_folder import PairManifest, calibration_targets, read_examples, read_manifest, write_pair_folder
from tasks.decoding.registry import configure_method
from tasks.errors import InputError, require_whole
from tasks.evaluation.report.formatting import field_text, settings_text
from tasks.evaluation.report.recommendation import processor
from tasks.evaluation.results.codec import encode
from tasks.evaluation.results.rows import Measurements
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.settings import CHOSEN_ON, REPORTED_ON
from tasks.models.settings import TextSettings
from tasks.paths import TaskPaths
from tasks.tracking import RegisteredModel, model_name

_ARM = "aligned"
"""The arm of the drafter in the folder where the large model alone is recommended."""
_MEASURED = (
    *("quality", "quality_interval", "quality_difference", "quality_difference_interval", "difference_bounds"),
    *("speedup", "speedup_interval", "latency_ms", "latency_ms_p50", "latency_ms_p95", "latency_ms_p99"),
    *("tokens_per_large_call", "mean_accepted_length", "accepted_share", "examples", "timed_examples", "timed_rounds"),
)
_EXAMPLES = 16
"""Sources of validation that are put beside the models."""
_ACCEPTED = ("drafted", "accepted", "large_calls", "tokens")
_NUMBERS = ("quality", "quality_difference", "speedup")


def export_pair(summary: Summary, text: TextSettings, paths: TaskPaths, seed: int) -> Path:
    """Write the recommended pair to `results/TASK/pair`.

    Args:
        summary: With the recommendation; where that is the large model alone, the point is `vanilla_large`.
        text: Lengths and chat template of the task.
        paths: The task's files.
        seed: Of the drafters that were swept.

    Raises:
        InputError: a model is missing or damaged.
    """
    best = summary.recommended
    arm = _ARM if best is None else best.arm
    point = configure_method("vanilla_large", {}) if best is None else configure_method(best.method, best.settings)
    manifest = PairManifest(
        point,
        text,
        summary.task,
        summary.recommendation.headline or summary.recommendation.text,
        {**measured(summary), "accepted": list(accepted(summary, arm))},
        {"drafter": arm, "seed": seed, "sweep": summary.pairs[arm].lineage or {}},
    )
    large, small = paths.model("large"), paths.model(arm, seed)
    for folder, stage in ((large, "finetune_large"), (small, "align" if arm == _ARM else "control")):
        if not folder.is_dir():
            raise InputError(f"{folder} is missing; train it with dvc repro {stage}@{paths.task} (make repro trains all)")
        require_whole(folder, f"make it again with dvc repro {stage}@{paths.task}")
    examples = [example.source for example in itertools.islice(stream_jsonl(paths.split(CHOSEN_ON)), _EXAMPLES)]
    calibration = calibration_targets([point], paths.calibration_set, large, text.max_target_tokens)
    return write_pair_folder(paths.results / "pair", manifest, large, small, examples, calibration)


def measured(summary: Summary) -> dict[str, Any]:
    """What the recommended point was measured to give: plain values by split, and those of the large model alone."""

    def numbers(found: Measurements | None) -> dict[str, Any] | None:
        values = {} if found is None else encode(found)
        return None if found is None else {name: values[name] for name in _MEASURED if values.get(name) is not None}

    best, vanilla = summary.recommended, summary.vanilla.large
    return {
        "metric": summary.metric,
        "signature": summary.signature,
        "corpus": summary.corpus,
        "processor": processor(summary),
        "runtime": summary.pairs[_ARM if best is None else best.arm].runtime,
        summary.split: numbers(best),
        "test": numbers(best and best.test),
        "vanilla": {summary.split: numbers(vanilla), "test": numbers(vanilla.test)},
    }


def accepted(summary: Summary, arm: str) -> Iterator[dict[str, Any]]:
    """How much of its drafts the large model kept, for each setting of a method whose output is the large model's own, and for
    the recommended point, on the split of the choice. These are exact counts of the replay, greedy, not predictions.
    """
    best = summary.recommended
    for point in summary.points:
        wanted = point is best or (point.lossless and point.drafter == "small")
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


def registered_pair(folder: Path) -> RegisteredModel:
    """Return a pair's folder as the model `draftline-TASK`. The tags of its version say what is deployed and what was measured,
    on test or, where test did not measure it, on validation; of a pair whose large model is recommended alone, what that model
    was measured to give. The description is the headline of the verdict, then the tags.

    Raises:
        InputError: the folder is damaged.
    """
    manifest = read_manifest(folder)
    known, point = manifest.measured, manifest.point
    splits = known if known.get(REPORTED_ON) or known.get(CHOSEN_ON) else known["vanilla"]
    split = REPORTED_ON if splits.get(REPORTED_ON) else CHOSEN_ON
    numbers = {name: field_text(splits[split], name) for name in _NUMBERS if name in splits[split]}
    chosen = {"task": manifest.task, "method": point.method, "settings": settings_text(point.plain_settings)}
    about = {"arm": manifest.origin["drafter"], "metric": known["metric"], "processor": known["processor"], "split": split}
    tags = {name: str(value) for name, value in {**chosen, **about, **numbers}.items() if value}
    return RegisteredModel(
        model_name(manifest.task),
        str(folder),
        "\n".join([manifest.chosen, "", *(f"- {name.replace('_', ' ')}: {value}" for name, value in tags.items())]),
        tags,
        {
            "verdict": manifest.chosen,
            "operating_point": {"method": point.method, "settings": point.plain_settings},
            "measured": {name: value for name, value in known.items() if name != "accepted"},
            "origin": manifest.origin,
        },
        read_examples(folder),
    )
