"""A `Chart` as a matplotlib figure, for PNG and SVG."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tasks.evaluation.report.figures.series import Chart, Heat, Interval, Panel, Rule, Spots
from tasks.evaluation.report.figures.style import LINES, NOTE, STYLE, TITLE, frame
from tasks.evaluation.report.figures.theme import FAINT, INK

_WIDTH, _HEIGHT = 5.5, 3.9
"""Of one panel, in inches."""
_ALONE = 7.5
"""Width of a figure of one panel."""
_LETTERS, _SMALL_LETTERS = 11.5, 15.5
"""How many letters of a legend and of a caption stand on an inch."""


def draw(chart: Chart) -> Figure:
    """Draws each panel with its title and legend; the caption stands below."""
    columns = min(chart.columns, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    with matplotlib.rc_context(STYLE):
        width = _WIDTH * columns if columns > 1 else _ALONE
        names = _names(chart)
        across = max(1, min(len(names), int(width * _LETTERS / (max(map(len, names), default=0) + 7))))
        below = 0.06 + 0.2 * math.ceil(len(names) / across)
        figure = Figure(figsize=(width, _HEIGHT * rows + 0.7 + below), dpi=110, layout="constrained")
        FigureCanvasAgg(figure)
        # The legend has a row of the grid to itself: outside of the axes it would lie on the caption.
        grid = figure.add_gridspec(rows + 1, columns, height_ratios=[*[_HEIGHT] * rows, below])
        for place, panel in enumerate(chart.panels):
            _draw_panel(figure.add_subplot(grid[place // columns, place % columns]), panel)
        _legend(figure, figure.add_subplot(grid[rows, :]), across)
        figure.suptitle(chart.title, fontsize=12.5, fontweight="bold", color=INK)
        follows = f" After {chart.follows}." if chart.follows else ""
        figure.supxlabel(textwrap.fill(chart.caption + follows, int(width * _SMALL_LETTERS)), fontsize=8, color="#555555")
    return figure


def _names(chart: Chart) -> list[str]:
    """What the legend lists, each name once."""
    found = [spots.name for panel in chart.panels for spots in panel.spots if spots.listed]
    found += [bars.name for panel in chart.panels for bars in panel.bars]
    names = list(dict.fromkeys(found))
    return names if len(names) > 1 else []


def _legend(figure: Figure, axes: Axes, across: int) -> None:
    """One for all panels, in axes of its own; none where it would have a single entry."""
    axes.set_axis_off()
    found: dict[str, Any] = {}
    for own in figure.axes:
        for handle, name in zip(*own.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if len(found) > 1:
        look: dict[str, Any] = {"loc": "center", "frameon": False, "fontsize": 8.5, "borderpad": 0, "borderaxespad": 0}
        axes.legend(list(found.values()), list(found), ncols=across, **look)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    frame(axes, panel.x, panel.y)
    if panel.title:
        axes.set_title("\n".join(textwrap.wrap(panel.title, 62)), **TITLE)
    for spots in panel.spots:
        _draw_spots(axes, spots)
    if panel.bars:
        _draw_bars(axes, panel)
    if panel.heat:
        _draw_heat(axes, panel.heat)
    if panel.square:
        _make_square(axes)
    for rule in panel.rules:
        _draw_rule(axes, rule)


def _draw_spots(axes: Axes, spots: Spots) -> None:
    axes.plot(
        spots.x,
        spots.y,
        linestyle=LINES[spots.line],
        linewidth=1.5,
        marker=spots.marker or None,
        markersize=spots.size,
        markerfacecolor="white" if spots.hollow else spots.color,
        markeredgecolor=INK if spots.rim else spots.color,
        color=spots.color,
        alpha=0.35 if spots.faint else 0.9,
        label=spots.name if spots.listed else None,
        zorder=3,
    )
    for place, low, high in _bounds(spots.x_intervals):
        axes.hlines(spots.y[place], low, high, color=spots.color, linewidth=0.8, alpha=0.5, zorder=2.5)
    for place, low, high in _bounds(spots.y_intervals):
        axes.vlines(spots.x[place], low, high, color=spots.color, linewidth=0.8, alpha=0.5, zorder=2.5)


def _bounds(intervals: Sequence[Interval]) -> list[tuple[int, float, float]]:
    return [(place, interval[0], interval[1]) for place, interval in enumerate(intervals) if interval]


def _draw_bars(axes: Axes, panel: Panel) -> None:
    places = np.arange(len(panel.categories), dtype=np.float64)
    if panel.stacked:
        _draw_stacked(axes, panel, places)
        return
    width = 0.8 / len(panel.bars)
    for turn, bars in enumerate(panel.bars):
        values = [math.nan if value is None else value for value in bars.values]
        spots = places + (turn - (len(panel.bars) - 1) / 2) * width
        look: dict[str, Any] = {"facecolor": "white", "hatch": "////"} if bars.hatched else {"facecolor": bars.color}
        drawn = axes.bar(spots, values, width * 0.92, edgecolor=bars.color, linewidth=0.8, label=bars.name, **look)
        if bars.said:
            axes.bar_label(drawn, bars.said, fontsize=8, padding=1.5, color=INK)
    axes.set_xticks(places, panel.categories)
    axes.grid(visible=False, axis="x")


def _draw_stacked(axes: Axes, panel: Panel, places: np.ndarray) -> None:
    """Lying bars, the first on top; negative parts go to the left of zero."""
    ends = {True: np.zeros(len(places)), False: np.zeros(len(places))}
    for bars in panel.bars:
        values = np.array([value or 0.0 for value in bars.values])
        left = np.where(values >= 0, ends[True], ends[False])
        hatch = "////" if bars.hatched else None
        axes.barh(places, values, 0.66, left=left, color=bars.color, edgecolor="white", hatch=hatch, label=bars.name)
        ends[True] += np.maximum(values, 0)
        ends[False] += np.minimum(values, 0)
        for place, text in enumerate(bars.said):
            axes.annotate(text, (ends[True][place], place), (4, 0), **{**NOTE, "color": INK}, va="center")
    axes.set_yticks(places, panel.categories)
    axes.invert_yaxis()
    axes.set(xlabel=panel.y, ylabel="")
    axes.grid(visible=False, axis="y")


def _draw_heat(axes: Axes, heat: Heat) -> None:
    values = np.array([[math.nan if value is None else value for value in row] for row in heat.values])
    known = values[np.isfinite(values)]
    reach = float(np.abs(known - heat.middle).max()) if known.size else 1.0
    norm = TwoSlopeNorm(heat.middle, heat.middle - (reach or 1.0), heat.middle + (reach or 1.0))
    axes.imshow(values, cmap="PuOr", norm=norm, aspect="auto", origin="lower")
    for row, column in np.argwhere(np.isfinite(values)):
        marked = bool(heat.marked and heat.marked[row][column])
        dark = abs(values[row, column] - heat.middle) > 0.5 * reach
        ink = "white" if dark else INK
        weight = "bold" if marked else "normal"
        axes.text(column, row, heat.number(row, column), ha="center", va="center", fontsize=8, color=ink, fontweight=weight)
        if marked:
            axes.add_patch(Rectangle((column - 0.46, row - 0.44), 0.92, 0.88, fill=False, edgecolor=ink, linewidth=1.0))
    axes.set_xticks(range(len(heat.columns)), heat.columns)
    axes.set_yticks(range(len(heat.rows)), heat.rows)
    axes.grid(visible=False)


def _make_square(axes: Axes) -> None:
    low = min(axes.get_xlim()[0], axes.get_ylim()[0])
    high = max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.set(xlim=(low, high), ylim=(low, high))
    axes.set_box_aspect(1)


def _draw_rule(axes: Axes, rule: Rule) -> None:
    look: dict[str, Any] = {"color": FAINT, "linewidth": 0.9, "linestyle": ":" if rule.dotted else "-", "zorder": 1}
    if rule.y is not None:
        axes.axhline(rule.y, **look)
        axes.annotate(rule.text, (0, rule.y), (3, 2), xycoords=axes.get_yaxis_transform(), ha="left", va="bottom", **NOTE)
    elif rule.x is not None:
        axes.axvline(rule.x, **look)
        axes.annotate(rule.text, (rule.x, 1), (2, -2), xycoords=axes.get_xaxis_transform(), ha="left", va="top", **NOTE)
    else:
        axes.axline((0, 0), slope=1, **look)
        axes.annotate(rule.text, (1, 1), (-6, -4), xycoords="axes fraction", ha="right", va="top", **NOTE)
