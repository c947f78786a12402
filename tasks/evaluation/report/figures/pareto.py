"""The Pareto figure: quality against latency relative to vanilla, after Figure 4 of Kim et al., NeurIPS 2023.

Colour and line say the drafter, the marker says the method; only what was timed is drawn, and what another timed point of the
same drafter beats is faded. The left panel holds everything, the right one what lies close to the vanilla large model, where
choices are made.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tasks.evaluation.frontier import TOLERANCES
from tasks.evaluation.report.figures.lookup import Point, frontier_of, timed
from tasks.evaluation.report.figures.style import LINES, STYLE, TITLE, frame
from tasks.evaluation.report.figures.theme import CLOSE, COLORS, FAINT, INK, SLOWEST, marker_of
from tasks.evaluation.report.labels import Label, place_labels
from tasks.evaluation.report.table import CHOICE_WORDS, METRIC_NAMES
from tasks.evaluation.report.tables import method_name

_STROKES = {"aligned": "-", "unaligned": "--"}
_SPEEDUPS = (0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)
_BAR: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.55, "zorder": 2.5}
_NOTE: dict[str, Any] = {"xycoords": "data", "textcoords": "offset points", "fontsize": 7.5}


def pareto_figure(summary: Mapping[str, Any]) -> Figure:
    """Draws the figure from a summary (`tasks.evaluation.report.summary.summarize`)."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.0, 5.6), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        everything, close = figure.subplots(1, 2, width_ratios=(1.0, 1.2))
        for axes in (everything, close):
            _draw_points(axes, summary)
            _draw_vanilla(axes, summary)
            frame(axes, "latency relative to vanilla large (= 1)", METRIC_NAMES[summary["metric"]])
        _draw_bars(everything, summary)
        _draw_paired_bars(close, summary)
        _limit_close(close, summary)
        _speedup_axis(close)
        everything.set_title("everything measured", **TITLE)
        close.set_title(f"within {CLOSE:g} points of vanilla large, where settings are chosen", **TITLE)
        figure.suptitle(_title(summary), fontsize=12.5, fontweight="bold", color=INK)
        figure.legend(handles=_legend(summary), loc="outside lower center", ncols=4, frameon=False, columnspacing=2.0)
        # Labels look for room in the finished layout.
        figure.canvas.draw()
        figure.set_layout_engine("none")
        _label_models(everything, summary)
        _label_choices(close, summary)
    return figure


def _title(summary: Mapping[str, Any]) -> str:
    examples = summary["vanilla"]["large"]["examples"]
    of = f", {examples} examples" if examples else ""
    return f"{summary['task']}: {METRIC_NAMES[summary['metric']]} against latency ({summary['split']} split{of})"


def _draw_points(axes: Axes, summary: Mapping[str, Any]) -> None:
    """Every timed point by its method's mark, each drafter's frontier as steps, what is chosen larger and with a dark rim."""
    for drafter, color in COLORS.items():
        best = frontier_of(summary, drafter)
        for point in timed(summary):
            if point["drafter"] == drafter:
                on = any(point is other for other in best)
                look: dict[str, Any] = {"marker": marker_of(point["method"]), "color": color, "linewidths": 0}
                spot = (point["relative_latency"], point["quality"])
                axes.scatter(*spot, s=26 if on else 16, alpha=0.95 if on else 0.28, zorder=4 if on else 2, **look)
        axes.plot(*_steps(summary, drafter), color=color, linestyle=LINES[_STROKES[drafter]], linewidth=1.5, zorder=3)
    for point in _chosen(summary):
        marker, color = marker_of(point["method"]), COLORS[point["drafter"]]
        spot = (point["relative_latency"], point["quality"])
        axes.scatter(*spot, s=62, marker=marker, color=color, edgecolors=INK, linewidths=1.2, zorder=6)


def _draw_vanilla(axes: Axes, summary: Mapping[str, Any]) -> None:
    quality = summary["vanilla"]["large"]["quality"]
    axes.axhline(quality, color=FAINT, linewidth=0.9, zorder=1)
    axes.axvline(1.0, color=FAINT, linewidth=0.9, zorder=1)
    axes.scatter(1.0, quality, s=58, marker=marker_of("vanilla_large"), color=INK, zorder=5)
    for small, drafter in _smalls(summary):
        spot = (small["relative_latency"], small["quality"])
        axes.scatter(*spot, s=52, marker=marker_of("vanilla_small"), color=COLORS[drafter], zorder=5)


