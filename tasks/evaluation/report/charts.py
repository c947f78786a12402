"""The same charts for the page: each panel as the traces and the layout that plotly.js draws, plain JSON values.

Python's plotly brings the script alone (`plotly_script`), so that the page needs no network; its figure classes are not used,
for a panel says all they could.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from typing import Any

from tasks.evaluation.report.figures.series import Bars, Chart, Heat, Interval, Panel, Rule, Spots
from tasks.evaluation.report.figures.theme import FAINT, INK

_SYMBOLS = {
    "o": "circle",
    "D": "diamond",
    "d": "diamond-tall",
    "X": "x",
    "<": "triangle-left",
    ">": "triangle-right",
    "^": "triangle-up",
    "v": "triangle-down",
    "P": "cross",
    "p": "pentagon",
    "*": "star",
    "h": "hexagon",
    "H": "hexagon2",
    "8": "octagon",
    "s": "square",
}
_DASHES = {"-": "solid", "--": "dash", ":": "dot"}
_PURPLE_ORANGE = [[0.0, "#7F3B08"], [0.25, "#FDB863"], [0.5, "#F7F7F7"], [0.75, "#B2ABD2"], [1.0, "#2D004B"]]
_GRID = "#E6E6E6"
_LEAST = 330
_TITLE_LETTERS, _TICK_LETTERS = 52, 14
_FONT = {"family": "system-ui, sans-serif", "size": 12, "color": INK}

Spec = dict[str, Any]
"""`data` and `layout` of one panel."""


def plotly_script() -> str:
    """The text of plotly.js, to be put into the page."""
    from plotly.offline import get_plotlyjs  # a large package that only the page needs

    return str(get_plotlyjs())


def panel_specs(chart: Chart) -> list[Spec]:
    """One specification a panel, in the chart's order."""
    return [panel_spec(panel) for panel in chart.panels]


def panel_spec(panel: Panel) -> Spec:
    """Traces and layout of one panel.

    Returns:
        `{"data": [...], "layout": {...}, "square": bool, "height": pixels}`, the first two as `Plotly.newPlot` takes them;
        texts are escaped, for plotly reads marks in them.
    """
    data = [_spots(spots) for spots in panel.spots]
    data += [_bars(bars, panel) for bars in panel.bars]
    data += [_heat(panel.heat)] if panel.heat else []
    listed = sum(bool(trace.get("showlegend")) for trace in data)
    layout: Spec = {
        "font": _FONT,
        "margin": {"l": 58, "r": 14, "t": 36 if panel.title else 14, "b": 46},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "bgcolor": "white", "font": {"size": 12, "color": INK}},
        "xaxis": _axis(panel.x),
        "yaxis": _axis(panel.y),
        "showlegend": listed > 1,
        "legend": {"orientation": "h", "y": -0.2, "yanchor": "top", "font": {"size": 11}},
        "shapes": [],
        "annotations": [],
    }
    if panel.title:
        layout["title"] = {"text": _wrapped(panel.title), "font": {"size": 13}, "x": 0, "xref": "paper", "y": 0.98}
    if panel.bars:
        _bar_axes(layout, panel)
    if panel.heat:
        _heat_axes(layout, panel.heat)
    if panel.square:
        _square(layout, panel.spots)
    for rule in panel.rules:
        _rule(layout, rule)
    if panel.windows:
        _windows(layout, panel)
    return {"data": data, "layout": layout, "square": panel.square, "height": _height(panel)}


def _height(panel: Panel) -> int:
    """Without the legend; what stands in rows needs room for each."""
    rows = len(panel.heat.rows) if panel.heat else len(panel.categories) if panel.stacked else 0
    return max(_LEAST, 110 + 32 * rows)


def _wrapped(title: str) -> str:
    """Escaped, in lines that fit a narrow screen."""
    return "<br>".join(html.escape(line) for line in textwrap.wrap(title, _TITLE_LETTERS))


def _axis(title: str) -> Spec:
    look: Spec = {"gridcolor": _GRID, "linecolor": "#555555", "zeroline": False, "automargin": True}
    return {"title": {"text": html.escape(title), "standoff": 8}, **look}


def _hover(texts: Sequence[str]) -> list[str]:
    return [html.escape(text).replace("\n", "<br>") for text in texts]


def _spots(spots: Spots) -> Spec:
    drawn = "+".join(part for part, wanted in (("lines", spots.line), ("markers", spots.marker)) if wanted)
    trace: Spec = {
        "type": "scatter",
        "mode": drawn,
        "name": html.escape(spots.name),
        "x": list(spots.x),
        "y": list(spots.y),
        "opacity": 0.35 if spots.faint else 1.0,
        "showlegend": spots.listed,
        "legendgroup": html.escape(spots.group or spots.name),
    }
    if spots.texts:
        trace |= {"text": _hover(spots.texts), "hovertemplate": "%{text}<extra></extra>"}
    else:
        trace["hoverinfo"] = "skip"
    if spots.line:
        trace["line"] = {"color": spots.color, "width": 2, "dash": _DASHES[spots.line]}
    if spots.marker:
        symbol = _SYMBOLS[spots.marker] + ("-open" if spots.hollow else "")
        edge = {"color": INK if spots.rim else spots.color, "width": 1.5 if spots.rim or spots.hollow else 0}
        trace["marker"] = {"symbol": symbol, "size": spots.size + 2, "color": spots.color, "line": edge}
    for name, values, intervals in (("error_x", spots.x, spots.x_intervals), ("error_y", spots.y, spots.y_intervals)):
        if any(intervals):
            trace[name] = _errors(values, intervals, spots.color)
    return trace


