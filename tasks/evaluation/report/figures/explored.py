"""The Pareto figure as a chart for the page: everything of the picture, and besides it what was only predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluation.frontier import TOLERANCES
from tasks.evaluation.report.figures.lookup import Point, frontier_of
from tasks.evaluation.report.figures.series import Chart, Interval, Panel, Rule, Spots, Window
from tasks.evaluation.report.figures.theme import CLOSE, COLORS, INK, SLOWEST, marker_of, tooltip_lines
from tasks.evaluation.report.table import METRIC_NAMES
from tasks.evaluation.report.tables import method_name


def pareto_chart(summary: Mapping[str, Any]) -> Chart:
    """The Pareto figure for the page: besides what was timed, points that were only predicted, hollow and faint."""
    spots: list[Spots] = []
    for drafter in COLORS:
        spots += _frontier_line(summary, drafter)
        for method in dict.fromkeys(point["method"] for point in summary["points"]):
            own = [point for point in summary["points"] if (point["drafter"], point["method"]) == (drafter, method)]
            spots += _method_spots(summary, drafter, method, own)
    spots += _models_alone(summary)
    vanilla = summary["vanilla"]["large"]["quality"]
    rules = [Rule("vanilla large", y=vanilla), Rule(x=1.0)]
    rules += [Rule(f"vanilla − {tolerance:g}", y=vanilla - tolerance, dotted=True) for tolerance in TOLERANCES.values()]
    panel = Panel(
        "",
        "latency relative to vanilla large (= 1); left is faster",
        METRIC_NAMES[summary["metric"]],
        spots,
        rules=rules,
        windows=_views(summary, spots),
    )
    return Chart(
        "Quality against latency",
        "Further left is faster, higher is better. Filled marks were timed, pale where another of the same drafter beats them; "
        "hollow ones were not timed and stand where the cost model puts them. Bars are 95 % intervals: across of the speed-up, "
        "upwards of the difference from vanilla. A dark rim: chosen on validation. Click on a name to hide it, drag to zoom, "
        "double-click to go back.",
        "Kim et al. 2023, Figure 4",
        [panel],
        columns=1,
    )


def _frontier_line(summary: Mapping[str, Any], drafter: str) -> list[Spots]:
    best = frontier_of(summary, drafter)
    if not best:
        return []
    xs, ys = [point["relative_latency"] for point in best], [point["quality"] for point in best]
    ends = [*xs[1:], max(1.0, xs[-1])]
    across = [value for pair in zip(xs, ends, strict=True) for value in pair]
    line = "-" if drafter == "aligned" else "--"
    return [Spots(f"frontier, {drafter}", across, [y for y in ys for _ in range(2)], COLORS[drafter], marker="", line=line)]


def _method_spots(summary: Mapping[str, Any], drafter: str, method: str, points: Sequence[Point]) -> list[Spots]:
    """What is chosen, on the frontier, beaten, and only predicted: four looks under one name of the legend."""
    best = frontier_of(summary, drafter)
    timed = [point for point in points if point["timed"]]
    chosen = [point for point in timed if point["chosen"]]
    leading = [point for point in timed if not point["chosen"] and any(point is one for one in best)]
    beaten = [point for point in timed if not point["chosen"] and not any(point is one for one in best)]
    foretold = [point for point in points if not point["timed"] and point.get("predicted")]
    groups: tuple[tuple[list[Point], dict[str, Any]], ...] = (
        (chosen, {"rim": True, "size": 8}),
        (leading, {"size": 7}),
        (beaten, {"faint": True}),
        (foretold, {"hollow": True, "faint": True}),
    )
    name, vanilla = f"{method_name(method)}, {drafter}", summary["vanilla"]["large"]["quality"]
    found: list[Spots] = []
    for group, look in groups:
        if not group:
            continue
        if group in (chosen, leading):
            look["x_intervals"] = [_inverse(point["speedup_interval"]) for point in group]
            look["y_intervals"] = [_shifted(point["quality_difference_interval"], vanilla) for point in group]
        texts = [tooltip_lines(point, summary["metric"]) for point in group]
        look |= {"texts": texts, "marker": marker_of(method), "group": name, "listed": not found}
        found.append(Spots(name, _latencies(group), [point["quality"] for point in group], COLORS[drafter], **look))
    return found


def _latencies(points: Sequence[Point]) -> list[float]:
    return [point["relative_latency"] if point["timed"] else 1.0 / point["predicted"]["speedup"] for point in points]


def _inverse(speedups: Interval) -> Interval:
    return None if not speedups else (1.0 / speedups[1], 1.0 / speedups[0])


def _shifted(bounds: Interval, by: float) -> Interval:
    return None if not bounds else (bounds[0] + by, bounds[1] + by)


def _models_alone(summary: Mapping[str, Any]) -> list[Spots]:
    metric, found = METRIC_NAMES[summary["metric"]], []
    entries = (
        ("large", "vanilla large", INK, "s"),
        ("small", "vanilla small, unaligned", COLORS["unaligned"], "v"),
        ("small_aligned", "vanilla small, aligned", COLORS["aligned"], "v"),
    )
    for name, words, color, marker in entries:
        entry = summary["vanilla"][name]
        if entry is not None:
            x = 1.0 if name == "large" else entry["relative_latency"]
            text = f"{words}\n{metric} {entry['quality']:.2f}\n{1 / x:.2f}×"
            found.append(Spots(words, [x], [entry["quality"]], color, [text], marker=marker, size=9))
    return found


def _views(summary: Mapping[str, Any], spots: Sequence[Spots]) -> dict[str, Window]:
    """Near vanilla, where settings are chosen, and everything."""
    vanilla = summary["vanilla"]["large"]["quality"]
    places = [(x, y) for one in spots for x, y in zip(one.x, one.y, strict=True)]
    timed = [(x, y) for one in spots if not one.hollow for x, y in zip(one.x, one.y, strict=True)]
    near = [(x, y) for x, y in timed if y >= vanilla - CLOSE and x <= SLOWEST]
    views: dict[str, Window] = {}
    for name, shown in (("near vanilla", near), ("everything", places)):
        xs, ys = [x for x, _ in shown], [y for _, y in shown]
        wide, high = 0.05 * (max(xs) - min(xs)) or 0.05, 0.08 * (max(ys) - min(ys)) or 0.5
        bottom = vanilla - CLOSE if name == "near vanilla" else min(ys) - high
        views[name] = ((min(xs) - wide, max(xs) + wide), (bottom, max(ys) + high + (0.3 if name == "near vanilla" else 0)))
    return views
