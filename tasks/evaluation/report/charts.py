"""What every figure is made of: the theme, records and series, curves, names of marks, and how a figure is saved or embedded.

A figure of `figures` or `figures_detail` is registered by `figure`; its caption is the docstring of its function.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from pydantic import JsonValue

from tasks.evaluation.report.formatting import metric_name
from tasks.evaluation.report.points import Sweeps
from tasks.evaluation.results.rows import OperatingPoint
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.scoring.statistics import Interval

# Okabe and Ito's palette: readers with any kind of colour vision can tell the colours apart.
COLORS = {"aligned": "#0072B2", "unaligned": "#D55E00"}
"""By arm."""
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777", "#000000", "#A3A500", "#7B4FA3")
"""For series that are not arms."""
SHAPES = ("circle", "triangle-up", "square", "diamond", "triangle-down", "cross", "triangle-left", "triangle-right")
MOST_SERIES = 8
"""Entries of a legend."""
DIVERGING = ("#E8A06B", "#FFFFFF", "#86B4DB")
"""Below, at and above the reference; black numbers stay legible on all of them."""
CONTRADICTED = "#B00020"
"""Of a choice that test contradicts; a word stands beside it."""
INK, QUIET, REFERENCE = "#222222", "#555555", "#8A8A8A"

LETTER_WIDTH, SYMBOL_WIDTH = 6.8, 44
"""Pixels of one letter of a legend's label, and of a symbol with the space around it; page.js counts with the same."""
_LABELS = {"labelColor": INK, "labelFontSize": 12, "labelLimit": 400}
_TITLES = {"titleColor": INK, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8}
_LINES = {"gridColor": "#E8E8E8", "domainColor": REFERENCE, "tickColor": REFERENCE}
_SYMBOLS = {"symbolSize": 80, "symbolOpacity": 1, "columnPadding": 16, "rowPadding": 4}

LATENCY_TICKS = alt.Axis(
    labelExpr="datum.value > 0 ? [format(datum.value, '.2~f'), format(1 / datum.value, '.2~f') + '×'] : '0'", labelSeparation=10
)
"""Relative latencies with the speed-up under each."""

CONFIG: dict[str, Any] = {
    "background": "white",
    # vl-convert and browsers both have a font of this name, with Greek letters and mathematical signs.
    "font": "sans-serif",
    "view": {"stroke": None},
    "title": {"anchor": "start", "color": QUIET, "fontSize": 12, "fontWeight": "normal", "subtitleColor": QUIET},
    "axis": {**_LABELS, **_TITLES, **_LINES, "labelFlush": False, "labelSeparation": 6},
    "axisXQuantitative": {"tickCount": 8},
    "legend": {**_LABELS, **_SYMBOLS, "orient": "bottom", "layout": {"bottom": {"direction": "vertical", "anchor": "start"}}},
    "scale": {"zero": False},
}
"""Vega-Lite's configuration, for pictures and for the page."""


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


ARM_SERIES = (Series("aligned", COLORS["aligned"]), Series("unaligned", COLORS["unaligned"], dash=DASHED))


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


Panel = alt.LayerChart | alt.FacetChart
"""What `alt.layer` may return; all panels are layers."""
Spec = dict[str, Any]
"""A Vega-Lite specification."""

_PAIR_WIDTH, _SINGLE_WIDTH, _SCALE = 430, 680, 1.6
"""Pixels of a panel in a picture, and pixels of the PNG for each of them."""
_CAPTION_LETTERS = 0.155
"""Letters of a caption that fit in a pixel of width."""


@dataclass(frozen=True)
class Figure:
    """Charts under one title. The charts have no width: a picture gives them one, on the page they fill their column."""

    title: str
    caption: str
    """How to read it, a sentence or two."""
    panels: Sequence[Panel]
    after: str = ""
    """The figure of a paper that shows the same; empty where there is none."""
    height: int = 300
    """Pixels of a panel without its title, axes and legend."""
    square: bool = False
    """Whether panels are as wide as high."""
    zoom: bool = True
    """Whether the reader of the page can move and enlarge the charts; not for categories."""

    @functools.cached_property
    def svg(self) -> str:
        """The picture as SVG, from which its PNG is made as well."""
        return vl_convert.vegalite_to_svg(picture_spec(self))


FIGURES: dict[str, Callable[[Summary, Sweeps], Figure | None]] = {}
"""What makes each figure, by the name of its file; None where there are no data for it."""


def figure(
    title: str, after: str = "", **layout: Any
) -> Callable[[Callable[[Summary, Sweeps], Sequence[Panel]]], Callable[[Summary, Sweeps], Figure | None]]:
    """Register a function that makes the panels of a figure; its name is that of the file, its docstring the caption.

    Args:
        title: May hold `{task}` and `{metric}`.
        after: See `Figure`.
        layout: Further fields of `Figure`.
    """

    def register(panels_of: Callable[[Summary, Sweeps], Sequence[Panel]]) -> Callable[[Summary, Sweeps], Figure | None]:
        caption = " ".join((inspect.getdoc(panels_of) or "").split())

        @functools.wraps(panels_of)
        def make(summary: Summary, sweeps: Sweeps) -> Figure | None:
            named = title.format(task=summary.task, metric=metric_name(summary.metric))
            panels = panels_of(summary, sweeps)
            return Figure(named, caption, panels, after, **layout) if panels else None

        FIGURES[panels_of.__name__] = make
        return make

    return register