def _draw_bars(axes: Axes, summary: Mapping[str, Any]) -> None:
    """Each model alone, and each chosen point, with the 95 % interval of its own quality."""
    large = summary["vanilla"]["large"]
    entries: list[tuple[Mapping[str, Any], str]] = [({**large, "relative_latency": 1.0}, INK)]
    entries += [(small, COLORS[drafter]) for small, drafter in _smalls(summary)]
    entries += [(point, COLORS[point["drafter"]]) for point in _chosen(summary)]
    for entry, color in entries:
        if entry["quality_interval"]:
            axes.vlines(entry["relative_latency"], *entry["quality_interval"], color=color, **_BAR)


def _draw_paired_bars(axes: Axes, summary: Mapping[str, Any]) -> None:
    """Each point of a frontier with the 95 % intervals of its speed-up and, where measured, of its difference from vanilla.

    Its own quality's interval is taller than the panel and says nothing about that difference.
    """
    vanilla = summary["vanilla"]["large"]["quality"]
    for drafter, color in COLORS.items():
        for point in frontier_of(summary, drafter):
            speedup, difference = point["speedup_interval"], point["quality_difference_interval"]
            if speedup:
                axes.hlines(point["quality"], 1.0 / speedup[1], 1.0 / speedup[0], color=color, **_BAR)
            if difference:
                low, high = difference
                axes.vlines(point["relative_latency"], vanilla + low, vanilla + high, color=color, **_BAR)


def _columns(points: Iterable[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    pairs = [(point["relative_latency"], point["quality"]) for point in points]
    return [latency for latency, _ in pairs], [quality for _, quality in pairs]


def _steps(summary: Mapping[str, Any], drafter: str) -> tuple[list[float], list[float]]:
    """The attainment curve of all methods: up at a point of the frontier, level until the next, and on to vanilla's latency."""
    latencies, qualities = _columns(frontier_of(summary, drafter))
    if not latencies:
        return [], []
    ends = [*latencies[1:], max(1.0, latencies[-1])]
    across = [latency for pair in zip(latencies, ends, strict=True) for latency in pair]
    return across, [quality for quality in qualities for _ in range(2)]


def _chosen(summary: Mapping[str, Any]) -> list[Point]:
    places = {choice["point"] for choice in summary["choices"] if choice["point"] is not None}
    return [summary["points"][place] for place in sorted(places)]


def _smalls(summary: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], str]]:
    found = ((summary["vanilla"]["small"], "unaligned"), (summary["vanilla"]["small_aligned"], "aligned"))
    return [(small, drafter) for small, drafter in found if small is not None]


def _limit_close(axes: Axes, summary: Mapping[str, Any]) -> None:
    vanilla = summary["vanilla"]["large"]["quality"]
    latencies, qualities = _columns(point for point in timed(summary) if point["quality"] >= vanilla - CLOSE)
    named, _ = _columns(summary["points"][place] for place in _named(summary))
    left, right = min([1.0, *latencies]), max([1.0, *named, *(latency for latency in latencies if latency < SLOWEST)])
    room = max(0.08 * (right - left), 0.03)
    axes.set_xlim(left - room, right + room)
    # Labels stand above: the chosen points lie at the top.
    axes.set_ylim(vanilla - CLOSE, max([vanilla, *qualities]) + 0.4 * CLOSE)
    for tolerance in TOLERANCES.values():
        axes.axhline(vanilla - tolerance, color=FAINT, linewidth=0.9, linestyle=":", zorder=1)
        spot = (right + room, vanilla - tolerance)
        axes.annotate(f"vanilla − {tolerance:g}", spot, (-3, -2), ha="right", va="top", color=FAINT, **_NOTE)


