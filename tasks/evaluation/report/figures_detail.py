"""The figures that explain a result: single texts and tokens, computed work, and SD's theory."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping

import altair as alt

from tasks.decoding.method import DRAFTERS, LOOK_UPS
from tasks.decoding.methods import speculative
from tasks.evaluation.report import charts
from tasks.evaluation.report.charts import COLORS, INK, PALETTE, REFERENCE, Panel, Record, figure, point_record
from tasks.evaluation.report.formatting import CHOICE_NAMES, method_name, settings_text
from tasks.evaluation.report.paper_tables import Row, drafting
from tasks.evaluation.report.tables import PURPOSES
from tasks.evaluation.results.pair import Costs
from tasks.evaluation.results.rows import OperatingPoint, TimedMeasurements, TimedPoint
from tasks.evaluation.results.summary import ArmPoint, Summary, Sweeps, fastest_choice, reported_row


@figure("Example by example", "BiLD, first version, Figure 6", height=340, square=True)
def latency(summary: Summary, sweeps: Sweeps) -> list[Panel]:
    """Each mark is one example: its time by the chosen point against its time by the vanilla large model beside it, medians
    over the rounds. Marks under the line are faster."""
    panels: list[Panel] = []
    for arm, _, point in _fastest_choices(summary):
        row = reported_row(point, sweeps)
        if row is None:
            continue
        pairs = list(zip(row.vanilla_latency_ms, row.latency_ms, strict=True))
        text = "vanilla large {:.2f} ms\nchosen point {:.2f} ms\n{:.2f}×"
        records = [{"x": large, "y": own, "text": text.format(large, own, large / own)} for large, own in pairs]
        ends = [{"x": end, "y": end} for end in (min(map(min, pairs)), max(map(max, pairs)))]
        titles = {"x": "vanilla large (ms)", "y": "chosen point (ms)"}
        x, y = alt.X("x:Q", title=titles["x"], scale=charts.PADDED), alt.Y("y:Q", title=titles["y"], scale=charts.PADDED)
        line = charts.chart(ends, x=x, y=y).mark_line(color=REFERENCE, strokeWidth=1)
        marks = charts.chart(records, x=x, y=y, tooltip=["text:N"])
        marks = marks.mark_point(filled=True, size=45, opacity=0.6, color=COLORS[arm])
        share = sum(own < large for large, own in pairs) / len(pairs)
        title = [f"{arm}, {method_name(point.method)} ({row.split})", f"{share:.0%} of {len(pairs)} examples faster"]
        panels.append(alt.layer(line, marks, title=alt.TitleParams(title)))
    return panels


def _fastest_choices(summary: Summary) -> Iterator[tuple[str, str, TimedPoint]]:
    """Each arm's fastest chosen point, with its arm and what it was chosen for."""
    yield from ((arm, *found) for arm in COLORS if (found := fastest_choice(summary, arm)))


@figure("Work and speed", "BiLD, Figure 8", zoom=False)
def operations(summary: Summary, _: Sweeps) -> list[Panel]:
    """All relative to the vanilla large model, on validation. The first three are computed from the models' sizes and from
    counts; only the last was timed. Checking several tokens in one run reads the weights once for all of them."""
    theory = {"FLOPs|(theory)": "flops", "bytes moved|(theory)": "bytes", "FLOPs / byte|(theory)": "intensity"}
    columns = [*theory, "speed-up|(measured)"]
    records, colors = list[Record](), dict[str, str]()
    for arm, choice, point in _fastest_choices(summary):
        if point.operations is not None:
            name = f"{method_name(point.method)}, {arm}, {CHOICE_NAMES[choice]}"
            values = [*(getattr(point.operations, field) for field in theory.values()), point.speedup]
            records += (
                {"series": name, "x": x, "y": y, "text": f"{name}\n{y:.3f}"} for x, y in zip(columns, values, strict=True)
            )
            colors[name] = COLORS[arm]
    axis = alt.Axis(labelAngle=0, labelExpr="split(datum.label, '|')", ticks=False, labelPadding=6)
    x = alt.X("x:N", sort=columns, title=None, axis=axis)
    y = alt.Y("y:Q", title="relative to vanilla large (= 1)", scale=alt.Scale(zero=True))
    base = charts.chart(records, x=x, y=y, xOffset=alt.XOffset("series:N", sort=[*colors]), tooltip=["text:N"])
    numbers = base.mark_text(dy=-7, fontSize=11, color=INK).encode(text=alt.Text("y:Q", format=".2f"))
    bars = base.mark_bar().encode(color=charts.color(colors))
    return [alt.layer(bars, numbers, *charts.reference_line(1.0, "vanilla large"))] if records else []


_PARTS = dict(
    zip(("encoders", "steps of the large model", "further positions of its checks", "drafter"), PALETTE[2:], strict=False)
)
"""What a text's time is made of, each with its colour."""


