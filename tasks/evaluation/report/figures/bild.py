"""The figures of Kim et al., *Speculative Decoding with Big Little Decoder*, NeurIPS 2023, on thresholds and ablations."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import altair as alt

from tasks.evaluation.frontier import TradeOff, frontier
from tasks.evaluation.measurements import ratio
from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.figure import Figure, Panel
from tasks.evaluation.report.figures.series import Record, Series, point_record
from tasks.evaluation.report.figures.theme import COLORS, DIVERGING, INK, PALETTE
from tasks.evaluation.report.formatting import metric_name
from tasks.evaluation.report.selection import speedup_of
from tasks.evaluation.results.rows import OperatingPoint, TimedPoint
from tasks.evaluation.results.summary import Summary

_THRESHOLDS = ("fallback_threshold", "rollback_threshold")
_CELL = 28
"""Pixels of a row of a map."""
_GAPS = alt.Scale(padding=0.06)
_POLICIES = (
    Series("BiLD", PALETTE[0]),
    Series("without fallback", PALETTE[1], "square", parts.DASHED),
    Series("without rollback", INK, "triangle-up", parts.DOTTED),
)


def threshold_maps(summary: Summary) -> Figure | None:
    """Quality and speed-up over both thresholds; None where no drafter was swept over two values of each."""
    panels: list[Panel] = []
    rows = 0
    for arm in COLORS:
        points = _largest_grid(_bild(summary, arm))
        fallbacks, rollbacks = ([_number(x) for x in sorted({_threshold(p, name) for p in points})] for name in _THRESHOLDS)
        if min(len(fallbacks), len(rollbacks)) > 1:
            rows = max(rows, len(rollbacks))
            x = alt.X("x:O", sort=fallbacks, title="fallback threshold (probability)", scale=_GAPS, axis=alt.Axis(labelAngle=0))
            y = alt.Y("y:O", sort=rollbacks[::-1], title="rollback threshold (nats)", scale=_GAPS)
            cells = [_cell(summary, point, points) for point in points]
            title = f"{arm}: {metric_name(summary.metric)} − vanilla large (points)"
            panels.append(_heat_map(cells, x, y, "difference", 0.0, "+.2f", title))
            panels.append(_heat_map(cells, x, y, "speedup", 1.0, ".2f", f"{arm}: speed-up over vanilla large (×)"))
    caption = (
        "Each cell is one setting. Left: quality minus that of vanilla large. Right: speed-up; framed bold numbers were "
        "measured, the others are predicted from counts. Further right the small model falls back more often, further down "
        "the large model rolls back more often. Blue is better than vanilla large, orange is worse."
    )
    after, height = "Kim et al. 2023, Figure 10, drawn there as curves", max(120, _CELL * rows)
    return Figure("BiLD's thresholds", caption, panels, after, height, zoom=False) if panels else None


def _bild(summary: Summary, arm: str) -> list[OperatingPoint]:
    own = [point for point in summary.points if (point.method, point.arm) == ("bild", arm)]
    return [point for point in own if set(_THRESHOLDS) <= point.settings.keys()]


def _threshold(point: OperatingPoint, name: str) -> float:
    """A threshold as a number; infinity is recorded as text."""
    return float(point.settings[name] or 0.0)


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"


def _largest_grid(points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    """The largest group of points that differ in their thresholds alone."""
    groups: dict[str, list[OperatingPoint]] = {}
    for point in points:
        rest = {name: value for name, value in point.settings.items() if name not in _THRESHOLDS}
        groups.setdefault(json.dumps([rest, repr(point.sampling)], sort_keys=True), []).append(point)
    return max(groups.values(), key=len, default=[])


def _cell(summary: Summary, point: OperatingPoint, points: Sequence[OperatingPoint]) -> Record:
    x, y = (_number(_threshold(point, name)) for name in _THRESHOLDS)
    speedup, measured = speedup_of(point, points)
    difference = point.quality_difference
    return parts.point_record(summary, point, x=x, y=y, difference=difference, speedup=speedup, measured=measured)


def _heat_map(cells: Sequence[Record], x: alt.X, y: alt.Y, field: str, middle: float, number: str, title: str) -> Panel:
    """A cell for each pair of thresholds, coloured evenly about `middle`; measured speed-ups are framed."""
    reach = max((abs(cell[field] - middle) for cell in cells if cell[field] is not None), default=0.0) or 1.0
    scale = alt.Scale(domain=[middle - reach, middle, middle + reach], range=list(DIVERGING), interpolate="rgb")
    text = alt.Text(f"{field}:Q", format=number)
    base = alt.Chart(parts.data(cells)).transform_filter(f"isValid(datum.{field})").encode(x=x, y=y, tooltip=["point:Q"])
    framed = "datum.measured" if field == "speedup" else "false"
    measured, others = base.transform_filter(framed), base.transform_filter(f"!({framed})")
    return alt.layer(
        base.mark_rect().encode(color=alt.Color(f"{field}:Q", scale=scale, legend=None)),
        others.mark_text(fontSize=11, color=INK).encode(text=text),
        measured.mark_rect(filled=False, stroke=INK, strokeWidth=1),
        measured.mark_text(fontSize=11, color=INK, fontWeight="bold").encode(text=text),
        title=title,
    )


def oracle_curve(summary: Summary) -> Figure | None:
    """Quality against the share of tokens that the large model replaced; None where no oracle was swept."""
    records = [
        point_record(summary, point, x=100 * share, y=point.quality, series=point.arm, **parts.bounds(point.quality_interval))
        for point in summary.points
        if point.method == "bild_oracle" and (share := ratio(point.counts.rollbacks, point.counts.tokens)) is not None
    ]
    if not records:
        return None
    band = alt.Chart(parts.data(records)).mark_area(opacity=0.12).encode(x="x:Q", y="low:Q", y2="high:Q", color="series:N")
    titles = ("tokens replaced by the large model (%)", f"{metric_name(summary.metric)} (points)")
    lines = parts.curves(records, parts.DRAFTER_SERIES, *titles)
    caption = (
        "Both models run at every step, and the large model replaces a token of the small one that it finds too unlikely. This "
        "costs more than vanilla large and shows only what is possible: how few replacements give the large model's quality. "
        "Bands are 95 % intervals of the quality."
    )
    panel = alt.layer(band, *lines, *parts.reference_line(summary.vanilla.large.quality, "vanilla large"))
    return Figure("How little of the large model is enough", caption, [panel], "Kim et al. 2023, Figure 2")


def ablations(summary: Summary) -> Figure | None:
    """BiLD with and without each of its policies; None where no timed point leaves one out."""
    panels: list[Panel] = []
    for arm in COLORS:
        timed = [point for point in _bild(summary, arm) if isinstance(point, TimedPoint)]
        kinds = {policy.name: [point for point in timed if _policy(point) == policy.name] for policy in _POLICIES}
        if sum(bool(points) for points in kinds.values()) > 1:
            records = [
                point_record(summary, points[index], x=points[index].relative_latency, y=points[index].quality, series=kind)
                for kind, points in kinds.items()
                for index in frontier([TradeOff(point.quality, point.speedup) for point in points])
            ]
            titles = ("latency relative to vanilla large (= 1)", f"{metric_name(summary.metric)} (points)")
            reference = parts.reference_line(summary.vanilla.large.quality, "vanilla large")
            drawn = [policy for policy in _POLICIES if kinds[policy.name]]
            panels.append(alt.layer(*parts.curves(records, drawn, *titles), *reference, title=arm))
    caption = (
        "BiLD against itself with one policy off: a fixed window instead of falling back when unsure, or no rollback. Lines "
        "join the settings that no other setting of the same kind beats; further left is faster."
    )
    return Figure("What each policy is worth", caption, panels, "Kim et al. 2023, Figure 5") if panels else None


def _policy(point: OperatingPoint) -> str:
    fallback, rollback = (_threshold(point, name) for name in _THRESHOLDS)
    return "without fallback" if fallback == 0 else "without rollback" if math.isinf(rollback) else "BiLD"