def _speedup_axis(axes: Axes) -> None:
    """The same scale read as speed-up, along the top."""
    left, right = axes.get_xlim()
    shown = [speedup for speedup in _SPEEDUPS if left < 1.0 / speedup < right]
    top = axes.secondary_xaxis("top", functions=(lambda x: x, lambda x: x))
    top.set_xticks([1.0 / speedup for speedup in shown], [f"{speedup:g}×" for speedup in shown], fontsize=7.5)
    top.tick_params(length=2, color=FAINT, labelcolor=FAINT)
    top.spines["top"].set_visible(False)


def _legend(summary: Mapping[str, Any]) -> list[Line2D]:
    """The drafters by colour and line, then each method by its mark, then the models alone."""
    grey: dict[str, Any] = {"linestyle": "", "color": "#777777", "markersize": 6}
    entries = [
        Line2D([], [], color=color, linestyle=LINES[_STROKES[drafter]], linewidth=2, label=f"{drafter}: best of all methods")
        for drafter, color in COLORS.items()
    ]
    entries += [
        Line2D([], [], marker=marker_of(method), label=method_name(method), **grey)
        for method in dict.fromkeys(point["method"] for point in timed(summary))
    ]
    if _smalls(summary):
        entries.append(Line2D([], [], marker=marker_of("vanilla_small"), label="vanilla small", **grey))
    entries.append(Line2D([], [], color=INK, linestyle="", marker=marker_of("vanilla_large"), label="vanilla large"))
    entries.append(Line2D([], [], marker="o", alpha=0.35, label="beaten by another point", **grey))
    rim: dict[str, Any] = {"markerfacecolor": "#CCCCCC", "markeredgecolor": INK, "markeredgewidth": 1.2, "markersize": 7.5}
    entries.append(Line2D([], [], linestyle="", marker="o", label="chosen on validation", **rim))
    return entries


def _label_models(axes: Axes, summary: Mapping[str, Any]) -> None:
    """Names the models alone."""
    labels = [Label(1.0, summary["vanilla"]["large"]["quality"], "large", INK)]
    for small, drafter in _smalls(summary):
        words = f"small, {drafter} {small['speedup']:.1f}×"
        labels.append(Label(small["relative_latency"], small["quality"], words, COLORS[drafter]))
    place_labels(axes, labels, _marks(summary))


def _named(summary: Mapping[str, Any]) -> dict[int, list[str]]:
    """For each drafter and way to choose the fastest chosen point of all methods, with what it was chosen as."""
    words: dict[int, list[str]] = {}
    for choice, drafter in itertools.product(CHOICE_WORDS, COLORS):
        found = [entry for entry in summary["choices"] if (entry["choice"], entry["drafter"]) == (choice, drafter)]
        places = [entry["point"] for entry in found if entry["point"] is not None]
        if places:
            fastest = max(places, key=lambda place: summary["points"][place]["speedup"])
            words.setdefault(fastest, []).append(CHOICE_WORDS[choice])
    return words


def _label_choices(axes: Axes, summary: Mapping[str, Any]) -> None:
    """Names the fastest of what was chosen; the names of all would cover the rest."""
    labels = []
    for place, said in _named(summary).items():
        point = summary["points"][place]
        text = f"{point['speedup']:.2f}× {method_name(point['method'])}, {', '.join(said)}"
        labels.append(Label(point["relative_latency"], point["quality"], text, COLORS[point["drafter"]]))
    place_labels(axes, labels, _marks(summary))


def _marks(summary: Mapping[str, Any]) -> list[tuple[float, float]]:
    """What labels keep clear of: every point, and spots along the frontiers and along vanilla's quality."""
    smalls = [small for small, _ in _smalls(summary)]
    marks = [(1.0, summary["vanilla"]["large"]["quality"])]
    marks += [(entry["relative_latency"], entry["quality"]) for entry in (*timed(summary), *smalls)]
    for drafter in COLORS:
        curve = list(zip(*_steps(summary, drafter), strict=True))
        for (x, y), (to_x, to_y) in itertools.pairwise(curve):
            marks += [(x + (to_x - x) * part / 8, y + (to_y - y) * part / 8) for part in range(1, 8)]
    marks += [(latency / 50, marks[0][1]) for latency in range(50)]
    return marks