@figure("Where the time goes", height=340, zoom=False)
def time_shares(summary: Summary, _: Sweeps) -> list[Panel]:
    """Bars: time of a text on test, relative to vanilla large, from counts and from the times of single runs, the mean of all
    seeds. What a check of several positions takes beyond a step stands apart. Diamonds: measured, each seed with its 95 %
    interval; what lies beyond the bar is spent outside the models. Rings: theory for the first seed (SD, Theorem 3.8), where
    a check takes one step and encoders nothing."""
    costs, alone = summary.pairs["unaligned"].costs, summary.vanilla.large.test
    if costs is None or alone is None:
        return []
    shown = {"vanilla large": _milliseconds(alone, costs)}
    marks, rings = list[Record](), list[Record]()
    for name, arm, points in _chosen_of_seeds(summary):
        shown[name] = [statistics.fmean(parts) for parts in zip(*(_milliseconds(one, costs) for one in points), strict=True)]
        for point in points:
            slow, fast = point.speedup_interval or (point.speedup, point.speedup)
            x, text = 1 / point.speedup, f"{point.speedup:.2f}×"
            marks.append({"x": x, "low": 1 / fast, "high": 1 / slow, "y": name, "text": text})
        for swept, row in drafting(summary, "speculative"):
            if (swept.arm, swept.settings) == (arm, points[0].settings) and (expected := row["expected_speedup"]):
                rings.append({"x": 1 / expected, "y": name, "text": f"theory {expected:.2f}×"})
    if not marks:
        return []
    bars = list[Record]()
    for name, parts in shown.items():
        ends = [end / sum(shown["vanilla large"]) for end in itertools.accumulate(parts, initial=0.0)]
        bars += (
            {"x": begin, "end": end, "y": name, "series": part, "text": f"{part}\n{end - begin:.3f}"}
            for part, (begin, end) in zip(_PARTS, itertools.pairwise(ends), strict=True)
        )
    along = alt.X("x:Q", title="time relative to vanilla large (= 1)", scale=alt.Scale(zero=True))
    y = alt.Y("y:N", title=None, sort=[*shown], axis=alt.Axis(labelLimit=320))
    layers = charts.chart(bars, x=along, x2="end:Q", y=y, color=charts.color(_PARTS), tooltip=["text:N"]).mark_bar()
    measured = charts.chart(marks, x=along, y=y, tooltip=["text:N"])
    spread = measured.mark_rule(color=INK, strokeWidth=1.5).encode(x="low:Q", x2="high:Q")
    diamonds = measured.mark_point(shape="diamond", filled=True, size=70, color=INK, opacity=1)
    circles = charts.chart(rings, x=along, y=y, tooltip=["text:N"]).mark_point(
        shape="circle", size=80, color=INK, strokeWidth=1.8
    )
    return [alt.layer(layers, spread, diamonds, *([circles] if rings else []))]


def _chosen_of_seeds(summary: Summary) -> Iterator[tuple[str, str, list[ArmPoint]]]:
    """What was chosen for a purpose: its name, the arm, and the point of each seed, where the small model drafts in all.

    Where all seeds have the points of an earlier purpose, they are not repeated.
    """
    seen = []
    for arm, (purpose, (method, choice, _)) in itertools.product(COLORS, PURPOSES.items()):
        points = [point for one in summary.arms if one.arm == arm for point in one.points if point.purpose == purpose]
        settings = [point.settings for point in points]
        small = [one.counts.tokens > 0 and (one.settings or {}).get("drafter", "small") == "small" for one in points]
        if points and all(small) and (arm, settings) not in seen:
            seen.append((arm, settings))
            yield f"{method_name(method)}, {arm}, {CHOICE_NAMES[choice]}", arm, points


def _milliseconds(point: TimedMeasurements | ArmPoint, costs: Costs) -> list[float]:
    """What a text takes by `_PARTS`."""
    counts, step = point.counts, costs.verify(1)
    encoders = costs.encode_large_ms + (costs.encode_small_ms if counts.small_steps else 0.0)
    further = sum(runs * max(0.0, costs.verify(width) - step) for width, runs in (counts.verified or {}).items())
    sums = (counts.large_calls * step, further, counts.small_steps * costs.small_step_ms)
    return [encoders, *(one / (point.examples or 1) for one in sums)]


