"""What a comparison with the champion decided, with its numbers: for a page, for MLflow and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.decoding.pair_folder import PairManifest
from tasks.evaluation.promotion.measuring import MeasuredSides, Side
from tasks.evaluation.promotion.rule import Gain
from tasks.evaluation.report.formatting import markdown_table, method_name, metric_name, number_text, settings_text
from tasks.evaluation.rounds import combined

NOT_PROMOTED = 3
"""The exit status where the champion stays."""


@dataclass(frozen=True)
class Promotion:
    """What a run decided, and on which numbers."""

    task: str
    candidate: str
    """Number of the version."""
    champion: str
    """Number of the version that was champion before; empty where there was none."""
    promoted: bool
    line: str
    """The decision and its reason."""
    notes: list[str] = field(default_factory=list)
    table: list[list[str]] = field(default_factory=list)
    """Headings and rows: both sides, and the difference."""
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The exit status of the command."""
        return 0 if self.promoted else NOT_PROMOTED

    def as_json(self) -> dict[str, Any]:
        """The result for programs, with its page."""
        return {**dataclasses.asdict(self), "markdown": self.markdown()}

    def markdown(self) -> str:
        """The run as a page."""
        lines = [f"# {self.task}: version {self.candidate} beside the champion", "", self.line]
        if self.table:
            lines += ["", *markdown_table(self.table[0], self.table[1:])]
        return "\n".join([*lines, *(["", *(f"- {note}" for note in self.notes)] if self.notes else []), ""])


def differences_of(champion: PairManifest, measured: MeasuredSides, metric: str, origin: Mapping[str, str]) -> list[str]:
    """What the reader has to know where the champion was made from something else.

    Args:
        champion: Its manifest.
        measured: Both sides.
        metric: By which both are scored.
        origin: Of this comparison, with the hash of its examples (`lineage`).
    """
    known, found = champion.origin.get("sweep") or {}, list[str]()
    name = next((name for name in origin if name.startswith("input ")), "")
    if name and known.get(name) != origin[name]:
        found.append(
            "The champion was measured on another test split when it was reported. Here both decode the current one; the "
            "champion may have been trained on texts of it, which would favour the champion."
        )
    if measured.vocabularies_differ:
        found.append(
            "The two pairs have different tokenizers: each is timed from its own source tokens to its own output tokens."
        )
    if champion.measured.get("metric") not in (None, metric):
        found.append(f"The champion was chosen by {champion.measured['metric']}; both are scored by {metric} here.")
    return found


def table_of(measured: MeasuredSides, sides: Sequence[Side], manifests: Sequence[PairManifest], found: Gain) -> list[list[str]]:
    """Headings, a row for each side, and a row for what the candidate gives."""
    metric = metric_name(measured.qualities[0].metric)
    rows = [["", "decodes with", metric, "ms a text, median", "ms a text, mean", "runtime"]]
    times = [np.asarray(one) for one in combined(measured.rounds)]
    sides_in_order = zip(sides, manifests, measured.qualities, times, measured.runtimes, strict=True)
    for side, manifest, quality, milliseconds, runtime in sides_in_order:
        point = side.point or manifest.point
        what = " ".join(filter(None, [method_name(point.method), settings_text(point.plain_settings)]))
        quality_cell = number_text(quality.value, quality.interval)
        rows.append([side.name, what, quality_cell, f"{np.median(milliseconds):.2f}", f"{milliseconds.mean():.2f}", runtime])
    difference = number_text(found.quality_difference, found.quality_interval, sign="+")
    speed = f"{number_text(found.speed_ratio, found.speed_interval, unit='×')} as fast"
    return [*rows, ["difference", "", difference, "", speed, ""]]


def numbers_of(measured: MeasuredSides, found: Gain) -> dict[str, float]:
    """The numbers under flat names; milliseconds are those of a text, medians over the rounds."""
    numbers: dict[str, float] = {}
    for name, quality, times in zip(("candidate", "reference"), measured.qualities, combined(measured.rounds), strict=True):
        numbers |= {f"{name}_quality": quality.value, f"{name}_latency_ms": float(np.mean(times))}
        numbers |= {f"{name}_latency_ms_p{rank}": float(np.percentile(times, rank)) for rank in (50, 95)}
    for name in ("quality_difference", "speed_ratio"):
        low, high = found.quality_interval if name == "quality_difference" else found.speed_interval
        numbers |= {name: getattr(found, name), f"{name}_low": low, f"{name}_high": high}
    return numbers