def save(found: Figure, path: Path) -> None:
    """Writes PNG or SVG by the suffix of `path`; the same figure gives the same bytes."""
    if path.suffix == ".svg":
        path.write_text(_renumbered(found.svg), encoding="utf-8")
    else:
        path.write_bytes(vl_convert.svg_to_png(found.svg, scale=_SCALE))


def _renumbered(svg: str) -> str:
    """The picture with its clip paths numbered from 0: vl-convert goes on counting from one picture to the next."""
    numbers: dict[str, str] = {}
    return re.sub(r"(?<=clip)\d+", lambda found: numbers.setdefault(found[0], str(len(numbers))), svg)


def picture_spec(found: Figure) -> Spec:
    """All panels in one specification, at most two side by side, with title and caption above them."""
    columns = min(2, len(found.panels))
    width = found.height if found.square else _PAIR_WIDTH if columns > 1 else _SINGLE_WIDTH
    panels = [panel.properties(width=width, height=found.height) for panel in found.panels]
    after = f" After {found.after}." if found.after else ""
    caption = textwrap.wrap(found.caption + after, int(max(columns * width, 480) * _CAPTION_LETTERS))
    title = alt.TitleParams(found.title, subtitle=caption, fontSize=16, fontWeight="bold", color=INK, offset=14)
    # Without validation, which takes as long as making the panels; the tests validate them.
    spec = alt.concat(*panels, columns=columns, spacing=24, title=title).to_dict(validate=False)
    letters = max(map(_longest_label, spec["concat"]))
    # Panels share the colours of a legend; without a legend each panel has its own.
    resolve = {"scale": {"color": "shared" if letters else "independent"}}
    fitting = int(columns * width / (letters * LETTER_WIDTH + SYMBOL_WIDTH))
    legend = {**CONFIG["legend"], "columns": max(1, fitting)}
    return {**spec, "resolve": resolve, "config": {**CONFIG, "legend": legend}}


def page_specs(found: Figure, datasets: Spec) -> list[Spec]:
    """One specification a panel, without size, configuration and data.

    Args:
        figure: The found.
        datasets: Gains the panels' data by name; panels of any figure that show equal data share them.
    """
    specs = []
    for spec in (panel.to_dict(validate=False) for panel in found.panels):
        datasets |= spec.pop("datasets", {})
        layout = {"height": found.height, "square": found.square, "zoom": found.zoom, "letters": _longest_label(spec)}
        rest = {name: value for name, value in spec.items() if name not in ("config", "$schema")}
        specs.append({**rest, "usermeta": layout})
    return specs


def _longest_label(spec: Spec) -> int:
    """Letters of the longest label in the legends of a panel, which list the domains of its series; 0 without a legend."""
    channels = [layer.get("encoding", {}).get(name, {}) for layer in spec["layer"] for name in ("color", "shape")]
    labels = [label for channel in channels for label in (channel.get("scale") or {}).get("domain", ())]
    return max((len(label) for label in labels if isinstance(label, str)), default=0)


Domain = tuple[float, float]
"""Ends of an axis."""
_WIDTH, _HEIGHT = 430.0, 360.0
"""Pixels of the smallest panel that is drawn: on a larger one names are further apart."""
_SIDES = {"above left": (-11, -11), "below right": (11, 11), "above right": (11, -11), "below left": (-11, 11)}
"""Pixels right and down of the mark."""
_LETTER, _LINE, _MARK = 7.5, 14.0, 7.0
"""Width of a letter, height of a line, and half the width of a mark, pixels."""


def names(
    records: Sequence[Record], across: Domain, upwards: Domain, preferred: dict[str, str], others: Sequence[Record] = ()
) -> list[alt.Chart]:
    """The names of marks as charts, each on a side where it covers neither a mark nor an earlier name, if there is one.

    Args:
        records: With `x`, `y`, `name`, `series`, and `tone`, the colour of the name.
        across: The domain of `x`.
        upwards: The domain of `y`.
        preferred: For each series the side that is tried first, a key of `_SIDES`.
        others: Further marks, with `x` and `y`, that no name may cover.
    """
    centres = [
        (
            (record["x"] - across[0]) / (across[1] - across[0]) * _WIDTH,
            (upwards[1] - record["y"]) / (upwards[1] - upwards[0]) * _HEIGHT,
        )
        for record in (*records, *others)
    ]
    taken = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in centres]
    placed: list[Record] = []
    for record, (x, y) in zip(records, centres, strict=False):
        boxes = {}
        for side in (preferred[record["series"]], *_SIDES):
            dx, dy = _SIDES[side]
            left = x + dx - (len(record["name"]) * _LETTER if dx < 0 else 0)
            boxes[side] = (left, y + dy - _LINE / 2, left + len(record["name"]) * _LETTER, y + dy + _LINE / 2)
        free = (side for side, box in boxes.items() if not any(_overlap(box, other) for other in taken))
        side = next(free, preferred[record["series"]])
        taken.append(boxes[side])
        placed.append({**record, "side": side})
    text = alt.Chart(data(placed)).encode(x="x:Q", y="y:Q", text="name:N", color=alt.Color("tone:N", scale=None))
    return [
        text.transform_filter(alt.datum.side == side).mark_text(
            dx=dx, dy=dy, fontSize=13, fontWeight="bold", align="right" if dx < 0 else "left"
        )
        for side, (dx, dy) in _SIDES.items()
    ]


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
