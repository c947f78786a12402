"""Measured time: example by example, part by part, beside the theory and beside the prediction."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.figure import Figure, Panel
from tasks.evaluation.report.figures.series import Record, Series, color, data, point_record
from tasks.evaluation.report.figures.theme import COLORS, INK, PARTS, REFERENCE
from tasks.evaluation.report.formatting import CHOICE_NAMES, method_name
from tasks.evaluation.report.selection import Sweeps, fastest_choice, reported_row, strictest_choices
from tasks.evaluation.results.rows import TimedPoint
from tasks.evaluation.results.summary import Summary

_MOST_BARS = 8
_BEYOND = 0.3
"""Share of the span of all marks that an interval may stretch an axis by."""
_OPERATIONS = {"flops": "FLOPs|(theory)", "bytes": "bytes moved|(theory)", "intensity": "FLOPs / byte|(theory)"}
_TWO_LINES = "split(datum.label, '|')"
_FROM_ZERO = alt.Scale(zero=True)


def latency_scatter(summary: Summary, sweeps: Sweeps) -> Figure | None:
    """Each timed example under the chosen point against its own vanilla run; None where nothing was chosen."""
    panels: list[Panel] = []
    for arm, (_, point) in _fastest(summary).items():
        row = reported_row(point, sweeps)
        if row is None:
            continue
        pairs = list(zip(row.vanilla_latency_ms, row.latency_ms, strict=True))
        text = "vanilla large {:.2f} ms\nchosen point {:.2f} ms\n{:.2f}×"
        records = [{"x": large, "y": own, "text": text.format(large, own, large / own)} for large, own in pairs]
        line, scale = parts.diagonal([value for pair in pairs for value in pair], "as fast as vanilla")
        x, y = alt.X("x:Q", title="vanilla large (ms)", scale=scale), alt.Y("y:Q", title="chosen point (ms)", scale=scale)
        marks = alt.Chart(data(records)).mark_point(filled=True, size=45, opacity=0.6, color=COLORS[arm])
        share = sum(own < large for large, own in pairs) / len(pairs)
        title = [f"{arm}, {method_name(point.method)} ({row.split})", f"{share:.0%} of {len(pairs)} examples faster"]
        panels.append(alt.layer(*line, marks.encode(x=x, y=y, tooltip=["text:N"]), title=alt.TitleParams(title)))
    caption = (
        "Each mark is one example: its time by the chosen point against its time by the vanilla large model, run one right "
        "after the other. Marks under the line are faster."
    )
    after = "Kim et al., first arXiv version, Figure 6"
    return Figure("Example by example", caption, panels, after, height=340, square=True) if panels else None


def _fastest(summary: Summary) -> dict[str, tuple[str, TimedPoint]]:
    """By drafter the fastest chosen point, and what it was chosen for; a drafter without one is left out."""
    return {arm: found for arm in COLORS if (found := fastest_choice(summary, arm)) is not None}


def operations_bars(summary: Summary) -> Figure | None:
    """Computed work beside measured speed, of the chosen points; None where the models' sizes are not known."""
    columns = [*_OPERATIONS.values(), "speed-up|(measured)"]
    bars = {Series("vanilla large", REFERENCE): [1.0] * len(columns)}
    for arm, (choice, point) in _fastest(summary).items():
        if point.operations is not None:
            series = Series(f"{method_name(point.method)}, {arm}, {CHOICE_NAMES[choice]}", COLORS[arm])
            bars[series] = [*(getattr(point.operations, field) for field in _OPERATIONS), point.speedup]
    if len(bars) == 1:
        return None
    records: list[Record] = [
        {"series": one.name, "x": column, "y": value, "text": f"{one.name}\n{column.replace('|', ' ')}: {value:.3f}"}
        for one, values in bars.items()
        for column, value in zip(columns, values, strict=True)
    ]
    axis = alt.Axis(labelAngle=0, labelExpr=_TWO_LINES, ticks=False, labelPadding=6)
    x = alt.X("x:N", sort=columns, title=None, axis=axis)
    y = alt.Y("y:Q", title="relative to vanilla large (= 1)", scale=_FROM_ZERO)
    chart = parts.grouped_bars(records, list(bars), x, y)
    numbers = chart.mark_text(dy=-7, fontSize=11, color=INK).encode(text=alt.Text("y:Q", format=".2f"), color=alt.value(INK))
    caption = (
        "All relative to the vanilla large model. The first three are computed from the models' sizes and from counts; only "
        "the last was timed. Checking several tokens in one run reads the weights once for all of them."
    )
    return Figure("Work and speed", caption, [alt.layer(chart, numbers)], "Kim et al. 2023, Figure 8", zoom=False)


