"""The figures that set quality against what it costs: the Pareto figure of a task, BiLD's studies, and the cascades' curves.

Shares and calls come from counts, which are exact for replayed points too; latencies and speed-ups are those of timed points.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter

import altair as alt

from tasks.decoding.registry import ORACLES
from tasks.evaluation.report import charts, formatting
from tasks.evaluation.report.charts import COLORS, INK, MOST_SERIES, Panel, Record, figure, point_record
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.rows import OperatingPoint, TimedMeasurements, TimedPoint, ratio
from tasks.evaluation.results.summary import Summary, Sweeps, TemperaturePoints, chosen, fastest, temperature
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.selection import TradeOff, frontier
from tasks.evaluation.settings import CHOICES

# The Pareto figure: colour shows the arm and shape the method; letters name the fastest choices.
_CLOSE = 2.0
"""Points of quality below vanilla large that the close view shows."""
_SLOWEST = 1.15
"""Relative latency up to which the close view shows points that are not chosen."""
_MOST_METHODS = 6
"""Entries of the legend beside the two arms; the last stands for all further methods."""
_WIDEST = 1.5
"""Relative latency at which the bar of an interval on test ends: of few rounds it may reach many times as far."""
_OTHERS = "other methods"
_STATES = {
    "beaten": alt.MarkDef("point", filled=True, opacity=0.35, size=36),
    "leading": alt.MarkDef("point", filled=True, opacity=1.0, size=55),
    "chosen": alt.MarkDef("point", filled=True, opacity=1.0, size=75, stroke=INK, strokeWidth=1.2),
}
"""How a point looks; later ones lie on earlier ones."""
_SIDES = (-11, 11)
"""Pixels right and down of its mark at which a letter stands: of the arm with the fastest lettered point, and of the other."""
_LATENCY = alt.X(
    "x:Q",
    title="latency relative to vanilla large, and speed-up (×)",
    scale=charts.PADDED,
    axis=alt.Axis(
        labelExpr="datum.value > 0 ? [format(datum.value, '.2~f'), format(1 / datum.value, '.2~f') + '×'] : '0'",
        labelSeparation=10,
    ),
)
"""Relative latencies with the speed-up under each."""


@figure(f"{{task}}: {{metric}} against latency, within {_CLOSE:g} points of vanilla large", "BiLD, Figure 4", height=360)
def pareto(summary: Summary, _: Sweeps) -> list[Panel]:
    """Further left is faster, higher is better; stepped lines: each arm's Pareto frontier over all methods. Pale: beaten by
    another point of the same arm. Dark rim: chosen on validation. Letters on test: difference from vanilla large there; bars:
    95 % intervals (horizontal: speed-up, vertical: quality difference); dotted: margin."""
    least = summary.vanilla.large.quality - _CLOSE

    def near(point: TimedPoint) -> bool:
        return point.chosen is not None or (point.quality >= least and point.relative_latency < _SLOWEST)

    shown = _legend(_drawn(summary, near))
    named, tested, keys, test_keys = _lettered(summary, shown)
    y = alt.Y("y:Q", title=_points(summary), scale=charts.PADDED)
    marks = [*_vanilla(summary), _vanilla_latency(), *_frontiers(summary, y, near), *_letters(named)]
    title = alt.TitleParams(f"on {summary.split}, where settings are chosen", subtitle=keys)
    panels: list[Panel] = [alt.layer(*marks, title=title)]
    if tested:
        y = alt.Y("y:Q", title=f"{formatting.metric_name(summary.metric)} − vanilla large (points)", scale=charts.PADDED)
        base = charts.chart(tested, x=_LATENCY, y=y, color=charts.color(COLORS), tooltip=["point:Q"])
        bars = base.mark_rule(strokeWidth=1.3, opacity=0.45)
        marks = [bars.encode(y="low:Q", y2="high:Q"), bars.encode(x="left:Q", x2="right:Q"), _vanilla_latency()]
        marks += [base.mark_point(filled=True, size=130, opacity=1).encode(shape=_shape(shown))]
        marks += charts.reference_line(0.0, "vanilla")
        for margin in map(summary.margins.of, CHOICES):
            marks += charts.reference_line(-margin, f"− {margin:g}", dotted=True)
        panels.append(alt.layer(*marks, *_letters(tested), title=alt.TitleParams("on test", subtitle=test_keys)))
    return panels


def _lettered(summary: Summary, shown: Sequence[str]) -> tuple[list[Record], list[Record], list[str], list[str]]:
    """For each arm and kind of choice the fastest chosen point of all methods, and the recommended point, each with a letter:
    as records on validation and on test, and what each panel says of them. `shown` has the methods of the legend."""
    purposes: dict[int, list[str]] = {}
    for arm, (choice, name) in itertools.product(COLORS, formatting.CHOICE_NAMES.items()):
        if point := fastest(chosen(summary, choice, arm)):
            purposes.setdefault(summary.index_of(point), []).append(name)
    if summary.recommended is not None:
        purposes.setdefault(summary.index_of(summary.recommended), []).append("recommended")
    named, tested, keys, test_keys = list[Record](), list[Record](), list[str](), list[str]()
    for letter, (index, words) in zip("ABCDE", purposes.items(), strict=False):
        point, test = summary.timed_point(index), summary.timed_point(index).test
        red = any(mark.kind == "contradicted" for mark in formatting.marks_of_point(summary, index))
        look = {"series": point.arm, "method": _entry(point, shown), "point": index}
        look["tone"] = charts.CONTRADICTED if red else COLORS[point.arm]
        named.append({"x": point.relative_latency, "y": point.quality, **look, "name": letter})
        what = f"{point.speedup:.2f}× {formatting.method_name(point.method)}, {point.arm}: {', '.join(words)}"
        keys.append(f"{letter}  {what}{' (contradicted on test)' if red else ''}")
        if test is None or (difference := test.quality_difference) is None:
            test_keys.append(f"{letter}  not measured on test")
            continue
        lost = formatting.field_text(test, "quality_difference")
        test_keys.append(f"{letter}  {test.speedup:.2f}×, {lost} points{', contradicted' if red else ''}")
        fast, slow = test.speedup_interval or (test.speedup, test.speedup)
        low, high = test.quality_difference_interval or (difference, difference)
        x = test.relative_latency
        place = {"x": x, "left": 1 / slow, "right": min(1 / fast, max(x, _WIDEST)), "y": difference, "low": low, "high": high}
        tested.append({**place, **look, "name": f"{letter} contradicted" if red else letter})
    return named, tested, keys, test_keys


def _letters(records: Sequence[Record]) -> list[alt.Chart]:
    fastest_first = dict.fromkeys(record["series"] for record in sorted(records, key=itemgetter("x")))
    own = ([record for record in records if record["series"] == arm] for arm in fastest_first)
    return [chart for ours, side in zip(own, _SIDES, strict=False) for chart in charts.names(ours, side, side)]


def _vanilla_latency() -> alt.Chart:
    line: alt.Chart = charts.chart([{}], x=alt.datum(1.0), y=alt.Undefined).mark_rule(color=charts.REFERENCE)
    return line


def _bounds(measured: TimedMeasurements | OperatingPoint) -> Record:
    low, high = measured.quality_interval or (measured.quality, measured.quality)
    return {"low": low, "high": high}


@figure("All points and the models alone", "BiLD, Figure 4", height=360)
def everything(summary: Summary, _: Sweeps) -> list[Panel]:
    """Every timed point on validation, and the models alone, whose bars are 95 % intervals of their quality. Further left is
    faster, higher is better; stepped lines: each arm's frontier over all methods."""
    large, y = summary.vanilla.large, alt.Y("y:Q", title=_points(summary), scale=charts.PADDED)
    models = [{"x": 1.0, "y": large.quality, **_bounds(large), "text": "vanilla large", "tone": INK}]
    for arm, small in summary.vanilla.small_models():
        text = f"small {small.speedup:.1f}×"
        place = {"x": small.relative_latency, "y": small.quality, **_bounds(small)}
        models.append({**place, "text": text, "tone": COLORS[arm]})
    base = charts.chart(models, x=_LATENCY, y=y, color=alt.Color("tone:N", scale=None), tooltip=["text:N"])
    marks = [
        base.mark_rule(strokeWidth=1.2, opacity=0.5).encode(y="low:Q", y2="high:Q"),
        base.mark_point(filled=True, shape="square", size=80, opacity=1),
        base.mark_text(align="left", dx=5, dy=15, fontSize=11).encode(text="text:N").transform_filter("datum.x != 1"),
    ]
    return [alt.layer(*_vanilla(summary), _vanilla_latency(), *marks, *_frontiers(summary, y, lambda _: True))]


