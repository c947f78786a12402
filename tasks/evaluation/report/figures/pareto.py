"""Quality against latency relative to vanilla large, after Figure 4 of Kim et al., NeurIPS 2023.

Colour shows the drafter and shape the method. One panel holds everything, the other one what lies close to vanilla large, where
settings are chosen; there letters name the fastest chosen points.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import altair as alt

from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.figure import Figure
from tasks.evaluation.report.figures.series import DRAFTER_SERIES, Record, Series, bounds, color, data, reference_line
from tasks.evaluation.report.figures.theme import COLORS, INK, REFERENCE, SHAPES
from tasks.evaluation.report.formatting import CHOICE_NAMES, METRIC_NAMES, method_name
from tasks.evaluation.report.selection import chosen, fastest
from tasks.evaluation.results.points import OperatingPoint, TimedPoint
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.settings import CHOICES

CLOSE = 2.0
"""Points of quality below vanilla large that the close view shows."""
_SLOWEST = 1.15
"""Relative latency up to which the close view reaches; further where a lettered point is slower."""
_TICKS = alt.Axis(
    labelExpr="datum.value > 0 ? [format(datum.value, '.2~f'), format(1 / datum.value, '.2~f') + '×'] : '0'",
    labelSeparation=10,
)
_STATES = {
    "predicted": alt.MarkDef("point", clip=True, filled=False, opacity=0.4, size=28),
    "beaten": alt.MarkDef("point", clip=True, filled=True, opacity=0.35, size=36),
    "leading": alt.MarkDef("point", clip=True, filled=True, opacity=1.0, size=55),
    "chosen": alt.MarkDef("point", clip=True, filled=True, opacity=1.0, size=75, stroke=INK, strokeWidth=1.2),
}
"""How a point looks; later ones lie on earlier ones."""


def pareto(summary: Summary, predicted: bool = False) -> Figure:
    """Every timed point and the frontier of each drafter.

    Args:
        summary: The task's results.
        predicted: Whether points that were not timed are drawn too, hollow, where the cost model expects them.
    """
    records = [record for point in summary.points if (record := _record(summary, point, predicted))]
    lettered = _lettered(summary)
    key = [f"{record['letter']}  {record['key']}" for record in lettered]
    # As many lines as the key has, so that both panels begin at one height.
    alone = ["models alone with the 95 % interval of their quality", *[" "] * (len(key) - 1)]
    everything = alt.TitleParams("everything", subtitle=alone)
    close = alt.TitleParams(f"within {CLOSE:g} points of vanilla large, where settings are chosen", subtitle=key)
    examples = f", {summary.vanilla.large.examples} examples" if summary.vanilla.large.examples else ""
    shown = " Hollow: not timed, drawn where the cost model expects them." if predicted else ""
    marks = _marks(summary, records, parts.PADDED, parts.PADDED)
    near = _marks(summary, records, *_close_scales(summary, lettered))
    intervals, letters = _named(lettered) if lettered else ([], [])
    vanilla = summary.vanilla.large.quality
    limits = reference_line(vanilla, "vanilla", x=1.0)
    for loss in map(summary.margins.of, CHOICES):
        limits += reference_line(vanilla - loss, f"− {loss:g}", x=1.0, dotted=True)
    over = [*intervals, *near, *limits, *letters]
    return Figure(
        f"{summary.task}: {METRIC_NAMES[summary.metric]} against latency ({summary.split} split{examples})",
        "Further left is faster, higher is better; steps are the best of all methods. Pale: beaten by another point with the "
        "same drafter. Dark rim: chosen on validation. Bars of the lettered points are 95 % intervals: across of the speed-up, "
        f"upwards of the difference from vanilla large.{shown}",
        [alt.layer(*_models_alone(summary), *marks, title=everything), alt.layer(*over, title=close)],
        after="Kim et al. 2023, Figure 4",
        height=360,
    )


def _record(summary: Summary, point: OperatingPoint, predicted: bool) -> Record | None:
    if isinstance(point, TimedPoint):
        leads = any(point is one for one in summary.front(point.drafter))
        x, state = point.relative_latency, "chosen" if point.chosen else "leading" if leads else "beaten"
    elif predicted and point.predicted:
        x, state = round(1 / point.predicted.speedup, 5), "predicted"
    else:
        return None
    method = method_name(point.method)
    return parts.point_record(summary, point, x=x, y=point.quality, series=point.drafter, method=method, state=state)


def _marks(summary: Summary, records: Sequence[Record], x_scale: alt.Scale, y_scale: alt.Scale) -> list[alt.Chart]:
    """Frontiers and points over the latency and the quality of vanilla large."""
    x = alt.X("x:Q", title="latency relative to vanilla large, and speed-up (×)", scale=x_scale, axis=_TICKS)
    y = alt.Y("y:Q", title=f"{METRIC_NAMES[summary.metric]} (points)", scale=y_scale)
    names = sorted({record["method"]: None for record in records}, key=lambda name: name != "BiLD")
    methods = [Series(name, INK, SHAPES[place % len(SHAPES)]) for place, name in enumerate(names)]
    points = alt.Chart(data(records)).encode(x=x, y=y, color=color(DRAFTER_SERIES), tooltip=["point:Q"])
    points = points.encode(shape=parts.shape(methods, "method"))
    steps = alt.Chart(data(_steps(summary))).mark_line(interpolate="step-after", strokeWidth=1.6, clip=True)
    states = {record["state"] for record in records}
    looks = [(state, look) for state, look in _STATES.items() if state in states]
    return [
        alt.Chart(data([{}])).mark_rule(color=REFERENCE).encode(x=alt.datum(1.0)),
        steps.encode(x=x, y=y, color=color(DRAFTER_SERIES), strokeDash=parts.dash(DRAFTER_SERIES)),
        *(points.transform_filter(alt.datum.state == state).properties(mark=look) for state, look in looks),
    ]


def _steps(summary: Summary) -> Iterable[Record]:
    """The best quality within each latency: level from a point of the frontier to the next one, and on to vanilla's latency."""
    for drafter in COLORS:
        best = [(point.relative_latency, point.quality) for point in summary.front(drafter)]
        best += [(max(1.0, best[-1][0]), best[-1][1])] if best else []
        yield from ({"x": x, "y": y, "series": drafter} for x, y in best)