def _errors(values: Sequence[float], intervals: Sequence[Interval], color: str) -> Spec:
    pairs = list(zip(values, intervals, strict=True))
    above = [bounds[1] - value if bounds else 0.0 for value, bounds in pairs]
    below = [value - bounds[0] if bounds else 0.0 for value, bounds in pairs]
    return {"type": "data", "array": above, "arrayminus": below, "color": color, "thickness": 1, "width": 0}


def _bars(bars: Bars, panel: Panel) -> Spec:
    across = {"orientation": "h", "y": list(panel.categories), "x": list(bars.values)}
    upwards = {"x": list(panel.categories), "y": list(bars.values)}
    # A stacked bar's text is the sum of all its parts, and stands beside the last one.
    where = "outside" if bars.said else "none"
    hatch = {"shape": "/", "fgcolor": bars.color, "bgcolor": "white", "size": 6} if bars.hatched else {"shape": ""}
    return {
        "type": "bar",
        "name": html.escape(bars.name),
        **(across if panel.stacked else upwards),
        "marker": {"color": bars.color, "pattern": hatch, "line": {"color": bars.color, "width": 1}},
        "text": list(bars.said),
        "textposition": where,
        "cliponaxis": False,
        "hovertext": _hover(bars.texts),
        "hovertemplate": "%{hovertext}<extra></extra>",
        "showlegend": True,
    }


def _bar_axes(layout: Spec, panel: Panel) -> None:
    layout["barmode"] = "relative" if panel.stacked else "group"
    # Beside lying bars there is room across, under standing ones there is little.
    lines = [one.split("\n") if panel.stacked else textwrap.wrap(one, _TICK_LETTERS) for one in panel.categories]
    names = ["<br>".join(map(html.escape, words)) for words in lines]
    ticks = {"type": "category", "tickvals": list(panel.categories), "ticktext": names, "tickangle": 0, "showgrid": False}
    if panel.stacked:
        layout["xaxis"], layout["yaxis"] = _axis(panel.y), {**_axis(""), **ticks, "autorange": "reversed"}
    else:
        layout["xaxis"] |= ticks


def _heat(heat: Heat) -> Spec:
    known = [abs(value - heat.middle) for row in heat.values for value in row if value is not None]
    reach = max(known, default=0.0) or 1.0
    rows, columns = range(len(heat.rows)), range(len(heat.columns))
    return {
        "type": "heatmap",
        "z": [list(row) for row in heat.values],
        "text": [[_bold(heat, row, column) for column in columns] for row in rows],
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "customdata": [_hover(row) for row in heat.texts],
        "hovertemplate": "%{customdata}<extra></extra>",
        "hoverongaps": False,
        "colorscale": _PURPLE_ORANGE,
        "zmin": heat.middle - reach,
        "zmax": heat.middle + reach,
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
    }


def _bold(heat: Heat, row: int, column: int) -> str:
    number = heat.number(row, column)
    return f"<b>[{number}]</b>" if heat.marked and heat.marked[row][column] else number


def _heat_axes(layout: Spec, heat: Heat) -> None:
    # Thresholds are ticks at whole places: as numbers they would stand at unequal distances.
    for name, words in (("xaxis", heat.columns), ("yaxis", heat.rows)):
        layout[name] |= {"tickvals": list(range(len(words))), "ticktext": list(words), "showgrid": False}


def _square(layout: Spec, spots: Sequence[Spots]) -> None:
    values = [value for one in spots for value in (*one.x, *one.y)]
    values += [bound for one in spots for interval in one.y_intervals if interval for bound in interval]
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.1
    layout["xaxis"]["range"] = layout["yaxis"]["range"] = [low - room, high + room]


def _rule(layout: Spec, rule: Rule) -> None:
    line = {"color": FAINT, "width": 1, "dash": "dot" if rule.dotted else "solid"}
    note: Spec = {"text": html.escape(rule.text), "showarrow": False, "font": {"size": 10, "color": FAINT}}
    if rule.y is not None:
        place = {"xref": "paper", "x0": 0, "x1": 1, "y0": rule.y, "y1": rule.y}
        note |= {"xref": "paper", "x": 0, "y": rule.y, "xanchor": "left", "yanchor": "bottom"}
    elif rule.x is not None:
        place = {"yref": "paper", "y0": 0, "y1": 1, "x0": rule.x, "x1": rule.x}
        note |= {"yref": "paper", "y": 1, "x": rule.x, "xanchor": "left", "yanchor": "top"}
    else:
        low, high = layout["xaxis"]["range"]
        place = {"x0": low, "y0": low, "x1": high, "y1": high}
        note |= {"xref": "paper", "yref": "paper", "x": 1, "y": 1, "xanchor": "right", "yanchor": "bottom"}
    layout["shapes"].append({"type": "line", "layer": "below", "line": line, **place})
    if rule.text:
        layout["annotations"].append(note)


def _windows(layout: Spec, panel: Panel) -> None:
    """Buttons that change what is seen; the first window is seen at first."""
    views = {
        name: {"xaxis.range": list(x), "yaxis.range": list(y), "xaxis.autorange": False, "yaxis.autorange": False}
        for name, (x, y) in panel.windows.items()
    }
    first = next(iter(panel.windows.values()))
    layout["xaxis"]["range"], layout["yaxis"]["range"] = list(first[0]), list(first[1])
    buttons = [{"label": name, "method": "relayout", "args": [view]} for name, view in views.items()]
    place = {"type": "buttons", "direction": "right", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}
    layout["updatemenus"] = [{**place, "buttons": buttons, "font": {"size": 11}, "pad": {"b": 2}, "showactive": True}]
    layout["margin"]["t"] = 48
