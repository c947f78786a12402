"""What every figure is made of: the theme, records and series, curves, names of marks, and how a figure is saved or embedded.

A figure of `figures` or `figures_detail` is registered by `figure`; its caption is the docstring of its function.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import altair as alt
import vl_convert
from pydantic import JsonValue

from tasks.evaluation.report.formatting import metric_name, packaged
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
CONTRADICTED = "#B00020"
"""Of a choice that test contradicts; a word stands beside it."""
INK, QUIET, REFERENCE = "#222222", "#555555", "#8A8A8A"

LETTER_WIDTH, SYMBOL_WIDTH = 6.8, 44
"""Pixels of one letter of a legend's label, and of a symbol with the space around it; page.js counts with the same."""
CONFIG: dict[str, Any] = packaged("theme.yaml")
"""Vega-Lite's configuration, for pictures and for the page."""

Record = dict[str, Any]
"""One mark: `x`, `y`, the name of its `series`, and for its tooltip `point` (an index into the summary's points) or `text`."""
PADDED = alt.Scale(padding=18, nice=False)
"""Keeps marks off the axes and names of level lines inside the panel, pixels."""


ARM_DASH = alt.StrokeDashValue([1, 0], condition={"test": "datum.series === 'unaligned'", "value": [5, 3]})
"""Tells the lines of the arms apart without colour."""


def palette(names: Iterable[str]) -> dict[str, str]:
    """A colour for each of these names."""
    return dict(zip(names, PALETTE, strict=False))


def chart(records: Iterable[Record], **encoding: Any) -> alt.Chart:
    """A chart of these records at their `x` and `y`, unless `encoding` says otherwise; equal data of several charts are stored
    once."""
    # Channels by their classes: altair takes 10 ms to find that of a string or of a datum.
    return alt.Chart(alt.InlineData(values=list(records))).encode(**{"x": alt.X("x:Q"), "y": alt.Y("y:Q"), **encoding})


def point_record(summary: Summary, point: OperatingPoint, **fields: JsonValue) -> Record:
    """A record of one of the summary's points; its tooltip is the point's row in the page's table."""
    return {"point": summary.index_of(point), **fields}


def color(colors: Mapping[str, str]) -> alt.Color:
    """Colour by series, in the order given."""
    return alt.Color("series:N", scale=alt.Scale(domain=[*colors], range=[*colors.values()]), title=None)


def shape(names: Iterable[str], field: str = "series", **legend: Any) -> alt.Shape:
    """Shape by series, in one legend with the colour unless `field` is another one."""
    shapes = dict(zip(names, itertools.cycle(SHAPES), strict=False))
    return alt.Shape(f"{field}:N", scale=alt.Scale(domain=[*shapes], range=[*shapes.values()]), title=None, **legend)


def curves(records: Sequence[Record], names: Sequence[str], x: str, y: str, *, band: bool = False) -> list[alt.Chart]:
    """Lines with a mark for each record, one line for each `curve`.

    Args:
        records: With `x`, `y`, `series`, `curve`, `point` or `text`, and for a band `low` and `high`.
        names: The series that the legend lists.
        x: Title of the axis with its unit.
        y: Title of the axis with its unit.
        band: Whether an area from `low` to `high` lies under each line.
    """
    axes = {"x": alt.X("x:Q", title=x, scale=PADDED), "y": alt.Y("y:Q", title=y, scale=PADDED)}
    base = chart(records, **axes, color=color(palette(names)))
    areas = [base.mark_area(opacity=0.12).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))] if band else []
    tooltip = alt.Tooltip("point:Q" if "point" in records[0] else "text:N")
    marks = base.mark_point(filled=True, size=55, opacity=1).encode(shape=shape(names), tooltip=[tooltip])
    return [*areas, base.mark_line(strokeWidth=1.6).encode(detail=alt.Detail("curve:N")), marks]


def reference_line(y: float, text: str, dotted: bool = False) -> list[alt.Chart]:
    """A level line to compare with, named at its left end; it is left out where the panel does not reach it."""
    line = chart([{}], x=alt.Undefined, y=alt.YDatum(y)).mark_rule(
        color=REFERENCE, strokeDash=[2, 3] if dotted else [1, 0], clip=True
    )
    name = chart([{}], x=alt.value(0), y=alt.YDatum(y))
    look = alt.MarkDef("text", text=text, align="left", dy=8 if dotted else -7, dx=4, color=REFERENCE, fontSize=11, clip=True)
    return [line, name.properties(mark=look)]


def names(records: Sequence[Record], dx: int, dy: int) -> list[alt.Chart]:
    """The `name` of each mark in its `tone`, `dx` pixels right and `dy` down of the mark, over a white rim."""
    text = chart(records, text=alt.Text("name:N"), color=alt.Color("tone:N", scale=None))
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
    """All panels in one specification, at most two side by side, under title and caption.

    Panels that show the same series share a legend.
    """
    columns = min(2, len(found.panels))
    width = found.height if found.square else _PAIR_WIDTH if columns > 1 else _SINGLE_WIDTH
    panels = [panel.properties(width=width, height=found.height) for panel in found.panels]
    after = f" After {found.after}." if found.after else ""
    caption = textwrap.wrap(found.caption + after, int(max(columns * width, 480) * _CAPTION_LETTERS))
    title = alt.TitleParams(found.title, subtitle=caption, fontSize=16, fontWeight="bold", color=INK, offset=14)
    # Without validation, which takes as long as making the panels; the tests validate them.
    spec = alt.concat(*panels, columns=columns, spacing=24, title=title).to_dict(validate=False)
    groups = [list(own) for _, own in itertools.groupby(spec["concat"], _labels)]
    letters = max(len(label) for own in groups for label in ("", *_labels(own[0])))
    # Without a legend each panel has its own colours.
    resolve = {"scale": {"color": "shared" if letters else "independent"}}
    parts = [{"concat": own, "columns": columns, "spacing": 24, "resolve": resolve} for own in groups]
    fitting = int(columns * width / (letters * LETTER_WIDTH + SYMBOL_WIDTH))
    legend = {**CONFIG["legend"], "columns": max(1, fitting)}
    apart = {"scale": {"color": "independent", "shape": "independent"}}
    return {**spec, "concat": parts, "columns": 1, "resolve": apart, "config": {**CONFIG, "legend": legend}}


def page_specs(found: Figure, datasets: Spec) -> list[Spec]:
    """One specification a panel, without size, configuration and data.

    Args:
        found: The figure.
        datasets: Gains the panels' data by name; panels of any figure that show equal data share them.
    """
    specs = []
    for spec in (panel.to_dict(validate=False) for panel in found.panels):
        datasets |= spec.pop("datasets", {})
        letters = max(map(len, _labels(spec)), default=0)
        layout = {"height": found.height, "square": found.square, "zoom": found.zoom, "letters": letters}
        rest = {name: value for name, value in spec.items() if name not in ("config", "$schema")}
        specs.append({**rest, "usermeta": layout})
    return specs


def _labels(spec: Spec) -> list[str]:
    """The labels in the legends of a panel, which list the domains of its series; none without a legend."""
    channels = [layer.get("encoding", {}).get(name, {}) for layer in spec["layer"] for name in ("color", "shape")]
    domains = [(channel.get("scale") or {}).get("domain", ()) for channel in channels]
    return [label for domain in domains for label in domain if isinstance(label, str)]
