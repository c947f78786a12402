"""What Kim et al., *Speculative Decoding with Big Little Decoder*, NeurIPS 2023, draw of thresholds and ablations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluation.frontier import Point as Measured
from tasks.evaluation.frontier import frontier
from tasks.evaluation.report.figures.lookup import Point, number, speedup_of
from tasks.evaluation.report.figures.series import Chart, Heat, Panel, Rule, Spots
from tasks.evaluation.report.figures.theme import COLORS, DRAFTERS, INK, PALETTE, tooltip_lines
from tasks.evaluation.report.table import METRIC_NAMES

_KINDS = ("BiLD", "without fallback", "without rollback")


def threshold_map(summary: Mapping[str, Any]) -> Chart | None:
    """Quality and speed-up over both thresholds; None where no drafter was swept over two values of each."""
    panels: list[Panel] = []
    for drafter in DRAFTERS:
        points = _largest_grid([point for point in _bild(summary) if point["drafter"] == drafter])
        rows = sorted({number(point["settings"]["rollback_threshold"]) for point in points})
        columns = sorted({number(point["settings"]["fallback_threshold"]) for point in points})
        if len(rows) > 1 and len(columns) > 1:
            panels += [_quality_map(summary, drafter, points, rows, columns)]
            panels += [_speed_map(summary, drafter, points, rows, columns)]
    if not panels:
        return None
    return Chart(
        "BiLD's thresholds",
        "Each cell is one setting. Left: quality minus vanilla large, in points. Right: speed-up; bold (in brackets on the "
        "page) where it was measured, else predicted from counts. Further right the small model falls back more often, further "
        "down the large one rolls back more often. Purple is better than vanilla, orange worse.",
        "Kim et al. 2023, Figure 10, drawn there as curves",
        panels,
    )


def _bild(summary: Mapping[str, Any]) -> list[Point]:
    needed = {"fallback_threshold", "rollback_threshold"}
    return [point for point in summary["points"] if point["method"] == "bild" and needed <= set(point["settings"])]


def _largest_grid(points: Sequence[Point]) -> list[Point]:
    """The points that differ in their thresholds alone: of all such groups the largest."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        rest = {name: value for name, value in point["settings"].items() if not name.endswith("_threshold")}
        groups.setdefault(json.dumps([rest, point.get("sampling")], sort_keys=True), []).append(point)
    return max(groups.values(), key=len, default=[])


def _cells(points: Sequence[Point], rows: Sequence[float], columns: Sequence[float]) -> list[list[Point | None]]:
    places = {
        (number(point["settings"]["rollback_threshold"]), number(point["settings"]["fallback_threshold"])): point
        for point in points
    }
    return [[places.get((row, column)) for column in columns] for row in rows]


def _panel(
    summary: Mapping[str, Any],
    title: str,
    points: Sequence[Point],
    rows: Sequence[float],
    columns: Sequence[float],
    values: Sequence[Sequence[float | None]],
    **look: Any,
) -> Panel:
    cells = _cells(points, rows, columns)
    texts = [[tooltip_lines(cell, summary["metric"]) if cell else "" for cell in row] for row in cells]
    names = [["∞" if math.isinf(value) else f"{value:g}" for value in values] for values in (columns, rows)]
    heat = Heat(names[0], names[1], values, texts, **look)
    return Panel(title, "fallback threshold", "rollback threshold (nats)", heat=heat)


def _quality_map(
    summary: Mapping[str, Any], drafter: str, points: Sequence[Point], rows: Sequence[float], columns: Sequence[float]
) -> Panel:
    vanilla = summary["vanilla"]["large"]["quality"]
    values = [[cell["quality"] - vanilla if cell else None for cell in row] for row in _cells(points, rows, columns)]
    title = f"{drafter}: {METRIC_NAMES[summary['metric']]} − vanilla"
    return _panel(summary, title, points, rows, columns, values, middle=0.0, signed=True)


