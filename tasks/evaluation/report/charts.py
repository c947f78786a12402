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
from typing import Any, Literal

import altair as alt
import vl_convert
from pydantic import JsonValue

from tasks.evaluation.report.formatting import metric_name
from tasks.evaluation.results.rows import OperatingPoint
from tasks.evaluation.results.summary import Summary, Sweeps

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


@dataclass(frozen=True)
class Series:
    """One entry of a legend."""

    name: str
    color: str
    shape: str = "circle"
    dash: tuple[int, int] = SOLID


ARM_SERIES = (Series("aligned", COLORS["aligned"]), Series("unaligned", COLORS["unaligned"], dash=DASHED))


def palette(names: Iterable[str]) -> list[Series]:
    """Series of these names, each with a colour and a shape of its own."""
    return [Series(name, PALETTE[place], SHAPES[place % len(SHAPES)]) for place, name in enumerate(names)]


def chart(records: Iterable[Record], **encoding: Any) -> alt.Chart:
    """A chart of these records at their `x` and `y`, unless `encoding` says otherwise; equal data of several charts are stored
    once."""
    return alt.Chart(alt.InlineData(values=list(records))).encode(**{"x": "x:Q", "y": "y:Q", **encoding})


def point_record(summary: Summary, point: OperatingPoint, **fields: JsonValue) -> Record:
    """A record of one of the summary's points; its tooltip is the point's row in the page's table."""
    return {"point": summary.index_of(point), **fields}


def color(series: Sequence[Series]) -> alt.Color:
    """Colour by series, in the order given."""
    scale = alt.Scale(domain=[one.name for one in series], range=[one.color for one in series])
    return alt.Color("series:N", scale=scale, title=None)


def shape(series: Sequence[Series], field: str = "series", **legend: Any) -> alt.Shape:
    """Shape by series, in one legend with the colour unless `field` is another one."""
    scale = alt.Scale(domain=[one.name for one in series], range=[one.shape for one in series])
    return alt.Shape(f"{field}:N", scale=scale, title=None, **legend)


def dash(series: Sequence[Series]) -> alt.StrokeDashValue:
    """Line pattern by series. A scale would have a legend, and without one it would take that of the colour away."""
    patterns = [{"test": f"datum.series === {one.name!r}", "value": list(one.dash)} for one in series]
    return alt.StrokeDashValue(list(SOLID), condition=patterns)


def curves(records: Sequence[Record], series: Sequence[Series], x: str, y: str) -> list[alt.Chart]:
    """Lines with a mark for each record: one line for each `curve` or, where records have none, for each series.

    Args:
        records: With `x`, `y`, `series`, and `point` or `text`.
        series: All that the legend lists.
        x: Title of the axis with its unit.
        y: Title of the axis with its unit.
    """
    axes = {"x": alt.X("x:Q", title=x, scale=PADDED), "y": alt.Y("y:Q", title=y, scale=PADDED)}
    base = chart(records, **axes, color=color(series))
    detail, tooltip = ("curve:N" if "curve" in records[0] else "series:N"), ("point:Q" if "point" in records[0] else "text:N")
    lines = base.mark_line(strokeWidth=1.6).encode(detail=detail, strokeDash=dash(series))
    return [lines, base.mark_point(filled=True, size=55, opacity=1).encode(shape=shape(series), tooltip=[tooltip])]


def reference_line(y: float, text: str, x: float | None = None, dotted: bool = False) -> list[alt.Chart]:
    """A level line to compare with, named at its left end or right of `x`; it is left out where the panel does not reach it."""
    line = chart([{}], x=alt.Undefined, y=alt.datum(y)).mark_rule(
        color=REFERENCE, strokeDash=DOTTED if dotted else SOLID, clip=True
    )
    name = chart([{}], x=alt.value(0) if x is None else alt.datum(x), y=alt.datum(y))
    look = alt.MarkDef("text", text=text, align="left", dy=8 if dotted else -7, dx=4, color=REFERENCE, fontSize=11, clip=True)
    return [line, name.properties(mark=look)]


def names(records: Sequence[Record], dx: int, dy: int) -> list[alt.Chart]:
    """The `name` of each mark in its `tone`, `dx` pixels right and `dy` down of the mark, over a white rim."""
    text = chart(records, text="name:N", color=alt.Color("tone:N", scale=None))
    align: Literal["left", "right"] = "right" if dx < 0 else "left"
    look = alt.MarkDef("text", dx=dx, dy=dy, align=align, fontSize=13, fontWeight="bold")
    rim = alt.MarkDef("text", dx=dx, dy=dy, align=align, fontSize=13, fontWeight="bold", stroke="white", strokeWidth=3)
    return [text.properties(mark=rim), text.properties(mark=look)] if records else []


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
        # vl-convert goes on counting clip paths from one picture to the next.
        numbers: dict[str, str] = {}
        svg = vl_convert.vegalite_to_svg(picture_spec(self))
        return re.sub(r"(?<=clip)\d+", lambda match: numbers.setdefault(match[0], str(len(numbers))), svg)


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
        path.write_text(found.svg, encoding="utf-8")
    else:
        path.write_bytes(vl_convert.svg_to_png(found.svg, scale=_SCALE))


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
        found: The figure.
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
