"""The figures that explain a result: BiLD's thresholds, single texts and tokens, computed work, and SD's theory."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt

from tasks.decoding.method import DRAFTERS, LOOK_UPS
from tasks.decoding.methods import speculative
from tasks.evaluation.report import charts
from tasks.evaluation.report.charts import ARM_SERIES, COLORS, INK, REFERENCE, Panel, Record, Series, figure, point_record
from tasks.evaluation.report.formatting import CHOICE_NAMES, method_name, metric_name, settings_text
from tasks.evaluation.report.paper_tables import Row, drafting
from tasks.evaluation.results.rows import OperatingPoint, TimedPoint
from tasks.evaluation.results.summary import Summary, Sweeps, fastest_choice, reported_row, speedup_of, strictest_choices
from tasks.evaluation.scoring.metrics import PERPLEXITY

_THRESHOLDS = ("fallback_threshold", "rollback_threshold")


@figure("BiLD's thresholds", "Kim et al. 2023, Figure 10, drawn there as curves", height=200, zoom=False)
def thresholds(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each cell is one setting. Left: quality minus that of vanilla large. Right: speed-up; framed numbers were measured, the
    others are predicted from counts. Further right the small model falls back more often, further down the large model rolls
    back more often. Blue is better than vanilla large, orange is worse."""
    panels: list[Panel] = []
    for arm in COLORS:
        # The largest group of points that differ in their thresholds alone.
        groups: dict[str, list[OperatingPoint]] = {}
        for point in summary.points:
            if (point.method, point.arm) == ("bild", arm) and set(_THRESHOLDS) <= point.settings.keys():
                rest = {name: value for name, value in point.settings.items() if name not in _THRESHOLDS}
                groups.setdefault(json.dumps([rest, repr(point.sampling)], sort_keys=True), []).append(point)
        points, cells = max(groups.values(), key=len, default=[]), list[Record]()
        for one in points:
            place = {axis: float(one.settings[name] or 0) for axis, name in zip("xy", _THRESHOLDS, strict=True)}
            speedup, measured = speedup_of(one, points)
            found = {"difference": one.quality_difference, "speedup": speedup, "measured": measured}
            cells.append(point_record(summary, one, **place, **found))
        columns, rows = (sorted({cell[axis] for cell in cells}) for axis in "xy")
        if min(len(columns), len(rows)) > 1:
            for cell in cells:
                cell |= {axis: _number(cell[axis]) for axis in "xy"}
            gaps, level = alt.Scale(padding=0.06), alt.Axis(labelAngle=0)
            axes = {
                "x": alt.X(
                    "x:O", sort=[*map(_number, columns)], title="fallback threshold (probability)", scale=gaps, axis=level
                ),
                "y": alt.Y("y:O", sort=[*map(_number, rows[::-1])], title="rollback threshold (nats)", scale=gaps),
            }
            metric = f"{metric_name(summary.metric)} − vanilla large (points)"
            panels.append(_heat_map(cells, axes, "difference", 0.0, "+.2f", f"{arm}: {metric}"))
            panels.append(_heat_map(cells, axes, "speedup", 1.0, ".2f", f"{arm}: speed-up over vanilla large (×)"))
    return panels


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"


def _heat_map(cells: Sequence[Record], axes: Mapping[str, Any], field: str, middle: float, form: str, title: str) -> Panel:
    """A cell for each pair of thresholds, coloured evenly about `middle`; measured speed-ups are framed."""
    reach = max((abs(cell[field] - middle) for cell in cells if cell[field] is not None), default=0.0) or 1.0
    scale = alt.Scale(domain=[middle - reach, middle, middle + reach], range=list(charts.DIVERGING), interpolate="rgb")
    base = charts.chart(cells, **axes, tooltip=["point:Q"]).transform_filter(f"isValid(datum.{field})")
    width = alt.condition("datum.measured", alt.value(1.2 if field == "speedup" else 0), alt.value(0))
    rectangles = base.mark_rect(stroke=INK).encode(color=alt.Color(f"{field}:Q", scale=scale, legend=None), strokeWidth=width)
    numbers = base.mark_text(fontSize=11, color=INK).encode(text=alt.Text(f"{field}:Q", format=form))
    return alt.layer(rectangles, numbers, title=title)


