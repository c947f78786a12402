"""The figures that explain a result: BiLD's thresholds, single texts and tokens, computed work, and SD's theory."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import altair as alt

from tasks.decoding.method import DRAFTERS, LOOK_UPS
from tasks.decoding.methods.speculative import (
    best_draft_length,
    expected_operations,
    expected_speedup,
    expected_tokens,
    oracle_speedup,
    oracle_tokens,
)
from tasks.evaluation.report import charts
from tasks.evaluation.report.charts import (
    ARM_SERIES,
    COLORS,
    INK,
    PALETTE,
    REFERENCE,
    SHAPES,
    Panel,
    Record,
    Series,
    figure,
    point_record,
)
from tasks.evaluation.report.formatting import CHOICE_NAMES, method_name, metric_name, settings_text
from tasks.evaluation.report.points import (
    Sweeps,
    acceptance_of,
    cost_of,
    fastest_choice,
    reported_row,
    speedup_of,
    strictest_choices,
    work_of,
)
from tasks.evaluation.results.rows import OperatingPoint, ShownExample, TimedPoint, ratio
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.scoring.metrics import PERPLEXITY

_THRESHOLDS = ("fallback_threshold", "rollback_threshold")
_TWO_LINES = "split(datum.label, '|')"


@figure("BiLD's thresholds", "Kim et al. 2023, Figure 10, drawn there as curves", height=200, zoom=False)
def thresholds(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each cell is one setting. Left: quality minus that of vanilla large. Right: speed-up; framed bold numbers were measured,
    the others are predicted from counts. Further right the small model falls back more often, further down the large model
    rolls back more often. Blue is better than vanilla large, orange is worse."""
    panels: list[Panel] = []
    for arm in COLORS:
        points = _largest_grid(summary, arm)
        fallbacks, rollbacks = (
            [_number(x) for x in sorted({float(p.settings[name] or 0) for p in points})] for name in _THRESHOLDS
        )
        if min(len(fallbacks), len(rollbacks)) > 1:
            gaps = alt.Scale(padding=0.06)
            x = alt.X("x:O", sort=fallbacks, title="fallback threshold (probability)", scale=gaps, axis=alt.Axis(labelAngle=0))
            y = alt.Y("y:O", sort=rollbacks[::-1], title="rollback threshold (nats)", scale=gaps)
            cells = []
            for point in points:
                place = {axis: _number(float(point.settings[name] or 0)) for axis, name in zip("xy", _THRESHOLDS, strict=True)}
                speedup, measured = speedup_of(point, points)
                found = {"difference": point.quality_difference, "speedup": speedup, "measured": measured}
                cells.append(point_record(summary, point, **place, **found))
            title = f"{arm}: {metric_name(summary.metric)} − vanilla large (points)"
            panels.append(_heat_map(cells, x, y, "difference", 0.0, "+.2f", title))
            panels.append(_heat_map(cells, x, y, "speedup", 1.0, ".2f", f"{arm}: speed-up over vanilla large (×)"))
    return panels


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"


def _largest_grid(summary: Summary, arm: str) -> list[OperatingPoint]:
    """The largest group of BiLD's points that differ in their thresholds alone."""
    groups: dict[str, list[OperatingPoint]] = {}
    for point in summary.points:
        if (point.method, point.arm) == ("bild", arm) and set(_THRESHOLDS) <= point.settings.keys():
            rest = {name: value for name, value in point.settings.items() if name not in _THRESHOLDS}
            groups.setdefault(json.dumps([rest, repr(point.sampling)], sort_keys=True), []).append(point)
    return max(groups.values(), key=len, default=[])