def _frontiers(summary: Summary, y: alt.Y, shows: Callable[[TimedPoint], bool]) -> list[alt.Chart]:
    """Frontiers and timed points of those that `shows` takes, without oracles, which are never worth deploying."""
    fronts = {arm: list(filter(shows, summary.front(arm))) for arm in COLORS}
    leading = {id(point) for front in fronts.values() for point in front}
    found = _drawn(summary, shows)
    shown = _legend(found)
    records = []
    for point in found:
        look = {"series": point.arm, "method": _entry(point, shown)}
        state = "chosen" if point.chosen else "leading" if id(point) in leading else "beaten"
        records.append(point_record(summary, point, x=point.relative_latency, y=point.quality, **look, state=state))
    # Level from a point of the frontier to the next one, and on to vanilla's latency.
    steps: list[Record] = []
    for arm, front in fronts.items():
        corners = [(point.relative_latency, point.quality) for point in front]
        corners += [(max(1.0, corners[-1][0]), corners[-1][1])] if corners else []
        steps += ({"x": across, "y": quality, "series": arm} for across, quality in corners)
    axes = {"x": _LATENCY, "y": y, "color": charts.color(COLORS)}
    points = charts.chart(records, **axes, tooltip=["point:Q"], shape=_shape(shown))
    lines = charts.chart(steps, **axes, strokeDash=charts.ARM_DASH).mark_line(interpolate="step-after", strokeWidth=1.6)
    states = [name for name in _STATES if any(record["state"] == name for record in records)]
    return [lines, *(points.transform_filter(alt.datum.state == name).properties(mark=_STATES[name]) for name in states)]