@figure("Example by example", "Kim et al., first arXiv version, Figure 6", height=340, square=True)
def latency(summary: Summary, sweeps: Sweeps) -> list[Panel]:
    """Each mark is one example: its time by the chosen point against its time by the vanilla large model, run one right after
    the other. Marks under the line are faster."""
    panels: list[Panel] = []
    for arm in COLORS:
        found = fastest_choice(summary, arm)
        row = None if found is None else reported_row(found[1], sweeps)
        if found is None or row is None:
            continue
        pairs = list(zip(row.vanilla_latency_ms, row.latency_ms, strict=True))
        text = "vanilla large {:.2f} ms\nchosen point {:.2f} ms\n{:.2f}×"
        records = [{"x": large, "y": own, "text": text.format(large, own, large / own)} for large, own in pairs]
        low, high = min(map(min, pairs)), max(map(max, pairs))
        room = 0.06 * (high - low) or 0.1
        scale = alt.Scale(domain=[low - room, high + room], nice=False)
        x, y = alt.X("x:Q", title="vanilla large (ms)", scale=scale), alt.Y("y:Q", title="chosen point (ms)", scale=scale)
        equal = charts.chart([{"x": end, "y": end} for end in (low - room, high + room)], x=x, y=y)
        name = equal.mark_text(text="as fast as vanilla", align="right", dx=-22, dy=8, color=REFERENCE)
        marks = charts.chart(records, x=x, y=y, tooltip=["text:N"]).mark_point(
            filled=True, size=45, opacity=0.6, color=COLORS[arm]
        )
        share = sum(own < large for large, own in pairs) / len(pairs)
        title = [f"{arm}, {method_name(found[1].method)} ({row.split})", f"{share:.0%} of {len(pairs)} examples faster"]
        line = equal.mark_line(color=REFERENCE, strokeWidth=1)
        panels.append(alt.layer(line, name.transform_filter(f"datum.x > {low}"), marks, title=alt.TitleParams(title)))
    return panels


@figure("Work and speed", "Kim et al. 2023, Figure 8", zoom=False)
def operations(summary: Summary, _: Sweeps) -> list[Panel]:
    """All relative to the vanilla large model. The first three are computed from the models' sizes and from counts; only the
    last was timed. Checking several tokens in one run reads the weights once for all of them."""
    theory = {"flops": "FLOPs|(theory)", "bytes": "bytes moved|(theory)", "intensity": "FLOPs / byte|(theory)"}
    columns = [*theory.values(), "speed-up|(measured)"]
    bars = {Series("vanilla large", REFERENCE): [1.0] * len(columns)}
    for arm in COLORS:
        found = fastest_choice(summary, arm)
        if found is not None and found[1].operations is not None:
            choice, point = found
            series = Series(f"{method_name(point.method)}, {arm}, {CHOICE_NAMES[choice]}", COLORS[arm])
            bars[series] = [*(getattr(point.operations, field) for field in theory), point.speedup]
    if len(bars) == 1:
        return []
    records: list[Record] = [
        {"series": one.name, "x": column, "y": value, "text": f"{one.name}\n{column.replace('|', ' ')}: {value:.3f}"}
        for one, values in bars.items()
        for column, value in zip(columns, values, strict=True)
    ]
    axis = alt.Axis(labelAngle=0, labelExpr="split(datum.label, '|')", ticks=False, labelPadding=6)
    x = alt.X("x:N", sort=columns, title=None, axis=axis)
    y = alt.Y("y:Q", title="relative to vanilla large (= 1)", scale=alt.Scale(zero=True))
    offset = alt.XOffset("series:N", scale=alt.Scale(domain=[one.name for one in bars]))
    base = charts.chart(records, x=x, y=y, xOffset=offset, tooltip=["text:N"])
    numbers = base.mark_text(dy=-7, fontSize=11, color=INK).encode(text=alt.Text("y:Q", format=".2f"))
    return [alt.layer(base.mark_bar().encode(color=charts.color(list(bars))), numbers)]


_PROPOSERS = {
    "s": Series("drafted and kept", "#8CCBEF"),
    "l": Series("the large model, after a draft", "#F0B95B"),
    "c": Series("the large model, in place of a drafted token", "#D55E00"),
}


@figure("Who proposed each token", "Leviathan et al. 2023, Figure 5", height=190, zoom=False)
def trace(summary: Summary, sweeps: Sweeps) -> list[Panel]:
    """Of the points chosen on validation, the first timed texts: each square is a token. A run of the large model adds the
    token behind a draft that it keeps, or the one in place of the first that it does not; further dark squares are further
    runs. Vanilla runs it once a token."""
    panels: list[Panel] = []
    for point in sorted(strictest_choices(summary), key=lambda point: (point.arm, point.method)):
        row = reported_row(point, sweeps) if point.method in ("speculative", "bild") else None
        shown = [one.proposers for one in (row.shown or () if row is not None else ()) if one.proposers]
        if row is None or not shown:
            continue
        tokens, totals = list[Record](), list[Record]()
        for number, proposers in enumerate(shown, start=1):
            name, own = f"text {number}", len(proposers) - proposers.count("s")
            totals.append({"x": len(proposers), "y": name, "text": f"{own} of {len(proposers)}"})
            for place, letter in enumerate(proposers):
                tokens.append({"x": place, "end": place + 1, "y": name, "series": _PROPOSERS[letter].name})
        title = "position in the output (tokens); right: tokens of the large model"
        x = alt.X("x:Q", title=title, scale=alt.Scale(zero=True))
        y = alt.Y("y:N", title=None, sort=[one["y"] for one in totals])
        squares = charts.chart(tokens, x=x, x2="end:Q", y=y, color=charts.color([*_PROPOSERS.values()]))
        counts = charts.chart(totals, x=x, y=y, text="text:N").mark_text(align="left", dx=5, fontSize=11, color=charts.QUIET)
        lines = [f"{method_name(point.method)}, {point.arm} ({row.split})", settings_text(point.settings)]
        panels.append(alt.layer(squares.mark_bar(stroke="white", strokeWidth=1), counts, title=alt.TitleParams(lines)))
    return panels