def _heat_map(cells: Sequence[Record], x: alt.X, y: alt.Y, field: str, middle: float, number: str, title: str) -> Panel:
    """A cell for each pair of thresholds, coloured evenly about `middle`; measured speed-ups are framed."""
    reach = max((abs(cell[field] - middle) for cell in cells if cell[field] is not None), default=0.0) or 1.0
    domain = [middle - reach, middle, middle + reach]
    color = alt.Color(
        f"{field}:Q", scale=alt.Scale(domain=domain, range=list(charts.DIVERGING), interpolate="rgb"), legend=None
    )
    text = alt.Text(f"{field}:Q", format=number)
    base = alt.Chart(charts.data(cells)).transform_filter(f"isValid(datum.{field})").encode(x=x, y=y, tooltip=["point:Q"])
    framed = "datum.measured" if field == "speedup" else "false"
    measured, others = base.transform_filter(framed), base.transform_filter(f"!({framed})")
    return alt.layer(
        base.mark_rect().encode(color=color),
        others.mark_text(fontSize=11, color=INK).encode(text=text),
        measured.mark_rect(filled=False, stroke=INK, strokeWidth=1),
        measured.mark_text(fontSize=11, color=INK, fontWeight="bold").encode(text=text),
        title=title,
    )


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
        line, scale = charts.diagonal([value for pair in pairs for value in pair], "as fast as vanilla")
        x, y = alt.X("x:Q", title="vanilla large (ms)", scale=scale), alt.Y("y:Q", title="chosen point (ms)", scale=scale)
        marks = alt.Chart(charts.data(records)).mark_point(filled=True, size=45, opacity=0.6, color=COLORS[arm])
        share = sum(own < large for large, own in pairs) / len(pairs)
        title = [f"{arm}, {method_name(found[1].method)} ({row.split})", f"{share:.0%} of {len(pairs)} examples faster"]
        panels.append(alt.layer(*line, marks.encode(x=x, y=y, tooltip=["text:N"]), title=alt.TitleParams(title)))
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
    axis = alt.Axis(labelAngle=0, labelExpr=_TWO_LINES, ticks=False, labelPadding=6)
    x = alt.X("x:N", sort=columns, title=None, axis=axis)
    y = alt.Y("y:Q", title="relative to vanilla large (= 1)", scale=alt.Scale(zero=True))
    chart = charts.grouped_bars(records, list(bars), x, y)
    numbers = chart.mark_text(dy=-7, fontSize=11, color=INK).encode(text=alt.Text("y:Q", format=".2f"), color=alt.value(INK))
    return [alt.layer(chart, numbers)]


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
        shown = [one for one in (row.shown or () if row is not None else ()) if one.proposers]
        if row is not None and shown:
            title = [f"{method_name(point.method)}, {point.arm} ({row.split})", settings_text(point.settings)]
            panels.append(_strips(shown, title))
    return panels


def _strips(shown: Sequence[ShownExample], title: list[str]) -> Panel:
    texts = {f"text {number}": one.proposers for number, one in enumerate(shown, start=1)}
    records: list[Record] = [
        {"x": place, "end": place + 1, "y": name, "series": _PROPOSERS[letter].name}
        for name, proposers in texts.items()
        for place, letter in enumerate(proposers)
    ]
    totals: list[Record] = [
        {"x": len(proposers), "y": name, "text": f"{len(proposers) - proposers.count('s')} of {len(proposers)}"}
        for name, proposers in texts.items()
    ]
    x = alt.X("x:Q", title="position in the output (tokens); right: tokens of the large model", scale=alt.Scale(zero=True))
    y = alt.Y("y:N", title=None, sort=list(texts))
    tokens = alt.Chart(charts.data(records)).mark_bar(stroke="white", strokeWidth=1).encode(x=x, x2="end:Q", y=y)
    tokens = tokens.encode(color=charts.color(list(_PROPOSERS.values())), tooltip=["series:N", "x:Q"])
    names = alt.Chart(charts.data(totals)).mark_text(align="left", dx=5, fontSize=11, color=charts.QUIET)
    return alt.layer(tokens, names.encode(x=x, y=y, text="text:N"), title=alt.TitleParams(title))


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


@dataclass(frozen=True)
class _Measured:
    """A point of speculative decoding whose α is known."""

    point: OperatingPoint
    alpha: float
    length: int
    drafter: str
    """What drafts: `small, aligned`, or the name of another drafter."""
    cost: float | None
    work: float | None

    def mark(self, summary: Summary, y: float | None) -> Record:
        """The point at its α; its shape says what drafts, in few kinds."""
        source = "other drafters" if self.drafter in DRAFTERS else self.drafter
        return point_record(summary, self.point, x=round(self.alpha, 5), y=y, series=f"γ {self.length}", source=source)