def _drawn(summary: Summary, shows: Callable[[TimedPoint], bool]) -> list[TimedPoint]:
    return [point for point in summary.timed_points() if point.method not in ORACLES and shows(point)]


def _legend(points: Sequence[TimedPoint]) -> list[str]:
    """The methods that have a shape of their own, BiLD first; the last entry may stand for all further ones."""
    counts = Counter(formatting.method_name(point.method) for point in points)
    shown = sorted(counts, key=lambda name: (name != "BiLD", name != "speculative", -counts[name], name))
    return shown if len(shown) <= _MOST_METHODS else [*shown[: _MOST_METHODS - 1], _OTHERS]


def _entry(point: TimedPoint, shown: Sequence[str]) -> str:
    name = formatting.method_name(point.method)
    return name if name in shown else _OTHERS


def _shape(shown: Sequence[str]) -> alt.Shape:
    grey = alt.Legend(symbolFillColor=charts.REFERENCE, symbolStrokeColor=charts.REFERENCE)
    return charts.shape(shown, "method", legend=grey)


# Curves: points of one name are one curve, whose points move along it by one setting.
Across = Callable[[OperatingPoint], float | None]
"""The x of a point; None where it has none."""
Name = Callable[[OperatingPoint], str]
"""The curve of a point in the legend; empty for a point that is not drawn."""
Group = tuple[str, Sequence[OperatingPoint], Sequence[alt.Chart]]
"""The title of a panel, its points, and what else is drawn there."""
_ALPHA = ("deferral_cost", "lossiness", "lenience")
"""Settings that move a point along its curve: α of cascades and of lossy acceptance, and l of lenience."""
_CASCADES = ("speculative_cascade", "token_cascade", "sequence_cascade", "speculative_lossy")
_SPECULATIVE = ("speculative_cascade", "speculative_lossy")
_DEFERRING = ("token_cascade", "diff_oracle")
"""The cascades of Figure 1, where each token is one model's."""
_UNVERIFIED = ("token_cascade", "sequence_cascade")
"""Methods that keep all their drafts, or draft nothing: no token of theirs is verified."""


