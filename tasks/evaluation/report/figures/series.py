"""The parts of charts: records, series with one legend, curves, reference lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
from pydantic import JsonValue

from tasks.evaluation.report.figures.theme import COLORS, REFERENCE
from tasks.evaluation.results.rows import OperatingPoint
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.statistics import Interval

Record = dict[str, Any]
"""One mark: `x`, `y`, the name of its `series`, and for its tooltip `point` (an index into the summary's points) or `text`."""
SOLID, DASHED, DOTTED = (1, 0), (5, 3), (2, 3)
PADDED = alt.Scale(padding=18, nice=False)
"""Keeps marks off the axes and names of level lines inside the panel, pixels."""
_GREY_SYMBOLS = alt.Legend(symbolFillColor=REFERENCE, symbolStrokeColor=REFERENCE)


@dataclass(frozen=True)
class Series:
    """One entry of a legend."""

    name: str
    color: str
    shape: str = "circle"
    dash: tuple[int, int] = SOLID


DRAFTER_SERIES = (Series("aligned", COLORS["aligned"]), Series("unaligned", COLORS["unaligned"], dash=DASHED))


def data(records: Iterable[Record]) -> alt.InlineData:
    """Records as a chart's data; equal data of several panels are stored once."""
    return alt.InlineData(values=list(records))


def point_record(summary: Summary, point: OperatingPoint, **fields: JsonValue) -> Record:
    """A record of one of the summary's points; its tooltip is the point's row in the page's table."""
    return {"point": summary.index_of(point), **fields}


def bounds(interval: Interval | None, value: float | None = None) -> Record:
    """An interval as fields of a record, `low` and `high`; without an interval both are `value`, or missing."""
    low, high = interval or (value, value)
    return {} if low is None else {"low": low, "high": high}


def color(series: Sequence[Series]) -> alt.Color:
    """Colour by series, in the order given."""
    scale = alt.Scale(domain=[one.name for one in series], range=[one.color for one in series])
    return alt.Color("series:N", scale=scale, title=None)


def shape(series: Sequence[Series], field: str = "series") -> alt.Shape:
    """Shape by series, in one legend with the colour; a legend of its own in grey for another field."""
    scale = alt.Scale(domain=[one.name for one in series], range=[one.shape for one in series])
    return alt.Shape(f"{field}:N", scale=scale, title=None, legend=alt.Undefined if field == "series" else _GREY_SYMBOLS)


def dash(series: Sequence[Series]) -> alt.StrokeDashValue:
    """Line pattern by series, without a legend: the colour has one."""
    patterns = [{"test": f"datum.series === {one.name!r}", "value": list(one.dash)} for one in series]
    return alt.StrokeDashValue(list(SOLID), condition=patterns)


def grouped_bars(records: Iterable[Record], series: Sequence[Series], x: alt.X, y: alt.Y) -> alt.Chart:
    """Bars side by side for each `x`, one for each series; the tooltip is their `text`."""
    offset = alt.XOffset("series:N", scale=alt.Scale(domain=[one.name for one in series]))
    bars: alt.Chart = alt.Chart(data(records)).mark_bar()
    return bars.encode(x=x, xOffset=offset, y=y, color=color(series), tooltip=["text:N"])


def curves(
    records: Sequence[Record], series: Sequence[Series], x: str | alt.X, y: str, tooltip: str = "point:Q"
) -> list[alt.Chart]:
    """Lines with a mark for each record: one line for each `curve` or, where records have none, for each series.

    Args:
        records: With `x`, `y` and `series`.
        series: All that the legend lists.
        x: Title of the axis with its unit, or the whole axis.
        y: Title of the axis with its unit.
        tooltip: The field that a tooltip shows.
    """
    across = alt.X("x:Q", title=x, scale=PADDED) if isinstance(x, str) else x
    base = alt.Chart(data(records)).encode(x=across, y=alt.Y("y:Q", title=y, scale=PADDED), color=color(series))
    detail = "curve:N" if any("curve" in record for record in records) else "series:N"
    lines = base.mark_line(strokeWidth=1.6).encode(detail=detail, strokeDash=dash(series))
    return [lines, base.mark_point(filled=True, size=55, opacity=1).encode(shape=shape(series), tooltip=[tooltip])]


def reference_line(y: float, text: str = "", x: float | None = None, dotted: bool = False) -> list[alt.Chart]:
    """A level line to compare with, named at its left end or right of `x`."""
    nothing = alt.Chart(data([{}]))
    line = nothing.mark_rule(color=REFERENCE, strokeDash=DOTTED if dotted else SOLID).encode(y=alt.datum(y))
    name = nothing.mark_text(text=text, align="left", dy=8 if dotted else -7, dx=4, color=REFERENCE, fontSize=11)
    return [line, *([name.encode(x=alt.value(0) if x is None else alt.datum(x), y=alt.datum(y))] if text else [])]


def diagonal(values: Sequence[float], text: str) -> tuple[list[alt.Chart], alt.Scale]:
    """The line of equal `x` and `y` with its name, and a scale for both axes that holds all `values`."""
    room = 0.06 * (max(values) - min(values)) or 0.1
    low, high = min(values) - room, max(values) + room
    ends = alt.Chart(data([{"x": low, "y": low}, {"x": high, "y": high}])).encode(x="x:Q", y="y:Q")
    name = ends.transform_filter(f"datum.x > {low}").mark_text(text=text, align="right", dx=-22, dy=8, color=REFERENCE)
    return [ends.mark_line(color=REFERENCE, strokeWidth=1), name], alt.Scale(domain=[low, high], nice=False)