def _measured(summary: Summary) -> list[_Measured]:
    found = []
    for point in summary.points:
        pair = summary.pairs.of(point.arm)
        alpha = acceptance_of(pair, point) if point.method == "speculative" else None
        if alpha is not None:
            drafter = str(point.settings.get("drafter", "small"))
            name = f"small, {point.arm}" if drafter == "small" else drafter
            length = int(point.settings["draft_length"] or 0)
            found.append(_Measured(point, alpha.rate, length, name, cost_of(pair, point), work_of(pair, point)))
    return found


def _lengths(found: Iterable[_Measured]) -> list[int]:
    """The values of γ that are drawn, evenly spread over those of the grid."""
    lengths = sorted({one.length for one in found})
    return lengths[:: max(1, math.ceil(len(lengths) / _MOST_LENGTHS))]


@figure("Tokens by acceptance rate", "Leviathan et al. 2023, Figure 2")
def tokens(summary: Summary, _: Sweeps) -> list[Panel]:
    """Lines are theory; marks are measured. A line is (1 − α^(γ+1)) / (1 − α), which takes each token to be kept independently
    of the others; grey: an oracle chooses γ. α is of prefixes that the large model generates; marks are tokens over calls of
    whole texts."""
    found = _measured(summary)
    lengths = _lengths(found)
    lines: dict[str, Line] = {f"γ {length}": functools.partial(expected_tokens, draft_length=length) for length in lengths}
    marks = [one.mark(summary, one.point.tokens_per_large_call) for one in found if one.length in lengths]
    top = max(lengths, default=0) + 1.0
    return [_theory_panel("tokens for each run of the large model", lines, marks, oracle_tokens, top)] if found else []


@figure("The best window by acceptance rate", "Leviathan et al. 2023, Figure 3")
def windows(summary: Summary, _: Sweeps) -> list[Panel]:
    """Lines are theory; marks are measured. A line is the γ with the greatest speed-up by Theorem 3.8 at a cost ratio c, up to
    16. A mark is the γ of the fastest measured point, of those in the grid, with the measured c."""
    by_drafter: dict[str, list[_Measured]] = {}
    for one in _measured(summary):
        if isinstance(one.point, TimedPoint):
            by_drafter.setdefault(one.drafter, []).append(one)
    marks = []
    for name, own in by_drafter.items():
        if len({one.length for one in own}) > 1:
            best = max(own, key=lambda found: found.point.speedup or 0.0)
            cost = "" if best.cost is None else f", c {best.cost:.2g}"
            look = {"name": f"{name}{cost}", "tone": INK}
            marks.append({**best.mark(summary, best.length), **look, "series": "measured"})
    if not marks:
        return []
    lines = {f"c {cost:g}": functools.partial(_best_length, cost) for cost in _COSTS}
    series = [Series(name, PALETTE[place]) for place, name in enumerate(lines)]
    upwards = (0.0, _LONGEST + 1.0)
    y = alt.Y("y:Q", title="best γ (tokens)", axis=alt.Axis(format="d"), scale=alt.Scale(domain=list(upwards), nice=False))
    steps = alt.Chart(charts.data(_line_records(lines))).mark_line(interpolate="step-after", strokeWidth=1.4)
    base = alt.Chart(charts.data(marks)).encode(x=_ALPHA, y=y)
    return [
        alt.layer(
            steps.encode(x=_ALPHA, y=y, color=charts.color(series)),
            base.mark_point(filled=True, size=70, color=INK, opacity=1).encode(tooltip=["point:Q"]),
            *charts.names(marks, (0.0, 1.0), upwards, {"measured": "above left"}),
        )
    ]


def _best_length(cost: float, alpha: float) -> float:
    return best_draft_length(alpha, cost, _LONGEST)