_calls: Across = attrgetter("large_calls_per_token")
_BY_LATENCY: dict[str, Across] = {"latency relative to vanilla large (= 1)": attrgetter("relative_latency")}
_BY_CALLS: dict[str, Across] = {"large calls for each token": _calls}
_arm: Name = attrgetter("arm")


def _points(summary: Summary) -> str:
    return f"{formatting.metric_name(summary.metric)} (points)"


def _vanilla(summary: Summary) -> list[alt.Chart]:
    return charts.reference_line(summary.vanilla.large.quality, "vanilla large")


def curve_name(point: OperatingPoint) -> str:
    """A point's entry in the legend: its method, its rule, how it takes β, and its drafter unless that is the small model."""
    settings = point.settings
    variant = settings.get("rule") or settings.get("confidence")
    name = formatting.method_name(point.method) + (f" [{variant}]" if variant else "")
    if "tuned" in settings:
        name += ", β tuned" if settings["tuned"] else ", β = 1"
    return name if point.drafter == "small" else f"{name}, {point.drafter}"


def _along(point: OperatingPoint) -> str:
    """The curve of a point, along which everything but α stays the same; a method without α has one curve."""
    fixed = {name: value for name, value in point.settings.items() if name not in _ALPHA}
    return curve_name(point) + (json.dumps(fixed, sort_keys=True) if len(fixed) < len(point.settings) else "")


def _curve_panels(
    summary: Summary,
    groups: Sequence[Group],
    axes: dict[str, Across],
    names: Sequence[str] | None = None,
    name_of: Name = curve_name,
    *,
    band: bool = False,
) -> list[Panel]:
    """For each group and axis, by its title, quality along the curves of its points; an axis on which no point has a place is
    left out. A point that has no row in the page's table brings its numbers as text.

    Args:
        summary: The task's results.
        groups: What the panels show.
        axes: The x of a point by its title.
        names: The curves to draw, in the order of their colours; None for all. More than a legend holds have further panels.
        name_of: The curve of a point.
        band: Whether the 95 % intervals of the quality are drawn as bands.
    """
    rows = {id(point): {"point": index} for index, point in enumerate(summary.points)}
    if names is None:
        names = list(dict.fromkeys(name_of(point) for _, points, _ in groups for point in points))
    legends = [names[first : first + MOST_SERIES] for first in range(0, len(names), MOST_SERIES)]
    panels: list[Panel] = []
    for legend, (title, points, further), (axis, across) in itertools.product(legends, groups, axes.items()):
        records = [
            {"x": round(x, 5), "y": point.quality, "series": name, "curve": _along(point), **(_bounds(point) if band else {})}
            | rows.get(id(point), {"text": _point_text(summary, point)})
            for point in points
            if (name := name_of(point)) in legend and (x := across(point)) is not None
        ]
        if records:
            curves = charts.curves(records, legend, axis, _points(summary), band=band)
            panels.append(alt.layer(*curves, *further, title=title))
    return panels


def _point_text(summary: Summary, point: OperatingPoint) -> str:
    numbers = f"{formatting.quality_text(point, summary.metric)}, {formatting.field_text(point, 'speedup')}"
    return f"{curve_name(point)}, {formatting.settings_text(point.settings)}: {numbers}"


def _by_arm(summary: Summary, points: Iterable[OperatingPoint]) -> list[Group]:
    points = list(points)
    return [(arm, [point for point in points if point.arm == arm], _vanilla(summary)) for arm in COLORS]


def _is_speculative(point: OperatingPoint) -> bool:
    """Speculative decoding by the small model is drawn with the cascades: each of them starts from it."""
    return point.method == "speculative" and point.drafter == "small"