def _models_alone(summary: Summary) -> list[alt.Chart]:
    """The models alone, named beside their marks, with the interval of their quality."""
    large = summary.vanilla.large
    models = [("vanilla large", 1.0, large, INK, "square")]
    for drafter, small in summary.vanilla.small_models():
        x = small.relative_latency
        models.append((f"small {1 / x:.1f}×", x, small, COLORS[drafter], "triangle-down"))
    records: list[Record] = [
        {"x": x, "y": model.quality, **bounds(model.quality_interval, model.quality), "text": text, "tone": tone, "form": form}
        for text, x, model, tone, form in models
    ]
    base = alt.Chart(data(records)).encode(x="x:Q", y="y:Q", color=alt.Color("tone:N", scale=None), tooltip=["text:N"])
    return [
        *reference_line(large.quality, "vanilla large"),
        base.mark_rule(strokeWidth=1.2, opacity=0.5).encode(y="low:Q", y2="high:Q"),
        base.mark_point(filled=True, size=80, opacity=1).encode(shape=alt.Shape("form:N", scale=None)),
        base.mark_text(align="left", dx=5, dy=15, fontSize=11).encode(text="text:N").transform_filter("datum.x != 1"),
    ]


def _lettered(summary: Summary) -> list[Record]:
    """For each drafter and kind of choice the fastest chosen point of all methods, with its letter and intervals."""
    names: dict[int, list[str]] = {}
    for drafter, (choice, name) in itertools.product(COLORS, CHOICE_NAMES.items()):
        point = fastest(chosen(summary, choice, drafter))
        if point is not None:
            names.setdefault(summary.index_of(point), []).append(name)
    records: list[Record] = []
    for place, (index, own) in enumerate(names.items()):
        point, vanilla = summary.timed_point(index), summary.vanilla.large.quality
        fast, slow = point.speedup_interval or (point.speedup, point.speedup)
        worst, best = point.quality_difference_interval or (point.quality - vanilla, point.quality - vanilla)
        key = f"{point.speedup:.2f}× {method_name(point.method)}, {point.drafter}: {', '.join(own)}"
        record = {
            "x": point.relative_latency,
            "y": point.quality,
            "series": point.drafter,
            "letter": chr(65 + place),
            "key": key,
        }
        records.append({**record, "left": 1 / slow, "right": 1 / fast, "low": vanilla + worst, "high": vanilla + best})
    return records


def _named(lettered: Sequence[Record]) -> tuple[list[alt.Chart], list[alt.Chart]]:
    """Bars, which lie under the points, and letters, which lie above them.

    Letters stand above and left of aligned points, where nothing lies that beats them; below and right of unaligned ones.
    """
    base = alt.Chart(data(lettered))
    rules = base.mark_rule(strokeWidth=1.3, opacity=0.45, clip=True).encode(color=color(DRAFTER_SERIES))
    text = base.encode(x="x:Q", y="y:Q", text="letter:N")
    letters = [
        text.transform_filter(alt.datum.series == drafter).mark_text(
            dx=by, dy=by, fontSize=13, fontWeight="bold", color=COLORS[drafter]
        )
        for drafter, by in (("aligned", -10), ("unaligned", 10))
    ]
    return [rules.encode(x="x:Q", y="low:Q", y2="high:Q"), rules.encode(x="left:Q", x2="right:Q", y="y:Q")], letters


def _close_scales(summary: Summary, named: Sequence[Record]) -> tuple[alt.Scale, alt.Scale]:
    vanilla = summary.vanilla.large.quality
    near = [point for point in summary.timed_points() if point.quality >= vanilla - CLOSE]
    latencies = [1.0, *(point.relative_latency for point in near if point.relative_latency < _SLOWEST)]
    left, right = min(latencies), max(*latencies, *(record["x"] for record in named), 1.0)
    room = max(0.08 * (right - left), 0.03)
    top = max([vanilla, *(point.quality for point in near)]) + 0.2 * CLOSE
    # The names of the limits stand right of vanilla's latency.
    x = alt.Scale(domain=[left - room, max(right + room, 1 + 3 * room)], nice=False)
    return x, alt.Scale(domain=[vanilla - CLOSE, top], nice=False)