@figure("The earliest layer that agrees with the last", "BiLD, first version, section 2.1", zoom=False)
def agreeing_layers(summary: Summary, _: Sweeps) -> list[Panel]:
    """An oracle for early exit: the share of tokens of the large model's greedy texts that each decoder layer is the earliest
    to predict, by norm and head on its output, along the text as it stands; on validation. No early exit that keeps the text
    runs fewer layers on average."""
    counts = next((pair.agreeing_layers for pair in summary.pairs.values() if pair.agreeing_layers), None)
    if counts is None:
        return []
    tokens, mean = sum(counts), sum(layer * count for layer, count in enumerate(counts, 1)) / sum(counts)
    shares = [(layer, 100 * count / tokens) for layer, count in enumerate(counts, 1)]
    records = [{"x": layer, "y": share, "text": f"layer {layer}\n{share:.1f} %"} for layer, share in shares]
    x = alt.X("x:O", title="decoder layer", axis=alt.Axis(labelAngle=0))
    y = alt.Y("y:Q", title="tokens (%)", scale=alt.Scale(zero=True))
    bars = charts.chart(records, x=x, y=y, tooltip=["text:N"]).mark_bar(color=COLORS["aligned"])
    return [alt.layer(bars, title=f"mean {mean:.1f} of {len(counts)} layers, {tokens:,} tokens")]


_PROPOSERS = {
    "s": ("drafted and kept", "#8CCBEF"),
    "l": ("the large model, after a draft", "#F0B95B"),
    "c": ("the large model, in place of a drafted token", "#D55E00"),
}


@figure("Who proposed each token", "SD, Figure 5", height=190, zoom=False)
def trace(summary: Summary, sweeps: Sweeps) -> list[Panel]:
    """Of each arm's fastest point chosen on validation, the first timed texts: each square is a token. Each run of the
    large model adds one: the token after a draft that it keeps, or one in place of the first token that it rejects. Vanilla
    needs a run for each token."""
    panels: list[Panel] = []
    for arm, _, point in _fastest_choices(summary):
        row = reported_row(point, sweeps)
        shown = [one.proposers for one in (row.shown or () if row is not None else ()) if one.proposers]
        if row is None or not shown:
            continue
        tokens, totals = list[Record](), list[Record]()
        for number, proposers in enumerate(shown, start=1):
            name, own = f"text {number}", len(proposers) - proposers.count("s")
            totals.append({"x": len(proposers), "y": name, "text": f"{own} of {len(proposers)}"})
            for place, letter in enumerate(proposers):
                tokens.append({"x": place, "end": place + 1, "y": name, "series": _PROPOSERS[letter][0]})
        title = "position in the output (tokens); right: tokens of the large model"
        x = alt.X("x:Q", title=title, scale=alt.Scale(zero=True))
        y = alt.Y("y:N", title=None, sort=[one["y"] for one in totals])
        squares = charts.chart(tokens, x=x, x2="end:Q", y=y, color=charts.color(dict(_PROPOSERS.values())))
        counts = charts.chart(totals, x=x, y=y, text="text:N").mark_text(align="left", dx=5, fontSize=11, color=charts.QUIET)
        lines = [f"{method_name(point.method)}, {arm} ({row.split})", settings_text(point.settings)]
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
_ORACLE = {"oracle for γ": REFERENCE}
_ALPHA = alt.X("x:Q", title="acceptance rate α", scale=alt.Scale(domain=[0, 1], nice=False))
Law = Callable[..., float]
"""From α, and where it depends on it `draft_length`, to y."""
Drafted = dict[str, list[tuple[OperatingPoint, Row]]]
"""Points of speculative decoding whose α is known, each with what theory expects of it, by what drafts: `small, aligned`, or
the name of another drafter."""


def _by_drafter(summary: Summary) -> Drafted:
    found: Drafted = {}
    for point, row in drafting(summary, "speculative"):
        if row["acceptance_rate"] is not None:
            found.setdefault(f"small, {point.arm}" if point.drafter == "small" else point.drafter, []).append((point, row))
    return found


def _lines(laws: Mapping[str, Law]) -> list[Record]:
    return [{"x": x, "y": round(law(x), 4), "series": name} for name, law in laws.items() for x in _ALPHAS]


def _theory_panel(
    summary: Summary, drafted: Drafted, law: Law, field: str, y_title: str, title: str = "", oracle: Law | None = None
) -> list[Panel]:
    """A panel of theory as a line for each γ, in grey that of an oracle for γ, and what was measured as marks of equal colours;
    none without a mark.

    Args:
        summary: The task's results.
        drafted: The points; their shapes show what drafts.
        law: From α and γ to y.
        field: The measured y of a point in its row; a point without it has no mark.
        y_title: Title of the axis with its unit.
        title: Of the panel.
        oracle: From α to y.
    """
    lengths = sorted({row["draft_length"] for own in drafted.values() for _, row in own})
    lengths = lengths[:: max(1, math.ceil(len(lengths) / _MOST_LENGTHS))]
    marks: list[Record] = []
    for name, own in drafted.items():
        for point, row in own:
            if row["draft_length"] in lengths and row[field] is not None:
                place = {"x": round(row["acceptance_rate"], 5), "y": row[field], "series": f"γ {row['draft_length']}"}
                marks.append(point_record(summary, point, **place, source="other drafters" if name in DRAFTERS else name))
    if not marks:
        return []
    lines = _lines({f"γ {length}": functools.partial(law, draft_length=length) for length in lengths})
    y = alt.Y("y:Q", title=y_title)
    if oracle is not None:
        top = max(line["y"] for line in lines)
        lines += [line for line in _lines(dict.fromkeys(_ORACLE, oracle)) if line["y"] <= top]
    color = charts.color(charts.palette(f"γ {length}" for length in lengths) | (_ORACLE if oracle else {}))
    sources = dict.fromkeys(mark["source"] for mark in marks)
    points = charts.chart(marks, x=_ALPHA, y=y, color=color, shape=charts.shape(sources, "source"), tooltip=["point:Q"])
    theory = charts.chart(lines, x=_ALPHA, y=y, color=color).mark_line(strokeWidth=1.4)
    return [alt.layer(theory, points.mark_point(filled=True, size=70, opacity=1), title=title)]