def _compared(points: Iterable[OperatingPoint], methods: Sequence[str]) -> list[OperatingPoint]:
    """The points of these methods and, behind them, those of speculative decoding; none without one of these methods.

    Greedy lossy acceptance is the lenient rule: its points stand for `speculative_lossy`.
    """

    def beside(point: OperatingPoint) -> bool:
        lossy = point.method == "speculative_lenient" and point.drafter == "small" and temperature(point) == 0
        return _is_speculative(point) or (lossy and "speculative_lossy" in methods)

    found = sorted((point for point in points if point.method in methods or beside(point)), key=beside)
    return [] if all(map(beside, found)) else found


def _named_by(point: OperatingPoint, *names: str) -> str:
    """A BiLD point of the small model by some of its settings; empty for others, and where one of them is missing."""
    fixed: Settings = {name: point.settings[name] for name in names if name in point.settings}
    plain = point.method == "bild" and point.drafter == "small"
    return f"BiLD {formatting.settings_text(fixed)}" if plain and fixed.get(names[0]) else ""


def _most_points(points: Iterable[OperatingPoint], name_of: Name, most: int = MOST_SERIES) -> list[str]:
    """The curves with the most points, by name; three points make a curve."""
    counts = Counter(name for name in map(name_of, points) if name)
    return sorted(sorted((name for name in counts if counts[name] >= 3), key=lambda name: -counts[name])[:most])


@figure("How little of the large model is enough", "BiLD, Figure 2")
def oracle(summary: Summary, _: Sweeps) -> list[Panel]:
    """Both models run at every step, and the large model replaces a token of the small one that it finds too unlikely. This
    costs more than vanilla large and shows only what is possible: how few replacements give the large model's quality. Bands
    are 95 % intervals of the quality."""

    def replaced(point: OperatingPoint) -> float | None:
        return ratio(100 * point.counts.rollbacks, point.counts.tokens)

    points = [point for point in summary.points if point.method == "bild_oracle"]
    axes: dict[str, Across] = {"tokens replaced by the large model (%)": replaced}
    return _curve_panels(summary, [("", points, _vanilla(summary))], axes, list(COLORS), _arm, band=True)


@figure("What each policy is worth", "BiLD, Figure 5")
def ablations(summary: Summary, _: Sweeps) -> list[Panel]:
    """BiLD against itself with one policy off: a fixed window instead of falling back when unsure, or no rollback. Lines join
    the settings that no other setting of the same kind beats; further left is faster."""

    def policy(point: OperatingPoint) -> str:
        thresholds = [point.settings.get(f"{name}_threshold") for name in ("fallback", "rollback")]
        if None in thresholds:
            return ""
        fallback, rollback = (float(value or 0.0) for value in thresholds)
        return "without fallback" if fallback == 0 else "without rollback" if math.isinf(rollback) else "BiLD"

    groups, drawn = list[Group](), set[str]()
    for arm in COLORS:
        points = [point for point in summary.timed_points(arm, "bild") if policy(point)]
        kinds = {kind: [point for point in points if policy(point) == kind] for kind in map(policy, points)}
        best = {kind: frontier([TradeOff(point.quality, point.speedup) for point in own]) for kind, own in kinds.items()}
        if len(kinds) > 1:
            groups.append((arm, [kinds[kind][index] for kind, found in best.items() for index in found], _vanilla(summary)))
            drawn |= kinds.keys()
    return _curve_panels(summary, groups, _BY_LATENCY, sorted(drawn), policy)