@figure("Speed and operations by acceptance rate", "Leviathan et al. 2023, Figure 4")
def speed(summary: Summary, _: Sweeps) -> list[Panel]:
    """Lines are theory; marks are measured. The paper draws c = ĉ = 0; here both are those of the drafter. Speed-ups were
    timed; a mark among operations is counted: the positions that the large model checked, and ĉ for each run of the small
    model, over the tokens. Grey: an oracle chooses γ."""
    groups: dict[str, list[_Measured]] = {}
    for one in _measured(summary):
        groups.setdefault("drafters without a model" if one.drafter in LOOK_UPS else one.drafter, []).append(one)
    lengths = _lengths([one for own in groups.values() for one in own])
    panels: list[Panel] = []
    for name, own in groups.items():
        shown, cost, work = [one for one in own if one.length in lengths], own[0].cost, own[0].work
        timed = [one for one in shown if isinstance(one.point, TimedPoint)]
        if cost is not None and timed:
            speeds: dict[str, Line] = {
                f"γ {length}": functools.partial(expected_speedup, draft_length=length, cost_ratio=cost) for length in lengths
            }
            top = 1.2 * max(line(_ALPHAS[-1]) for line in speeds.values())
            oracle = functools.partial(oracle_speedup, cost_ratio=cost)
            marks = [one.mark(summary, one.point.speedup) for one in timed]
            panels.append(_theory_panel("speed-up (×)", speeds, marks, oracle, top, f"{name}: c {cost:.3g}"))
        if work is not None and shown:
            counted: dict[str, Line] = {
                f"γ {length}": functools.partial(expected_operations, draft_length=length, operations_ratio=work)
                for length in lengths
            }
            marks = [one.mark(summary, _operations(one, work)) for one in shown]
            panels.append(_theory_panel("operations over vanilla large (×)", counted, marks, title=f"{name}: ĉ {work:.3g}"))
    return panels


def _operations(one: _Measured, work: float) -> float | None:
    """Operations for each token over those of the large model alone: counts, and the sizes of the models."""
    counts = one.point.counts
    if counts.verified is None:
        return None
    positions = sum(width * runs for width, runs in counts.verified.items())
    return ratio(positions + work * counts.small_steps, counts.tokens)


def _line_records(lines: Mapping[str, Line], top: float | None = None) -> list[Record]:
    records: list[Record] = [{"x": x, "y": round(line(x), 4), "series": name} for name, line in lines.items() for x in _ALPHAS]
    return [record for record in records if top is None or record["y"] <= top]


def _theory_panel(
    y_title: str,
    lines: Mapping[str, Line],
    marks: Sequence[Record],
    oracle: Line | None = None,
    top: float | None = None,
    title: str = "",
) -> Panel:
    """Lines of theory by γ, that of the oracle in grey up to `top`, and measured marks, coloured alike."""
    series = [Series(name, PALETTE[place]) for place, name in enumerate(lines)]
    sources = dict.fromkeys(mark["source"] for mark in marks)
    shapes = [Series(name, INK, SHAPES[place]) for place, name in enumerate(sources)]
    y = alt.Y("y:Q", title=y_title)
    theory = alt.Chart(charts.data(_line_records(lines))).mark_line(strokeWidth=1.4)
    layers = [theory.encode(x=_ALPHA, y=y, color=charts.color(series))]
    if oracle is not None:
        bound = alt.Chart(charts.data(_line_records({"oracle for γ": oracle}, top)))
        grey = bound.mark_line(strokeWidth=1.4, strokeDash=list(charts.DASHED), color=REFERENCE)
        layers.insert(0, grey.encode(x=_ALPHA, y=y))
    points = alt.Chart(charts.data(mark for mark in marks if mark["y"] is not None))
    points = points.encode(x=_ALPHA, y=y, color=charts.color(series), tooltip=["point:Q"])
    points = points.mark_point(filled=True, size=70, opacity=1)
    # One source is named in the panel's title; a legend of shapes would name it once more.
    layers.append(points.encode(shape=charts.shape(shapes, "source")) if len(shapes) > 1 else points)
    return alt.layer(*layers, **({"title": title} if title else {}))


@figure("Perplexity with fallback", "Kim et al., first arXiv version, Figure 4")
def perplexity(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each mark is a fallback threshold: the large model scores the positions where the small one's highest probability is at
    or under it, and the one after the longest draft. Lower is better; further left costs less."""
    scored = [one for one in summary.timed_points() if one.method == "bild" and PERPLEXITY in one.qualities]
    across: dict[str, Callable[[TimedPoint], float]] = {
        "positions that the large model scores (%)": lambda point: 100 * (point.large_calls_per_token or 0.0),
        "latency relative to vanilla large (= 1)": lambda point: point.relative_latency,
    }
    panels = []
    for title, x in across.items():
        records = [
            point_record(summary, point, x=x(point), y=point.qualities[PERPLEXITY], series=point.arm)
            for point in sorted(scored, key=x)
        ]
        panels.append(alt.layer(*charts.curves(records, ARM_SERIES, title, "perplexity")))
    return panels if scored else []
