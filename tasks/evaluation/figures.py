"""The Pareto figure: quality against latency relative to vanilla, after Figure 4 of Kim et al., NeurIPS 2023.

Colour and line say the drafter, the marker says the method. The left panel holds everything, the right one what lies
close to the vanilla large model, where choices are made.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tasks.evaluation.frontier import TOLERANCES
from tasks.evaluation.labels import Label, place_labels
from tasks.evaluation.table import CHOICE_WORDS, METRIC_NAMES

# Okabe and Ito's blue, vermilion and greys: told apart with every kind of colour vision, and in black and white.
COLORS = {"aligned": "#0072B2", "unaligned": "#D55E00"}
_INK, _FAINT = "#222222", "#8A8A8A"
_LINES: dict[str, Any] = {"aligned": "-", "unaligned": (0, (4, 1.5))}
_MARKERS = {"bild": "o", "speculative": "D", "vanilla_small": "v", "vanilla_large": "s"}
_CLOSE = 2.0
"""Points of quality under vanilla that the right panel shows."""
_SLOWEST = 1.15
"""Latency relative to vanilla up to which it does, unless something slower is chosen."""
_SPEEDUPS = (0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
_BAR: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.55, "zorder": 2.5}
_TITLE: dict[str, Any] = {"fontsize": 9.5, "color": "#555555", "loc": "left"}
_NOTE: dict[str, Any] = {"xycoords": "data", "textcoords": "offset points", "fontsize": 7.5}
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "svg.hashsalt": "draftline",
}


def pareto_figure(summary: Mapping[str, Any]) -> Figure:
    """Draws the figure from a summary (`tasks.evaluation.summary.summarize`)."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(11.0, 5.6), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        everything, close = figure.subplots(1, 2, width_ratios=(1.0, 1.2))
        for axes in (everything, close):
            _draw_points(axes, summary)
            _draw_vanilla(axes, summary)
            _frame(axes, summary)
        _draw_bars(everything, summary)
        _draw_paired_bars(close, summary)
        _limit_close(close, summary)
        _speedup_axis(close)
        everything.set_title("everything measured", **_TITLE)
        close.set_title(f"within {_CLOSE:g} points of vanilla large, where settings are chosen", **_TITLE)
        figure.suptitle(_title(summary), fontsize=12.5, fontweight="bold", color=_INK)
        figure.legend(handles=_legend(summary), loc="outside lower center", ncols=4, frameon=False, columnspacing=2.0)
        # Labels look for room in the finished layout.
        figure.canvas.draw()
        figure.set_layout_engine("none")
        _label_models(everything, summary)
        _label_choices(close, summary)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes PNG or SVG by the suffix of `path`; the same figure gives the same bytes."""
    with matplotlib.rc_context(_STYLE):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})


def _title(summary: Mapping[str, Any]) -> str:
    examples = summary["vanilla"]["large"]["examples"]
    of = f", {examples} examples" if examples else ""
    return f"{summary['task']}: {METRIC_NAMES[summary['metric']]} against latency ({summary['split']} split{of})"


def _draw_points(axes: Axes, summary: Mapping[str, Any]) -> None:
    """BiLD as dots with its frontier as steps, other methods hollow, what is chosen larger and with a dark rim."""
    for drafter, color in COLORS.items():
        own = [point for point in summary["points"] if point["drafter"] == drafter]
        bild = [point for point in own if point["method"] == "bild"]
        others = [point for point in own if point["method"] != "bild"]
        axes.scatter(*_columns(bild), s=15, color=color, alpha=0.4, linewidths=0, zorder=2)
        hollow: dict[str, Any] = {"marker": _MARKERS["speculative"], "facecolors": "white", "edgecolors": color}
        axes.scatter(*_columns(others), s=28, linewidths=1.1, zorder=4, **hollow)
        axes.plot(*_steps(summary, drafter), color=color, linestyle=_LINES[drafter], linewidth=1.6, zorder=3)
    for point in _chosen(summary):
        marker, color = _MARKERS.get(point["method"], "D"), COLORS[point["drafter"]]
        spot = (point["relative_latency"], point["quality"])
        axes.scatter(*spot, s=62, marker=marker, color=color, edgecolors=_INK, linewidths=1.2, zorder=6)


def _draw_vanilla(axes: Axes, summary: Mapping[str, Any]) -> None:
    quality = summary["vanilla"]["large"]["quality"]
    axes.axhline(quality, color=_FAINT, linewidth=0.9, zorder=1)
    axes.axvline(1.0, color=_FAINT, linewidth=0.9, zorder=1)
    axes.scatter(1.0, quality, s=58, marker=_MARKERS["vanilla_large"], color=_INK, zorder=5)
    for small, drafter in _smalls(summary):
        spot = (small["relative_latency"], small["quality"])
        axes.scatter(*spot, s=52, marker=_MARKERS["vanilla_small"], color=COLORS[drafter], zorder=5)


def _draw_bars(axes: Axes, summary: Mapping[str, Any]) -> None:
    """Each model alone, and each chosen point, with the 95 % interval of its own quality."""
    large = summary["vanilla"]["large"]
    entries: list[tuple[Mapping[str, Any], str]] = [({**large, "relative_latency": 1.0}, _INK)]
    entries += [(small, COLORS[drafter]) for small, drafter in _smalls(summary)]
    entries += [(point, COLORS[point["drafter"]]) for point in _chosen(summary)]
    for entry, color in entries:
        if entry["quality_interval"]:
            axes.vlines(entry["relative_latency"], *entry["quality_interval"], color=color, **_BAR)


def _draw_paired_bars(axes: Axes, summary: Mapping[str, Any]) -> None:
    """Each chosen point with the 95 % intervals of its speed-up and, where measured, of its difference from vanilla.

    Its own quality's interval is taller than the panel and says nothing about that difference.
    """
    vanilla = summary["vanilla"]["large"]["quality"]
    for point in _chosen(summary):
        color, speedup, difference = (
            COLORS[point["drafter"]],
            point["speedup_interval"],
            point["quality_difference_interval"],
        )
        if speedup:
            axes.hlines(point["quality"], 1.0 / speedup[1], 1.0 / speedup[0], color=color, **_BAR)
        if difference:
            low, high = difference
            axes.vlines(point["relative_latency"], vanilla + low, vanilla + high, color=color, **_BAR)


def _columns(points: Iterable[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    pairs = [(point["relative_latency"], point["quality"]) for point in points]
    return [latency for latency, _ in pairs], [quality for _, quality in pairs]


def _steps(summary: Mapping[str, Any], drafter: str) -> tuple[list[float], list[float]]:
    """The attainment curve of BiLD: up at a point of the frontier, then level until the next, and on to vanilla's latency."""
    latencies, qualities = _columns(summary["points"][place] for place in summary["frontier"][drafter])
    if not latencies:
        return [], []
    ends = [*latencies[1:], max(1.0, latencies[-1])]
    across = [latency for pair in zip(latencies, ends, strict=True) for latency in pair]
    return across, [quality for quality in qualities for _ in range(2)]


