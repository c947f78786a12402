"""Deferral rules at several temperatures (Narasimhan et al., *Faster Cascades via Speculative Decoding*, 2024, Figure 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt

from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.cascades import CALLS, LATENCY, along_curve, compared_with_cascades, curve_name
from tasks.evaluation.report.figures.figure import Figure, Panel
from tasks.evaluation.report.figures.series import Record, Series
from tasks.evaluation.report.figures.theme import COLORS, MOST_SERIES, PALETTE, SHAPES
from tasks.evaluation.report.formatting import field_text, metric_name, settings_text
from tasks.evaluation.report.table_points import temperature
from tasks.evaluation.results.rows import OperatingPoint
from tasks.evaluation.results.summary import Summary, TemperaturePoints


def by_temperature(summary: Summary) -> Figure | None:
    """Quality against measured latency and against calls, two panels for each temperature; None where one alone was swept."""
    swept = [one for one in (*_own(summary), *summary.temperatures) if any(map(compared_with_cascades, one.points))]
    if len({one.temperature for one in swept}) < 2:
        return None
    names = list(dict.fromkeys(curve_name(p) for one in swept for p in one.points if compared_with_cascades(p)))
    series = [Series(name, PALETTE[place], SHAPES[place]) for place, name in enumerate(names[:MOST_SERIES])]
    panels = [
        panel
        for arm in COLORS
        for one in sorted(swept, key=lambda one: one.temperature)
        if one.arm == arm
        for panel in _panels(summary, one, series)
    ]
    caption = (
        "Each curve is one rule as its α moves, each pair of panels one temperature, with the level of vanilla at that "
        "temperature. Against latency only timed points are drawn, against calls all points, from counts."
        + (f" The first {MOST_SERIES} rules of the grid are drawn." if len(names) > MOST_SERIES else "")
    )
    return Figure("Cascades by temperature", caption, panels, "Narasimhan et al. 2024, Figure 6")


def _own(summary: Summary) -> Iterator[TemperaturePoints]:
    """The points of each sweep at its own temperature."""
    for arm in COLORS:
        points = [point for point in summary.points if point.arm == arm]
        if points:
            quality = points[0].quality - (points[0].quality_difference or 0.0)
            yield TemperaturePoints(arm=arm, temperature=temperature(points[0]), vanilla_quality=quality, points=points)


def _panels(summary: Summary, swept: TemperaturePoints, series: Sequence[Series]) -> Iterator[Panel]:
    shown = {one.name for one in series}
    points = [point for point in swept.points if compared_with_cascades(point) and curve_name(point) in shown]
    vanilla = parts.reference_line(swept.vanilla_quality, "vanilla large")
    for axis in (LATENCY, CALLS):
        records = [
            _record(summary, point, x)
            for point in points
            if (x := point.relative_latency if axis == LATENCY else point.large_calls_per_token) is not None
        ]
        if records:
            lines = parts.curves(records, series, axis, f"{metric_name(summary.metric)} (points)", tooltip="text:N")
            yield alt.layer(*lines, *vanilla, title=f"{swept.arm}, T = {swept.temperature:g}")


def _record(summary: Summary, point: OperatingPoint, x: float) -> Record:
    text = f"{curve_name(point)}, {settings_text(point.settings)}: {metric_name(summary.metric)} {point.quality:.2f} "
    text += f"({field_text(point, 'quality_difference')} from vanilla), {field_text(point, 'speedup')}"
    return {"x": round(x, 5), "y": point.quality, "series": curve_name(point), "curve": along_curve(point), "text": text}