# The theory of speculative decoding as lines, and what was measured as marks.
_ALPHAS = [number / 50 for number in range(50)]
"""Where lines are drawn through."""
_COSTS = (0.02, 0.05, 0.1, 0.2, 0.4)
_LONGEST = 16
"""The largest γ of the figure of best ones."""
_MOST_LENGTHS = 5
"""Values of γ that have a line."""
_ALPHA = alt.X("x:Q", title="acceptance rate α", scale=alt.Scale(domain=[0, 1], nice=False))
Line = Callable[[float], float]
"""From α to y."""
Drafted = list[tuple[OperatingPoint, Row]]
"""Points of speculative decoding whose α is known, with what theory expects of them."""


def _by_drafter(summary: Summary) -> dict[str, Drafted]:
    """These points by what drafts: `small, aligned`, or the name of another drafter."""
    found: dict[str, Drafted] = {}
    for point, row in drafting(summary, "speculative"):
        if row["acceptance_rate"] is not None:
            drafter = str(point.settings.get("drafter", "small"))
            found.setdefault(f"small, {point.arm}" if drafter == "small" else drafter, []).append((point, row))
    return found


def _theory_panel(
    summary: Summary,
    drafted: Mapping[str, Drafted],
    law: Callable[[float, int], float],
    field: str,
    y_title: str,
    oracle: Line | None = None,
    title: str = "",
) -> list[Panel]:
    """A panel of theory as a line for each γ, in grey that of an oracle for γ, and what was measured as marks of equal colours;
    none without a mark.

    Args:
        summary: The task's results.
        drafted: The points by what drafts, which their shapes show.
        law: From α and γ to y.
        field: The measured y of a point in its row; a point without it has no mark.
        y_title: Title of the axis with its unit.
        oracle: From α to y.
        title: Of the panel.
    """
    lengths = sorted({row["draft_length"] for own in drafted.values() for _, row in own})
    lengths = lengths[:: max(1, math.ceil(len(lengths) / _MOST_LENGTHS))]
    marks: list[Record] = []
    for name, own in drafted.items():
        for point, row in own:
            if row["draft_length"] in lengths and row[field] is not None:
                place = {"x": round(row["acceptance_rate"], 5), "y": row[field], "series": f"γ {row['draft_length']}"}
                source = "other drafters" if name in DRAFTERS else name
                marks.append(point_record(summary, point, **place, source=source))
    if not marks:
        return []
    lines: list[Record] = [
        {"x": x, "y": round(law(x, length), 4), "series": f"γ {length}"} for length in lengths for x in _ALPHAS
    ]
    series, y = charts.palette(f"γ {length}" for length in lengths), alt.Y("y:Q", title=y_title)
    layers = [charts.chart(lines, x=_ALPHA, y=y, color=charts.color(series)).mark_line(strokeWidth=1.4)]
    if oracle is not None:
        top = max(line["y"] for line in lines)
        bound = [{"x": x, "y": round(oracle(x), 4), "series": "oracle for γ"} for x in _ALPHAS if oracle(x) <= top]
        grey = charts.chart(bound, x=_ALPHA, y=y)
        layers.insert(0, grey.mark_line(strokeWidth=1.4, strokeDash=list(charts.DASHED), color=REFERENCE))
    points = charts.chart(marks, x=_ALPHA, y=y, color=charts.color(series), tooltip=["point:Q"])
    sources = charts.palette(dict.fromkeys(mark["source"] for mark in marks))
    # One source is named in the panel's title; a legend of shapes would name it once more.
    points = points.encode(shape=charts.shape(sources, "source")) if len(sources) > 1 else points
    return [alt.layer(*layers, points.mark_point(filled=True, size=70, opacity=1), **({"title": title} if title else {}))]