@figure("BiLD's thresholds", "BiLD, Figure 10")
def thresholds(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one rollback threshold; along it the fallback threshold varies: more fallbacks mean more calls of the large
    model. A smaller rollback threshold rolls back more often. The curves with most points are drawn: against latency the timed
    points, against calls all points, from counts."""

    def name_of(point: OperatingPoint) -> str:
        return _named_by(point, "rollback_threshold", "max_draft") if point.settings.get("fallback_threshold") else ""

    names = _most_points(summary.points, name_of)
    return _curve_panels(summary, _by_arm(summary, summary.points), _BY_LATENCY | _BY_CALLS, names, name_of)


def early_exits(summaries: Mapping[str, Summary]) -> charts.Figure | None:
    """Each curve is the frontier of one way of leaving a task's large model early: BiLD that drafts with its first layers, and
    CALM by its measure of confidence; on validation. Latencies are relative to the task's own vanilla large model, which was
    timed in turn with them: two tasks have two clocks. Bars: 95 % intervals of quality and speed-up."""
    records, levels = list[Record](), list[alt.Chart]()
    for result, summary in summaries.items():
        kinds: dict[str, list[TimedPoint]] = {}
        # Without the small model, both arms have the same points.
        for point in summary.timed_points("unaligned"):
            if point.method == "calm" or point.drafter == "early_layer":
                kinds.setdefault(f"{result}: {curve_name(point)}", []).append(point)
        for name, own in kinds.items():
            for point in (own[index] for index in frontier([TradeOff(one.quality, one.speedup) for one in own])):
                low, high = point.speedup_interval or (point.speedup, point.speedup)
                place = {"x": point.relative_latency, "left": 1 / high, "right": 1 / low, "y": point.quality, **_bounds(point)}
                records.append({**place, "series": name, "curve": name, "text": _point_text(summary, point)})
        levels += charts.reference_line(summary.vanilla.large.quality, f"vanilla large, {result}") if kinds else []
    if not records:
        return None
    names, (title, *_) = list(dict.fromkeys(record["series"] for record in records)), _BY_LATENCY
    y = _points(next(iter(summaries.values())))
    axes = {"x": alt.X("x:Q", title=title, scale=charts.PADDED), "y": alt.Y("y:Q", title=y, scale=charts.PADDED)}
    bars = charts.chart(records, **axes, color=charts.color(charts.palette(names))).mark_rule(strokeWidth=1.2, opacity=0.5)
    intervals = [bars.encode(y="low:Q", y2="high:Q"), bars.encode(x="left:Q", x2="right:Q")]
    panel = alt.layer(*levels, *intervals, *charts.curves(records, names, title, y))
    caption = " ".join((early_exits.__doc__ or "").split())
    return charts.Figure("Early exits of two trainings", caption, [panel], "BiLD, Figures 6 and 7", height=360)


@figure("Perplexity with fallback", "BiLD, first version, Figure 4")
def perplexity(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each mark is a fallback threshold: the large model scores the positions where the small one's highest probability is at
    or under it, and the one after the longest draft. Higher is better; further left costs less."""
    scored = summary.timed_points(method="bild") if metric_of(summary.metric).name == PERPLEXITY else []
    axes = {"positions that the large model scores for each token": _calls, **_BY_LATENCY}
    return _curve_panels(summary, [("", scored, _vanilla(summary))], axes, list(COLORS), _arm)


@figure("Cascades: quality against deferrals", "SpecCascade, Figure 1")
def deferrals(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one deferral rule; its deferral cost moves from the small model alone to the large one alone. The oracle
    runs both models at every step, so it shows only what its rule could do. Speculative decoding has a mark for each γ: it
    defers once a draft, for several tokens at a time."""

    def deferred(point: OperatingPoint) -> float | None:
        # The oracle calls the large model at every token; it defers where it takes the large model's.
        counts = point.counts
        return ratio(counts.rollbacks if point.method == "diff_oracle" else counts.large_calls, counts.tokens)

    groups = _by_arm(summary, _compared(summary.points, _DEFERRING))
    levels = {arm: charts.reference_line(small.quality, "small model") for arm, small in summary.vanilla.small_models()}
    groups = [(arm, points, [*large, *levels.get(arm, ())]) for arm, points, large in groups]
    return _curve_panels(summary, groups, {"deferrals to the large model for each token": deferred})


@figure("Cascades: quality against the large model's share", "SpecCascade, Figures 3, 10 and 11")
def cascades(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one deferral rule as its deferral cost moves. Further left: fewer calls of the large model, fewer
    rejections, or faster; higher is better. The rejected share is of the drafted tokens that the large model verified. Against
    latency only timed points are drawn."""

    def rejected(point: OperatingPoint) -> float | None:
        # Tokens after a rejection do not count.
        counts = point.counts
        return None if point.method in _UNVERIFIED else ratio(100.0 * counts.rollbacks, counts.accepted + counts.rollbacks)

    points = _compared(summary.points, _CASCADES)
    axes: dict[str, Across] = {"drafted tokens rejected (%)": rejected, **_BY_CALLS, **_BY_LATENCY}
    return _curve_panels(summary, _by_arm(summary, points), axes)


@figure("Cascades by block size", "SpecCascade, Figure 7")
def block_sizes(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one rule as its deferral cost moves, each panel one block size. Further left is faster; only timed points
    are drawn."""
    points = _compared(summary.timed_points(), _SPECULATIVE)
    lengths = sorted({int(point.settings["draft_length"] or 0) for point in points if not _is_speculative(point)})
    groups: list[Group] = [
        (f"{arm}, γ {length}", [point for point in own if point.settings["draft_length"] == length], vanilla)
        for arm, own, vanilla in _by_arm(summary, points)
        for length in lengths
    ]
    return _curve_panels(summary, groups, _BY_LATENCY) if len(lengths) > 1 else []


@figure("Cascades by temperature", "SpecCascade, Figure 6")
def temperatures(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one rule as its deferral cost moves, each pair of panels one temperature, with vanilla's level at that
    temperature. Against latency only timed points are drawn, against calls all points, from counts."""
    swept = list(summary.temperatures)
    for arm in COLORS:
        # The sweep at its own temperature.
        if own := [point for point in summary.points if point.arm == arm]:
            quality = own[0].quality - (own[0].quality_difference or 0.0)
            swept.append(TemperaturePoints(arm=arm, temperature=temperature(own[0]), vanilla_quality=quality, points=own))
    compared = [(one, _compared(one.points, _SPECULATIVE)) for one in swept]
    groups: list[Group] = [
        (f"{one.arm}, T = {one.temperature:g}", points, charts.reference_line(one.vanilla_quality, "vanilla large"))
        for one, points in sorted(compared, key=lambda pair: (pair[0].arm, pair[0].temperature))
        if points
    ]
    several = len({one.temperature for one, points in compared if points}) > 1
    return _curve_panels(summary, groups, _BY_LATENCY | _BY_CALLS) if several else []


@figure("BiLD and BiLD*", "SpecCascade, Figure 8, top")
def bild_variants(summary: Summary, _: Sweeps) -> list[Panel]:
    """BiLD* is the cascade that samples speculatively from the distribution that BiLD is taken to mimic; BiLD falls back and
    rolls back. Each curve is one setting as its rollback threshold or deferral cost moves; of BiLD the settings with the most
    points are drawn. Against latency only timed points are drawn, against calls all points, from counts."""

    def star(point: OperatingPoint) -> str:
        is_star = point.method == "speculative_cascade" and point.settings.get("rule") == "bild"
        return f"BiLD* γ {point.settings['draft_length']}" if is_star and curve_name(point).endswith("]") else ""

    def name_of(point: OperatingPoint) -> str:
        return star(point) or _named_by(point, "fallback_threshold", "max_draft")

    stars = list(dict.fromkeys(name for name in map(star, summary.points) if name))
    plain = _most_points((point for point in summary.points if not star(point)), name_of, MOST_SERIES - len(stars))
    names = [*stars, *plain] if stars and plain else []
    return _curve_panels(summary, _by_arm(summary, summary.points), _BY_LATENCY | _BY_CALLS, names, name_of)


@figure("Lossy acceptance, β = 1 and tuned", "SpecCascade, Figure 8, bottom")
def lossy_variants(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is lossy acceptance of drawn tokens as its α moves, with β = 1 in the residual or with the β that its equation
    gives. As in the paper the share of calls is shown: to compute β takes time of its own."""
    points = [point for point in summary.points if point.method == "speculative_lossy" and temperature(point) > 0]
    several = len({bool(point.settings.get("tuned")) for point in points}) > 1
    names = sorted({curve_name(point) for point in points})[:MOST_SERIES]
    return _curve_panels(summary, _by_arm(summary, points), _BY_CALLS, names) if several else []