@figure("Tokens by acceptance rate", "SD, Figure 2")
def tokens(summary: Summary, _: Sweeps) -> list[Panel]:
    """Lines are theory; marks are measured. A line is (1 − α^(γ+1)) / (1 − α), which takes each token to be kept independently
    of the others; grey: an oracle chooses γ. α is of prefixes that the large model generates; marks are tokens over calls of
    whole texts."""
    title, law, bound = "tokens for each run of the large model", speculative.expected_tokens, speculative.oracle_tokens
    return _theory_panel(summary, _by_drafter(summary), law, "tokens_per_large_call", title, oracle=bound)


@figure("The best window by acceptance rate", "SD, Figure 3")
def windows(summary: Summary, _: Sweeps) -> list[Panel]:
    """Lines are theory; marks are measured. A line is the γ with the greatest speed-up by Theorem 3.8 at a cost ratio c, up to
    16. A mark is the γ of the fastest measured point, of those in the grid, with the measured c."""
    marks = []
    for name, own in _by_drafter(summary).items():
        timed = [(point, row) for point, row in own if isinstance(point, TimedPoint)]
        if len({row["draft_length"] for _, row in timed}) > 1:
            point, row = max(timed, key=lambda found: found[0].speedup)
            cost = "" if row["cost_ratio"] is None else f", c {row['cost_ratio']:.2g}"
            look = {"name": f"{name}{cost}", "tone": INK}
            marks.append(point_record(summary, point, x=round(row["acceptance_rate"], 5), y=row["draft_length"], **look))
    if not marks:
        return []
    y = alt.Y("y:Q", title="best γ (tokens)", axis=alt.Axis(format="d"), scale=alt.Scale(domain=[0, _LONGEST + 1], nice=False))
    best = functools.partial(speculative.best_draft_length, longest=_LONGEST)
    lines = _lines({f"c {cost:g}": functools.partial(best, cost_ratio=cost) for cost in _COSTS})
    color = charts.color(charts.palette(f"c {cost:g}" for cost in _COSTS))
    theory = charts.chart(lines, x=_ALPHA, y=y, color=color).mark_line(interpolate="step-after", strokeWidth=1.4)
    measured = charts.chart(marks, x=_ALPHA, y=y, tooltip=["point:Q"]).mark_point(filled=True, size=70, color=INK, opacity=1)
    return [alt.layer(theory, measured, *charts.names(marks, -11, -11))]


@figure("Speed and operations by acceptance rate", "SD, Figure 4")
def speed(summary: Summary, _: Sweeps) -> list[Panel]:
    """Lines are theory; marks are measured. c and ĉ: time and operations of a run of the small model over one of the large
    model, both 0 in the paper. Speed-ups were timed. Operations are counted for each token: 1 for a position that the large
    model checked, ĉ for a run of the small model. Grey: an oracle chooses γ."""
    groups: dict[str, Drafted] = {}
    for name, own in _by_drafter(summary).items():
        groups.setdefault("drafters without a model" if name in LOOK_UPS else name, {})[name] = own
    panels: list[Panel] = []
    for name, drafted in groups.items():
        row = next(iter(drafted.values()))[0][1]
        if (cost := row["cost_ratio"]) is not None:
            law = functools.partial(speculative.expected_speedup, cost_ratio=cost)
            bound = functools.partial(speculative.oracle_speedup, cost_ratio=cost)
            panels += _theory_panel(summary, drafted, law, "speedup", "speed-up (×)", f"{name}: c {cost:.3g}", bound)
        if (work := row["operations_ratio"]) is not None:
            law, title = functools.partial(speculative.expected_operations, operations_ratio=work), f"{name}: ĉ {work:.3g}"
            panels += _theory_panel(summary, drafted, law, "counted_operations", "operations over vanilla large (×)", title)
    return panels