@figure("Tokens by acceptance rate", "Leviathan et al. 2023, Figure 2")
def tokens(summary: Summary, _: Sweeps) -> list[Panel]:
    """Lines are theory; marks are measured. A line is (1 − α^(γ+1)) / (1 − α), which takes each token to be kept independently
    of the others; grey: an oracle chooses γ. α is of prefixes that the large model generates; marks are tokens over calls of
    whole texts."""

    title, law = "tokens for each run of the large model", speculative.expected_tokens
    return _theory_panel(summary, _by_drafter(summary), law, "tokens_per_large_call", title, speculative.oracle_tokens)


@figure("The best window by acceptance rate", "Leviathan et al. 2023, Figure 3")
def windows(summary: Summary, _: Sweeps) -> list[Panel]:
    """Lines are theory; marks are measured. A line is the γ with the greatest speed-up by Theorem 3.8 at a cost ratio c, up to
    16. A mark is the γ of the fastest measured point, of those in the grid, with the measured c."""
    marks = []
    for name, own in _by_drafter(summary).items():
        timed = [(point, row) for point, row in own if isinstance(point, TimedPoint)]
        if len({row["draft_length"] for _, row in timed}) > 1:
            point, row = max(timed, key=lambda found: found[0].speedup or 0.0)
            place = {"x": round(row["acceptance_rate"], 5), "y": row["draft_length"]}
            cost = "" if row["cost_ratio"] is None else f", c {row['cost_ratio']:.2g}"
            marks.append(point_record(summary, point, **place, name=f"{name}{cost}", tone=INK))
    if not marks:
        return []
    y = alt.Y("y:Q", title="best γ (tokens)", axis=alt.Axis(format="d"), scale=alt.Scale(domain=[0, _LONGEST + 1], nice=False))
    steps = [
        {"x": x, "y": speculative.best_draft_length(x, cost, _LONGEST), "series": f"c {cost:g}"}
        for cost in _COSTS
        for x in _ALPHAS
    ]
    theory = charts.chart(steps, x=_ALPHA, y=y, color=charts.color(charts.palette(f"c {cost:g}" for cost in _COSTS)))
    measured = charts.chart(marks, x=_ALPHA, y=y, tooltip=["point:Q"]).mark_point(filled=True, size=70, color=INK, opacity=1)
    return [alt.layer(theory.mark_line(interpolate="step-after", strokeWidth=1.4), measured, *charts.names(marks, -11, -11))]


@figure("Speed and operations by acceptance rate", "Leviathan et al. 2023, Figure 4")
def speed(summary: Summary, _: Sweeps) -> list[Panel]:
    """Lines are theory; marks are measured. The paper draws c = ĉ = 0; here both are those of the drafter. Speed-ups were
    timed; a mark among operations is counted: the positions that the large model checked, and ĉ for each run of the small
    model, over the tokens. Grey: an oracle chooses γ."""

    groups: dict[str, dict[str, Drafted]] = {}
    for name, own in _by_drafter(summary).items():
        groups.setdefault("drafters without a model" if name in LOOK_UPS else name, {})[name] = own
    panels: list[Panel] = []
    for name, drafted in groups.items():
        _point, row = next(iter(drafted.values()))[0]
        cost, work = row["cost_ratio"], row["operations_ratio"]
        if cost is not None:
            law = functools.partial(speculative.expected_speedup, cost_ratio=cost)
            oracle = functools.partial(speculative.oracle_speedup, cost_ratio=cost)
            panels += _theory_panel(summary, drafted, law, "speedup", "speed-up (×)", oracle, f"{name}: c {cost:.3g}")
        if work is not None:
            law, title = (
                functools.partial(speculative.expected_operations, operations_ratio=work),
                "operations over vanilla large (×)",
            )
            panels += _theory_panel(summary, drafted, law, "counted_operations", title, title=f"{name}: ĉ {work:.3g}")
    return panels


@figure("Perplexity with fallback", "Kim et al., first arXiv version, Figure 4")
def perplexity(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each mark is a fallback threshold: the large model scores the positions where the small one's highest probability is at
    or under it, and the one after the longest draft. Lower is better; further left costs less."""
    scored = [one for one in summary.timed_points() if one.method == "bild" and PERPLEXITY in one.qualities]
    across: dict[str, Callable[[TimedPoint], float]] = {
        "positions that the large model scores (%)": lambda point: 100 * (point.large_calls_per_token or 0.0),
        "latency relative to vanilla large (= 1)": lambda point: point.relative_latency,
    }
    panels: list[Panel] = []
    for title, x in across.items() if scored else ():
        records = [
            point_record(summary, point, x=x(point), y=point.qualities[PERPLEXITY], series=point.arm)
            for point in sorted(scored, key=x)
        ]
        panels.append(alt.layer(*charts.curves(records, ARM_SERIES, title, "perplexity")))
    return panels