def _chosen(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    places = {choice["point"] for choice in summary["choices"] if choice["point"] is not None}
    return [summary["points"][place] for place in sorted(places)]


def _smalls(summary: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], str]]:
    found = ((summary["vanilla"]["small"], "unaligned"), (summary["vanilla"]["small_aligned"], "aligned"))
    return [(small, drafter) for small, drafter in found if small is not None]


def _limit_close(axes: Axes, summary: Mapping[str, Any]) -> None:
    vanilla = summary["vanilla"]["large"]["quality"]
    latencies, qualities = _columns(point for point in summary["points"] if point["quality"] >= vanilla - _CLOSE)
    chosen, _ = _columns(_chosen(summary))
    left, right = min([1.0, *latencies]), max([1.0, *chosen, *(latency for latency in latencies if latency < _SLOWEST)])
    room = max(0.08 * (right - left), 0.03)
    axes.set_xlim(left - room, right + room)
    # Labels stand above: the chosen points lie at the top.
    axes.set_ylim(vanilla - _CLOSE, max([vanilla, *qualities]) + 0.4 * _CLOSE)
    for tolerance in TOLERANCES.values():
        axes.axhline(vanilla - tolerance, color=_FAINT, linewidth=0.9, linestyle=":", zorder=1)
        spot = (right + room, vanilla - tolerance)
        axes.annotate(f"vanilla − {tolerance:g}", spot, (-3, -2), ha="right", va="top", color=_FAINT, **_NOTE)


