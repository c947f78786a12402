"""How to deploy a point: the folders of both models, the configuration, and every setting in plain words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from tasks.decoding.method import OF_SMALL
from tasks.decoding.registry import METHODS
from tasks.evaluation.results.codec import Setting
from tasks.evaluation.results.rows import TimedPoint
from tasks.evaluation.results.summary import Summary
from tasks.paths import TaskPaths

_METHODS = {
    "bild": "BiLD: the small model drafts; the large model takes over when the small model is unsure, and corrects its drafts.",
    "bild_authors": "BiLD as its authors' code runs it: after each correction the large model writes one more token itself.",
    "speculative": "Speculative decoding: of what is drafted, the large model keeps what it would have written itself.",
}
_DRAFTERS = {
    "aligned": "The aligned drafter is the small model that was trained on what the large model writes.",
    "unaligned": "The unaligned drafter is the small model that was trained on references alone.",
}
_YAML = {"inf": ".inf", "True": "true", "False": "false"}


def configuration(summary: Summary, point: TimedPoint | None) -> list[str]:
    """The models' folders and the settings, as lines of a configuration file; of the large model alone without a point."""
    paths = TaskPaths(summary.task)
    lines = [f"large_model: {paths.model('large')}"]
    if point is None:
        return [*lines, "method: vanilla_large"]
    if point.settings.get("drafter", "small") in OF_SMALL:
        lines.append(f"small_model: {paths.model(point.arm, summary.pairs.of(point.arm).seed)}")
    lines.append(f"method: {point.method}")
    # A switch that is off is the default of every method.
    named = {name: value for name, value in point.settings.items() if value is not False}
    return lines + [f"{name}: {_YAML.get(str(value), value)}" for name, value in named.items()]


def explained(point: TimedPoint) -> list[str]:
    """The method and the drafter in a sentence each, then a sentence for each setting that is not switched off."""
    found = [_METHODS[point.method]] if point.method in _METHODS else []
    if point.settings.get("drafter", "small") in OF_SMALL:
        found.append(_DRAFTERS[point.arm])
    named = {name: value for name, value in point.settings.items() if name != "drafter" or value != "small"}
    return found + [_sentence(point, name, value) for name, value in named.items() if value is not False]


def _sentence(point: TimedPoint, name: str, value: Setting) -> str:
    known = dict(_known(point, value))
    if name in known:
        return known[name]
    method = METHODS.get(point.method)
    fields = () if method is None else dataclasses.fields(method.settings)
    described = {one.name: str(one.metadata.get("description", "")) for one in fields}
    shown = "" if value is True else f" = {value}"
    return f"{name}{shown}: {described.get(name, 'see docs/settings.md')}"


def _known(point: TimedPoint, value: Setting) -> Iterator[tuple[str, str]]:
    """Sentences by the name of the setting; only the one that `value` belongs to is used."""
    yield "drafter", f"Drafts come from: {value}."
    if point.method in ("bild", "bild_authors"):
        yield "fallback_threshold", _fallback(value)
        yield "rollback_threshold", _rollback(value)
        yield "max_draft", f"After {value} drafted tokens the large model checks them in any case."
    if "draft_length" in point.settings:
        yield "draft_length", f"{value} tokens are drafted at a time, and the large model checks them in one run."


def _fallback(value: Setting) -> str:
    if not value:
        return "Fallback threshold 0: the small model never hands over out of doubt."
    return (
        f"Fallback threshold {value}: the small model keeps drafting while it gives its next word piece a probability above "
        f"{float(value):.0%}, and hands over to the large model when it is less sure."
    )


def _rollback(value: Setting) -> str:
    nats = float(value or 0.0)
    if math.isinf(nats):
        return "Rollback threshold ∞: the large model never takes back what the small one wrote."
    return (
        f"Rollback threshold {nats:g}: the large model takes back the first drafted word piece to which it gives a probability "
        f"below {math.exp(-nats):.1%} (e^−{nats:g}), and writes its own instead."
    )
