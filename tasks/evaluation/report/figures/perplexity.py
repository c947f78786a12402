"""Perplexity with fallback at several thresholds (BiLD-v1, Figure 4, language modelling)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt

from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.figure import Figure, Panel
from tasks.evaluation.report.figures.series import Record, Series
from tasks.evaluation.report.figures.theme import COLORS

if TYPE_CHECKING:
    from tasks.perplexity import FallbackPoint

_NEAR = 0.05
"""Share of an axis within which two names would overprint each other."""
_PAIR = Series("small model with fallback", COLORS["unaligned"])


def fallback_curve(points: Sequence[FallbackPoint]) -> Figure:
    """Perplexity against the large model's share and, where every threshold was timed, against latency.

    Thresholds whose perplexity is infinite are left out.
    """
    drawn = sorted((point for point in points if math.isfinite(point.found.value)), key=lambda point: point.threshold)
    share = [_record(point, 100 * point.found.large_share) for point in drawn]
    panels = [_panel(share, "positions that the large model scores (%)")]
    latency = [_record(point, 1 / point.times.speedup) for point in drawn if point.times is not None]
    if drawn and len(latency) == len(drawn):
        panels.append(_panel(latency, "latency relative to the large model alone (= 1)"))
    caption = (
        "Each mark is a fallback threshold: the large model scores the positions where the small one's highest probability "
        "is at or under it, none at 0 and all at 1. Lower is better; further left costs less."
    )
    return Figure("Perplexity with fallback", caption, panels, "Kim et al., first arXiv version, Figure 4")


def _record(point: FallbackPoint, x: float) -> Record:
    value, threshold = point.found.value, f"{point.threshold:g}"
    text = f"fallback {threshold}: perplexity {value:.2f}, large model at {point.found.large_share:.1%}"
    return {"x": x, "y": value, "series": _PAIR.name, "threshold": threshold, "text": text}


def _panel(records: Sequence[Record], x: str) -> Panel:
    marks = parts.curves(records, [_PAIR], x, "perplexity", tooltip="text:N")
    across, up = alt.X("x:Q", title=x, scale=parts.PADDED), alt.Y("y:Q", title="perplexity", scale=parts.PADDED)
    names = alt.Chart(parts.data(_apart(records))).mark_text(align="left", dx=7, dy=-7, fontSize=11)
    return alt.layer(*marks, names.encode(x=across, y=up, text="threshold:N"))


def _apart(records: Sequence[Record]) -> list[Record]:
    """The records whose names do not overprint that of an earlier one."""
    named: list[Record] = []
    for record in records:
        if all(
            _distance(record, other, records, "x") > _NEAR or _distance(record, other, records, "y") > _NEAR for other in named
        ):
            named.append(record)
    return named


def _distance(one: Record, other: Record, records: Sequence[Record], axis: str) -> float:
    """As a share of the axis."""
    values = [float(record[axis]) for record in records]
    extent = max(values) - min(values)
    return abs(float(one[axis]) - float(other[axis])) / extent if extent else 0.0
