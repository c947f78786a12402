"""Quality against latency relative to vanilla large, after Figure 4 of Kim et al., NeurIPS 2023.

Colour shows the drafter and shape the method. One figure shows what lies close to vanilla large, where settings are chosen,
and what test says of the fastest choices, which letters name; the other one shows everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import altair as alt

from tasks.decoding.registry import ORACLES
from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.figure import Figure
from tasks.evaluation.report.figures.labels import Domain, names
from tasks.evaluation.report.figures.lettered import SIDES, Lettered, lettered_points, on_test, tone
from tasks.evaluation.report.figures.series import DRAFTER_SERIES, Record, Series, bounds, color, data, reference_line
from tasks.evaluation.report.figures.theme import COLORS, INK, LATENCY_TICKS, REFERENCE, SHAPES
from tasks.evaluation.report.formatting import method_name, metric_name
from tasks.evaluation.results.rows import OperatingPoint, TimedPoint
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.settings import CHOICES

CLOSE = 2.0
"""Points of quality below vanilla large that the close view shows."""
_SLOWEST = 1.15
"""Relative latency up to which the close view reaches; further where a lettered point is slower."""
_MOST_METHODS = 6
"""Entries of the legend beside the two drafters; the last stands for all further methods."""
_OTHERS = "other methods"
_STATES = {
    "predicted": alt.MarkDef("point", clip=True, filled=False, opacity=0.4, size=28),
    "beaten": alt.MarkDef("point", clip=True, filled=True, opacity=0.35, size=36),
    "leading": alt.MarkDef("point", clip=True, filled=True, opacity=1.0, size=55),
    "chosen": alt.MarkDef("point", clip=True, filled=True, opacity=1.0, size=75, stroke=INK, strokeWidth=1.2),
}
"""How a point looks; later ones lie on earlier ones."""


def pareto(summary: Summary, predicted: bool = False) -> Figure:
    """What lies close to vanilla large on validation, and the lettered choices on test.

    Args:
        summary: The task's results.
        predicted: Whether points that were not timed are drawn too, hollow, where the cost model expects them.
    """
    points = lettered_points(summary)
    named = [_named(summary, one) for one in points]
    across, upwards = _close_domains(summary, named)
    scales = (alt.Scale(domain=list(domain), nice=False) for domain in (across, upwards))
    records = _records(summary, predicted)
    near = _marks(summary, records, *scales)
    vanilla = summary.vanilla.large.quality
    limits = reference_line(vanilla, "vanilla", x=1.0)
    for loss in map(summary.margins.of, CHOICES):
        limits += reference_line(vanilla - loss, f"− {loss:g}", x=1.0, dotted=True)
    title = alt.TitleParams(f"on {summary.split}, where settings are chosen", subtitle=[one.key for one in points])
    over = [*(_intervals(named) if named else []), *near, *limits]
    over += names(named, across, upwards, SIDES, records) if named else []
    tested = on_test(summary, points)
    joined = (
        " Diamonds: on test, as differences from vanilla there; joined to the ring where validation saw the point."
        if tested
        else ""
    )
    return Figure(
        f"{summary.task}: {metric_name(summary.metric)} against latency, within {CLOSE:g} points of vanilla large",
        f"{_HOW_TO_READ} Dark rim: chosen on validation. Bars of the lettered points are 95 % intervals: across of the "
        f"speed-up, upwards of the difference from vanilla large.{joined}{_HOLLOW if predicted else ''}",
        [alt.layer(*over, title=title), *([tested] if tested else [])],
        after="Kim et al. 2023, Figure 4",
        height=360,
    )


def everything(summary: Summary, predicted: bool = False) -> Figure:
    """Every point with the models alone, on validation; see `pareto`."""
    marks = _marks(summary, _records(summary, predicted), parts.PADDED, parts.PADDED)
    return Figure(
        f"All points and the models alone ({summary.split})",
        f"{_HOW_TO_READ} Bars of the models alone are 95 % intervals of their quality.{_HOLLOW if predicted else ''}",
        [alt.layer(*_models_alone(summary), *marks)],
        after="Kim et al. 2023, Figure 4",
        height=360,
    )


_HOW_TO_READ = (
    "Further left is faster, higher is better; steps are the best of all methods. Pale: beaten by another point with the same "
    "drafter."
)
_HOLLOW = " Small and hollow: not timed, drawn where the cost model expects it."


def _records(summary: Summary, predicted: bool) -> list[Record]:
    """The points as marks, without oracles, which are never worth deploying."""
    points = [point for point in summary.points if point.method not in ORACLES]
    found = [record for point in points if (record := _record(summary, point, predicted))]
    counts = Counter(record["method"] for record in found)
    ordered = sorted(counts, key=lambda name: (name != "BiLD", name != "speculative", -counts[name], name))
    shown = ordered if len(ordered) <= _MOST_METHODS else ordered[: _MOST_METHODS - 1]
    named = [{**record, "method": record["method"] if record["method"] in shown else _OTHERS} for record in found]
    return sorted(named, key=lambda record: [*shown, _OTHERS].index(record["method"]))


def _record(summary: Summary, point: OperatingPoint, predicted: bool) -> Record | None:
    if isinstance(point, TimedPoint):
        leads = any(point is one for one in summary.front(point.arm))
        x, state = point.relative_latency, "chosen" if point.chosen else "leading" if leads else "beaten"
    elif predicted and point.predicted:
        x, state = round(1 / point.predicted.speedup, 5), "predicted"
    else:
        return None
    method = method_name(point.method)
    return parts.point_record(summary, point, x=x, y=point.quality, series=point.arm, method=method, state=state)


def _marks(summary: Summary, records: Sequence[Record], x_scale: alt.Scale, y_scale: alt.Scale) -> list[alt.Chart]:
    """Frontiers and points over the latency and the quality of vanilla large."""
    x = alt.X("x:Q", title="latency relative to vanilla large, and speed-up (×)", scale=x_scale, axis=LATENCY_TICKS)
    y = alt.Y("y:Q", title=f"{metric_name(summary.metric)} (points)", scale=y_scale)
    found = dict.fromkeys(record["method"] for record in records)
    methods = [Series(name, INK, SHAPES[place]) for place, name in enumerate(found)]
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
    for arm in COLORS:
        best = [(point.relative_latency, point.quality) for point in summary.front(arm)]
        best += [(max(1.0, best[-1][0]), best[-1][1])] if best else []
        yield from ({"x": x, "y": y, "series": arm} for x, y in best)


def _models_alone(summary: Summary) -> list[alt.Chart]:
    """The models alone, named beside their marks, with the interval of their quality."""
    large = summary.vanilla.large
    models = [("vanilla large", 1.0, large, INK, "square")]
    for arm, small in summary.vanilla.small_models():
        x = small.relative_latency
        models.append((f"small {1 / x:.1f}×", x, small, COLORS[arm], "triangle-down"))
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


def _named(summary: Summary, one: Lettered) -> Record:
    """A lettered point on validation with its intervals."""
    point, vanilla = one.point, summary.vanilla.large.quality
    fast, slow = point.speedup_interval or (point.speedup, point.speedup)
    worst, best = point.quality_difference_interval or (point.quality - vanilla, point.quality - vanilla)
    place = {"x": point.relative_latency, "y": point.quality, "series": point.arm, "name": one.letter, "tone": tone(one)}
    return {**place, "left": 1 / slow, "right": 1 / fast, "low": vanilla + worst, "high": vanilla + best}


def _intervals(named: Sequence[Record]) -> list[alt.Chart]:
    """Bars, which lie under the points."""
    rules = alt.Chart(data(named)).mark_rule(strokeWidth=1.3, opacity=0.45, clip=True).encode(color=color(DRAFTER_SERIES))
    return [rules.encode(x="x:Q", y="low:Q", y2="high:Q"), rules.encode(x="left:Q", x2="right:Q", y="y:Q")]


def _close_domains(summary: Summary, named: Sequence[Record]) -> tuple[Domain, Domain]:
    """Latencies and qualities that the close view shows."""
    vanilla = summary.vanilla.large.quality
    near = [point for point in summary.timed_points() if point.quality >= vanilla - CLOSE]
    latencies = [1.0, *(point.relative_latency for point in near if point.relative_latency < _SLOWEST)]
    left, right = min(latencies), max(*latencies, *(record["x"] for record in named), 1.0)
    room = max(0.08 * (right - left), 0.03)
    top = max([vanilla, *(point.quality for point in near)]) + 0.2 * CLOSE
    # The names of the limits stand right of vanilla's latency.
    return (left - room, max(right + room, 1 + 3 * room)), (vanilla - CLOSE, top)