def _speed_map(
    summary: Mapping[str, Any], drafter: str, points: Sequence[Point], rows: Sequence[float], columns: Sequence[float]
) -> Panel:
    cells = _cells(points, rows, columns)
    known = [[speedup_of(cell, points) if cell else (None, False) for cell in row] for row in cells]
    values = [[value for value, _ in row] for row in known]
    marked = [[measured for _, measured in row] for row in known]
    title = f"{drafter}: speed-up"
    return _panel(summary, title, points, rows, columns, values, middle=1.0, marked=marked)


def oracle_curve(summary: Mapping[str, Any]) -> Chart | None:
    """Quality against the share of tokens that the large model replaced; None where no oracle was swept."""
    spots = []
    for drafter, color in COLORS.items():
        own = [point for point in summary["points"] if point["drafter"] == drafter and point["method"] == "bild_oracle"]
        shares = [(_replaced(point), point) for point in own]
        curve = sorted(((share, point) for share, point in shares if share is not None), key=lambda entry: entry[0])
        if curve:
            spots.append(
                Spots(
                    drafter,
                    [share * 100 for share, _ in curve],
                    [point["quality"] for _, point in curve],
                    color,
                    [f"{share:.1%} replaced\n{tooltip_lines(point, summary['metric'])}" for share, point in curve],
                    line="-" if drafter == "aligned" else "--",
                    y_intervals=[point["quality_interval"] for _, point in curve],
                )
            )
    if not spots:
        return None
    metric, large = METRIC_NAMES[summary["metric"]], summary["vanilla"]["large"]["quality"]
    return Chart(
        "How little of the large model is enough",
        "Both models run at every step and the large one replaces a small token that it finds too unlikely. It costs more than "
        "vanilla and shows only what is possible: how few replacements give the large model's quality.",
        "Kim et al. 2023, Figure 2",
        [Panel("", "tokens replaced by the large model (%)", metric, spots, rules=[Rule("vanilla large", y=large)])],
        columns=1,
    )


def _replaced(point: Point) -> float | None:
    counts = point["counts"]
    return counts["rollbacks"] / counts["tokens"] if counts["tokens"] else None


def ablations(summary: Mapping[str, Any]) -> Chart | None:
    """BiLD with and without each of its policies; None where neither was left out at a timed point."""
    panels = []
    for drafter in DRAFTERS:
        own = [point for point in _bild(summary) if point["drafter"] == drafter and point["timed"]]
        kinds = {kind: [point for point in own if _kind(point) == kind] for kind in _KINDS}
        if sum(bool(points) for points in kinds.values()) > 1:
            marks = [
                _curve(summary, kind, points, style)
                for (kind, points), style in zip(kinds.items(), _STYLES, strict=True)
                if points
            ]
            rule = Rule("vanilla large", y=summary["vanilla"]["large"]["quality"])
            metric = METRIC_NAMES[summary["metric"]]
            panels.append(Panel(drafter, "latency relative to vanilla large (= 1)", metric, marks, rules=[rule]))
    if not panels:
        return None
    return Chart(
        "What each policy is worth",
        "BiLD against itself with one policy off: a fixed window instead of falling back when unsure, or no rollback. Lines "
        "join what no other setting of the same kind beats; further left is faster.",
        "Kim et al. 2023, Figure 5",
        panels,
    )


_STYLES = ((PALETTE[0], "o", "-"), (PALETTE[1], "s", "--"), (INK, "^", ":"))


def _kind(point: Point) -> str:
    if number(point["settings"]["fallback_threshold"]) == 0:
        return "without fallback"
    return "without rollback" if math.isinf(number(point["settings"]["rollback_threshold"])) else "BiLD"


def _curve(summary: Mapping[str, Any], kind: str, points: Sequence[Point], style: tuple[str, str, str]) -> Spots:
    """The frontier of one kind, the slowest last."""
    best = [points[place] for place in frontier([Measured(point["quality"], point["speedup"]) for point in points])]
    color, marker, line = style
    return Spots(
        kind,
        [point["relative_latency"] for point in best],
        [point["quality"] for point in best],
        color,
        [tooltip_lines(point, summary["metric"]) for point in best],
        marker=marker,
        line=line,
    )
