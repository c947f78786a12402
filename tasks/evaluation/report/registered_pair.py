"""The pair's folder as MLflow registers it: under which name, with which verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.decoding.pair_folder import PairManifest, read_examples, read_manifest
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.report.formatting import method_name, metric_name, number_text, settings_text
from tasks.tracking import RegisteredModel, model_name

_FORMATS: dict[str, dict[str, Any]] = {
    "quality": {},
    "quality_difference": {"sign": "+"},
    "speedup": {"unit": "×"},
}


def registered_pair(folder: Path) -> RegisteredModel:
    """Return a pair's folder as the model `draftline-TASK`, with the verdict as the description of its version.

    Raises:
        InputError: the folder is damaged.
    """
    manifest = read_manifest(folder)
    numbers = numbers_text(manifest)
    tags = {
        "task": manifest.task,
        "method": manifest.point.method,
        "settings": settings_text(manifest.point.plain_settings),
        "drafter": str(manifest.origin["drafter"]),
        "metric": str(manifest.measured["metric"]),
        "processor": str(manifest.measured["processor"]),
        **numbers,
    }
    return RegisteredModel(
        model_name(manifest.task),
        str(folder),
        description(manifest, numbers),
        {name: value for name, value in tags.items() if value},
        {
            "verdict": manifest.chosen,
            "operating_point": {"method": manifest.point.method, "settings": manifest.point.plain_settings},
            "measured": {name: value for name, value in manifest.measured.items() if name != "accepted"},
            "origin": manifest.origin,
        },
        read_examples(folder),
    )


def numbers_text(manifest: PairManifest) -> dict[str, str]:
    """What was measured of the point as text with 95 % intervals: on test, or on validation where test did not measure it.

    Of a pair whose large model is recommended alone it is what was measured of that model.
    """
    known = manifest.measured
    if not (known.get(REPORTED_ON) or known.get(CHOSEN_ON)):
        known = known["vanilla"]
    split = REPORTED_ON if known.get(REPORTED_ON) else CHOSEN_ON
    measured = known[split]
    texts = {
        name: number_text(measured[name], measured.get(f"{name}_interval"), **form)
        for name, form in _FORMATS.items()
        if name in measured
    }
    return {"split": split, **texts}


def description(manifest: PairManifest, numbers: dict[str, str]) -> str:
    """The verdict in Markdown: the headline, then a list of what is deployed and what was measured."""
    settings = settings_text(manifest.point.plain_settings)
    point = method_name(manifest.point.method) + (f" ({settings})" if settings else "")
    quality = f"- {metric_name(manifest.measured['metric'])} on {numbers['split']}: {numbers['quality']}"
    if "quality_difference" in numbers:
        quality += f"; difference from the large model alone: {numbers['quality_difference']}"
    lines = [manifest.chosen, "", f"- operating point: {point}, with the {manifest.origin['drafter']} drafter", quality]
    if "speedup" in numbers:
        lines.append(f"- speed-up over the large model alone on {numbers['split']}: {numbers['speedup']}")
    return "\n".join([*lines, f"- processor: {manifest.measured['processor']}"])