def time_parts(summary: Summary) -> Figure | None:
    """Milliseconds of an example by part, of the models alone and of the chosen points; None where no row has parts."""
    bars = [("vanilla large", summary.vanilla.large.time_ms)]
    bars += [(f"vanilla small|{arm}", model.time_ms) for arm, model in summary.vanilla.small_models()]
    chosen = sorted(strictest_choices(summary), key=lambda point: -point.speedup)
    bars += [(f"{method_name(point.method)}|{point.arm}", point.time_ms) for point in chosen]
    known = [(name, times) for name, times in bars if times][:_MOST_BARS]
    records: list[Record] = [
        {"y": name, "x": times[part], "series": part, "order": place, "text": f"{part} {times[part]:.3f} ms"}
        for name, times in known
        for place, part in enumerate(PARTS)
        if part in times
    ]
    ends = {name: sum(max(value, 0.0) for value in times.values()) for name, times in known}
    x = alt.X("x:Q", title="milliseconds for an example", stack="zero", scale=_FROM_ZERO)
    y = alt.Y("y:N", sort=[name for name, _ in known], title=None, axis=alt.Axis(labelExpr=_TWO_LINES))
    stacked = alt.Chart(data(records)).mark_bar(stroke="white", strokeWidth=1).encode(x=x, y=y, order="order:O")
    stacked = stacked.encode(color=color([Series(name, tone) for name, tone in PARTS.items()]), tooltip=["text:N"])
    totals = alt.Chart(data({"y": name, "x": ends[name], "total": sum(times.values())} for name, times in known))
    totals = totals.mark_text(align="left", dx=5, fontSize=11, color=INK)
    panel = alt.layer(stacked, totals.encode(x="x:Q", y=y, text=alt.Text("total:Q", format=".2f")))
    caption = (
        "Mean milliseconds for an example. Encoders, small and large are counts times the measured cost of one run; other is "
        "the measured time less these three, and may be slightly negative."
    )
    return Figure("Where time goes", caption, [panel], height=44 * len(known), zoom=False) if known else None


def prediction(summary: Summary) -> Figure | None:
    """Measured against predicted speed-up; None where nothing was predicted before it was timed."""
    records = [
        point_record(summary, point, x=point.predicted.speedup, y=point.speedup, series=point.arm)
        | {"kind": "random sample" if point.why == "sample" else "timed by plan", **parts.bounds(point.speedup_interval)}
        for point in summary.timed_points()
        if point.predicted
    ]
    if not records:
        return None
    line, scale = parts.diagonal(_shown_speedups(records), "as predicted")
    x, y = (alt.X("x:Q", title="predicted speed-up (×)", scale=scale), alt.Y("y:Q", title="measured speed-up (×)", scale=scale))
    base = alt.Chart(data(records)).encode(x=x, y=y, color=color(parts.DRAFTER_SERIES))
    kinds = parts.shape([Series("random sample", INK), Series("timed by plan", INK, "diamond")], "kind")
    marks = base.encode(shape=kinds, tooltip=["point:Q"])
    panel = alt.layer(
        *line,
        base.mark_rule(strokeWidth=1, opacity=0.3, clip=True).encode(y="low:Q", y2="high:Q"),
        marks.transform_filter("datum.kind != 'random sample'").mark_point(size=45, filled=False, opacity=0.8),
        marks.transform_filter("datum.kind == 'random sample'").mark_point(size=55, filled=True, opacity=1),
    )
    errors = [(arm, summary.pairs.of(arm).sample_error) for arm in COLORS]
    text = "{} {:.1%} on average and {:.1%} at worst over {} points"
    described = [text.format(arm, one.mean, one.worst, one.points) for arm, one in errors if one]
    error = f" Error of the sample: {'; '.join(described)}." if described else ""
    caption = (
        "The cost model's speed-up, from counts alone, against the measured one with its 95 % interval. Only the random "
        f"sample is fair: the others were timed because they were predicted to be fast. Very long intervals are cut off.{error}"
    )
    return Figure("Prediction against measurement", caption, [panel], height=420, square=True)


def _shown_speedups(records: Sequence[Record]) -> list[float]:
    """All marks, and the ends of their intervals unless one reaches so far that the marks would shrink to a blob."""
    marks = [record[name] for record in records for name in ("x", "y")]
    low, high = min(marks), max(marks)
    room = _BEYOND * (high - low)
    ends = [record[name] for record in records for name in ("low", "high") if name in record]
    return [*marks, *(min(max(end, low - room), high + room) for end in ends)]