def _speedup_axis(axes: Axes) -> None:
    """The same scale read as speed-up, along the top."""
    left, right = axes.get_xlim()
    shown = [speedup for speedup in _SPEEDUPS if left < 1.0 / speedup < right]
    top = axes.secondary_xaxis("top", functions=(lambda x: x, lambda x: x))
    top.set_xticks([1.0 / speedup for speedup in shown], [f"{speedup:g}×" for speedup in shown], fontsize=7.5)
    top.tick_params(length=2, color=_FAINT, labelcolor=_FAINT)
    top.spines["top"].set_visible(False)


def _frame(axes: Axes, summary: Mapping[str, Any]) -> None:
    axes.set_xlabel("latency relative to vanilla large (= 1)")
    axes.set_ylabel(METRIC_NAMES[summary["metric"]])
    axes.tick_params(length=3, color="#555555")


def _legend(summary: Mapping[str, Any]) -> list[Line2D]:
    """Entries in columns: BiLD, speculative or whatever else was measured, small, the rest."""
    entries = []
    others = {point["method"] for point in summary["points"]} - {"bild", "speculative"}
    hollow = "other methods" if others else "speculative"
    for method, words in (("bild", "BiLD"), ("speculative", hollow), ("vanilla_small", "vanilla small")):
        for drafter, color in COLORS.items():
            line = _LINES[drafter] if method == "bild" else ""
            face = "white" if method == "speculative" else color
            look: dict[str, Any] = {"color": color, "linestyle": line, "markerfacecolor": face, "markersize": 5.5}
            entries.append(Line2D([], [], marker=_MARKERS[method], label=f"{words}, {drafter}", **look))
    entries.append(Line2D([], [], color=_INK, linestyle="", marker=_MARKERS["vanilla_large"], label="vanilla large"))
    rim: dict[str, Any] = {
        "markerfacecolor": "#CCCCCC",
        "markeredgecolor": _INK,
        "markeredgewidth": 1.2,
        "markersize": 7.5,
    }
    entries.append(Line2D([], [], linestyle="", marker="o", label="chosen on validation", **rim))
    return entries


def _label_models(axes: Axes, summary: Mapping[str, Any]) -> None:
    """Names the models alone."""
    labels = [Label(1.0, summary["vanilla"]["large"]["quality"], "large", _INK)]
    for small, drafter in _smalls(summary):
        words = f"small, {drafter} {small['speedup']:.1f}×"
        labels.append(Label(small["relative_latency"], small["quality"], words, COLORS[drafter]))
    place_labels(axes, labels, _marks(summary))


def _label_choices(axes: Axes, summary: Mapping[str, Any]) -> None:
    """Names each chosen point by its speed-up and by what it was chosen as."""
    choices: dict[int, list[str]] = {}
    for choice in summary["choices"]:
        if choice["point"] is not None:
            choices.setdefault(choice["point"], []).append(CHOICE_WORDS[choice["choice"]])
    labels = []
    for place, words in choices.items():
        point = summary["points"][place]
        # BiLD goes by what it was chosen as; of other methods the name says more.
        known = point["method"] == "bild"
        said = ", ".join(words) if known else point["method"].replace("_", " ")
        text = f"{point['speedup']:.2f}× {said}"
        labels.append(Label(point["relative_latency"], point["quality"], text, COLORS[point["drafter"]]))
    place_labels(axes, labels, _marks(summary))


def _marks(summary: Mapping[str, Any]) -> list[tuple[float, float]]:
    """What labels keep clear of: every point, and spots along the frontiers and along vanilla's quality."""
    smalls = [small for small, _ in _smalls(summary)]
    marks = [(1.0, summary["vanilla"]["large"]["quality"])]
    marks += [(entry["relative_latency"], entry["quality"]) for entry in (*summary["points"], *smalls)]
    for drafter in COLORS:
        curve = list(zip(*_steps(summary, drafter), strict=True))
        for (x, y), (to_x, to_y) in itertools.pairwise(curve):
            marks += [(x + (to_x - x) * part / 8, y + (to_y - y) * part / 8) for part in range(1, 8)]
    marks += [(latency / 50, marks[0][1]) for latency in range(50)]
    return marks
