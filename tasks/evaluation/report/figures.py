"""The figures that set quality against what it costs: the Pareto figure of a task, BiLD's studies, and the cascades' curves.

Shares and calls come from counts, which are exact for replayed points too; latencies and speed-ups are those of timed points.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import altair as alt

from tasks.decoding.registry import ORACLES
from tasks.evaluation.frontier import TradeOff, frontier
from tasks.evaluation.report import charts
from tasks.evaluation.report.charts import (
    ARM_SERIES,
    COLORS,
    INK,
    LATENCY_TICKS,
    MOST_SERIES,
    PALETTE,
    SHAPES,
    Domain,
    Panel,
    Record,
    Series,
    figure,
    point_record,
)
from tasks.evaluation.report.formatting import (
    CHOICE_NAMES,
    difference_text,
    field_text,
    is_contradicted,
    marks_of_point,
    method_name,
    metric_name,
    settings_text,
)
from tasks.evaluation.report.points import Sweeps, chosen, fastest, temperature
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.rows import OperatingPoint, TimedPoint, ratio
from tasks.evaluation.results.summary import Summary, TemperaturePoints
from tasks.evaluation.settings import CHOICES

CALLS = "large calls for each token"
LATENCY = "latency relative to vanilla large (= 1)"
_WITH_SPEEDUP = "latency relative to vanilla large, and speed-up (×)"

# The Pareto figure: colour shows the arm and shape the method; letters name the fastest choices.
_CLOSE = 2.0
"""Points of quality below vanilla large that the close view shows."""
_SLOWEST = 1.15
"""Relative latency up to which the close view reaches; further where a lettered point is slower."""
_MOST_METHODS = 6
"""Entries of the legend beside the two arms; the last stands for all further methods."""
_OTHERS = "other methods"
_STATES = {
    "beaten": alt.MarkDef("point", clip=True, filled=True, opacity=0.35, size=36),
    "leading": alt.MarkDef("point", clip=True, filled=True, opacity=1.0, size=55),
    "chosen": alt.MarkDef("point", clip=True, filled=True, opacity=1.0, size=75, stroke=INK, strokeWidth=1.2),
}
"""How a point looks; later ones lie on earlier ones."""
_SIDES = {"aligned": "above left", "unaligned": "below right"}
"""Where a letter is put first: above and left of aligned points, where nothing lies that beats them; else below and right."""


@dataclass(frozen=True)
class Lettered:
    """A chosen point with its letter."""

    letter: str
    index: int
    point: TimedPoint
    names: tuple[str, ...]
    """What it was chosen for, and whether it is recommended."""
    contradicted: bool
    """Whether test contradicts any of that."""

    @property
    def key(self) -> str:
        """Its line under the title of the validation panel."""
        warning = " (contradicted on test)" if self.contradicted else ""
        method = f"{method_name(self.point.method)}, {self.point.arm}"
        return f"{self.letter}  {self.point.speedup:.2f}× {method}: {', '.join(self.names)}{warning}"

    @property
    def test_key(self) -> str:
        """Its line under the title of the test panel."""
        test = self.point.test
        if test is None:
            return f"{self.letter}  not measured on test"
        warning = ", contradicted" if self.contradicted else ""
        return f"{self.letter}  {test.speedup:.2f}×, {difference_text(test)}{warning}"

    def record(self, summary: Summary) -> Record:
        """The point on validation with its intervals."""
        point, vanilla = self.point, summary.vanilla.large.quality
        fast, slow = point.speedup_interval or (point.speedup, point.speedup)
        worst, best = point.quality_difference_interval or (point.quality - vanilla, point.quality - vanilla)
        place = {"x": point.relative_latency, "y": point.quality, "series": point.arm, "name": self.letter, "tone": self._tone}
        return {**place, "left": 1 / slow, "right": 1 / fast, "low": vanilla + worst, "high": vanilla + best}

    def test_record(self) -> Record | None:
        """The point on test, as differences from vanilla there, with where validation saw it; None without them."""
        point, test = self.point, self.point.test
        if test is None or test.quality_difference is None or point.quality_difference is None:
            return None
        fast, slow = test.speedup_interval or (test.speedup, test.speedup)
        low, high = test.quality_difference_interval or (test.quality_difference, test.quality_difference)
        place = {"x": test.relative_latency, "y": test.quality_difference, "left": 1 / slow, "right": 1 / fast}
        before = {"from_x": point.relative_latency, "from_y": point.quality_difference}
        name = f"{self.letter} contradicted" if self.contradicted else self.letter
        look = {"series": point.arm, "name": name, "tone": self._tone, "point": self.index}
        return {**place, **before, **look, "low": low, "high": high}

    @property
    def _tone(self) -> str:
        return charts.CONTRADICTED if self.contradicted else COLORS[self.point.arm]


def lettered_points(summary: Summary) -> list[Lettered]:
    """For each arm and kind of choice the fastest chosen point of all methods, and the recommended point."""
    purposes: dict[int, list[str]] = {}
    for arm, (choice, name) in itertools.product(COLORS, CHOICE_NAMES.items()):
        point = fastest(chosen(summary, choice, arm))
        if point is not None:
            purposes.setdefault(summary.index_of(point), []).append(name)
    if summary.recommended is not None:
        purposes.setdefault(summary.index_of(summary.recommended), []).append("recommended")
    return [
        Lettered(
            chr(65 + place), index, summary.timed_point(index), tuple(own), is_contradicted(marks_of_point(summary, index))
        )
        for place, (index, own) in enumerate(purposes.items())
    ]


@figure(
    f"{{task}}: {{metric}} against latency, within {_CLOSE:g} points of vanilla large", "Kim et al. 2023, Figure 4", height=360
)
def pareto(summary: Summary, _: Sweeps) -> list[Panel]:
    """Further left is faster, higher is better; steps are the best of all methods. Pale: beaten by another point of the same
    arm. Dark rim: chosen on validation. Bars of the lettered points are 95 % intervals: across of the speed-up, upwards of the
    difference from vanilla large. Diamonds: on test, as differences from vanilla there; joined to the ring where validation
    saw the point."""
    points = lettered_points(summary)
    named = [one.record(summary) for one in points]
    across, upwards = _close_domains(summary, named)
    records = _pareto_records(summary)
    rules = alt.Chart(charts.data(named)).mark_rule(strokeWidth=1.3, opacity=0.45, clip=True)
    rules = rules.encode(color=charts.color(ARM_SERIES))
    layers = [
        *([rules.encode(x="x:Q", y="low:Q", y2="high:Q"), rules.encode(x="left:Q", x2="right:Q", y="y:Q")] if named else []),
        *_pareto_marks(summary, records, *(alt.Scale(domain=list(domain), nice=False) for domain in (across, upwards))),
        *_limits(summary, summary.vanilla.large.quality, -math.inf),
        *(charts.names(named, across, upwards, _SIDES, records) if named else []),
    ]
    title = alt.TitleParams(f"on {summary.split}, where settings are chosen", subtitle=[one.key for one in points])
    tested = _on_test(summary, points)
    return [alt.layer(*layers, title=title), *([tested] if tested else [])]


@figure("All points and the models alone", "Kim et al. 2023, Figure 4", height=360)
def everything(summary: Summary, _: Sweeps) -> list[Panel]:
    """Every timed point on validation, and the models alone, whose bars are 95 % intervals of their quality. Further left is
    faster, higher is better; steps are the best of all methods."""
    large = summary.vanilla.large
    models = [("vanilla large", 1.0, large, INK, "square")]
    for arm, small in summary.vanilla.small_models():
        x = small.relative_latency
        models.append((f"small {1 / x:.1f}×", x, small, COLORS[arm], "triangle-down"))
    records: list[Record] = [
        {"x": x, "y": one.quality, **charts.bounds(one.quality_interval, one.quality), "text": text, "tone": tone, "form": form}
        for text, x, one, tone, form in models
    ]
    base = alt.Chart(charts.data(records))
    base = base.encode(x="x:Q", y="y:Q", color=alt.Color("tone:N", scale=None), tooltip=["text:N"])
    alone = [
        *charts.reference_line(large.quality, "vanilla large"),
        base.mark_rule(strokeWidth=1.2, opacity=0.5).encode(y="low:Q", y2="high:Q"),
        base.mark_point(filled=True, size=80, opacity=1).encode(shape=alt.Shape("form:N", scale=None)),
        base.mark_text(align="left", dx=5, dy=15, fontSize=11).encode(text="text:N").transform_filter("datum.x != 1"),
    ]
    return [alt.layer(*alone, *_pareto_marks(summary, _pareto_records(summary), charts.PADDED, charts.PADDED))]


def _pareto_records(summary: Summary) -> list[Record]:
    """The timed points as marks, without oracles, which are never worth deploying."""
    leading = {id(point) for arm in COLORS for point in summary.front(arm)}
    found = []
    for point in summary.timed_points():
        if point.method not in ORACLES:
            state = "chosen" if point.chosen else "leading" if id(point) in leading else "beaten"
            look = {"series": point.arm, "method": method_name(point.method), "state": state}
            found.append(point_record(summary, point, x=point.relative_latency, y=point.quality, **look))
    counts = Counter(record["method"] for record in found)
    ordered = sorted(counts, key=lambda name: (name != "BiLD", name != "speculative", -counts[name], name))
    shown = ordered if len(ordered) <= _MOST_METHODS else ordered[: _MOST_METHODS - 1]
    named = [{**record, "method": record["method"] if record["method"] in shown else _OTHERS} for record in found]
    return sorted(named, key=lambda record: [*shown, _OTHERS].index(record["method"]))


def _pareto_marks(summary: Summary, records: Sequence[Record], x_scale: alt.Scale, y_scale: alt.Scale) -> list[alt.Chart]:
    """Frontiers and points over the latency and the quality of vanilla large."""
    x = alt.X("x:Q", title=_WITH_SPEEDUP, scale=x_scale, axis=LATENCY_TICKS)
    y = alt.Y("y:Q", title=_points(summary), scale=y_scale)
    methods = dict.fromkeys(record["method"] for record in records)
    shapes = charts.shape([Series(name, INK, SHAPES[place]) for place, name in enumerate(methods)], "method")
    points = alt.Chart(charts.data(records))
    points = points.encode(x=x, y=y, color=charts.color(ARM_SERIES), tooltip=["point:Q"], shape=shapes)
    steps = alt.Chart(charts.data(_steps(summary))).mark_line(interpolate="step-after", strokeWidth=1.6, clip=True)
    states = {record["state"] for record in records}
    return [
        alt.Chart(charts.data([{}])).mark_rule(color=charts.REFERENCE).encode(x=alt.datum(1.0)),
        steps.encode(x=x, y=y, color=charts.color(ARM_SERIES), strokeDash=charts.dash(ARM_SERIES)),
        *(
            points.transform_filter(alt.datum.state == state).properties(mark=look)
            for state, look in _STATES.items()
            if state in states
        ),
    ]


def _steps(summary: Summary) -> Iterable[Record]:
    """The best quality within each latency: level from a point of the frontier to the next one, and on to vanilla's latency."""
    for arm in COLORS:
        best = [(point.relative_latency, point.quality) for point in summary.front(arm)]
        best += [(max(1.0, best[-1][0]), best[-1][1])] if best else []
        yield from ({"x": x, "y": y, "series": arm} for x, y in best)


def _limits(summary: Summary, vanilla: float, lowest: float) -> list[alt.Chart]:
    """Level lines of vanilla and of the margins under it, as far as they lie above the lowest shown."""
    lines = charts.reference_line(vanilla, "vanilla", x=1.0)
    for margin in map(summary.margins.of, CHOICES):
        if vanilla - margin > lowest:
            lines += charts.reference_line(vanilla - margin, f"− {margin:g}", x=1.0, dotted=True)
    return lines


def _close_domains(summary: Summary, named: Sequence[Record]) -> tuple[Domain, Domain]:
    """Latencies and qualities that the close view shows."""
    vanilla = summary.vanilla.large.quality
    near = [point for point in summary.timed_points() if point.quality >= vanilla - _CLOSE]
    latencies = [1.0, *(point.relative_latency for point in near if point.relative_latency < _SLOWEST)]
    left, right = min(latencies), max(*latencies, *(record["x"] for record in named), 1.0)
    room = max(0.08 * (right - left), 0.03)
    top = max([vanilla, *(point.quality for point in near)]) + 0.2 * _CLOSE
    # The names of the limits stand right of vanilla's latency.
    return (left - room, max(right + room, 1 + 3 * room)), (vanilla - _CLOSE, top)


def _on_test(summary: Summary, points: Sequence[Lettered]) -> Panel | None:
    """Each lettered point on test, joined to where validation saw it; None where none was measured on test."""
    records = [record for one in points if (record := one.test_record()) is not None]
    if not records:
        return None
    across = _padded([1.0, *(record[name] for record in records for name in ("left", "right", "from_x"))], 0.12)
    # The names of the limits stand right of vanilla's latency.
    across = across[0], across[1] + 0.12 * (across[1] - across[0])
    upwards = _padded([0.0, *(record[name] for record in records for name in ("low", "high", "from_y"))], 0.08)
    x_scale, y_scale = (alt.Scale(domain=list(domain), nice=False) for domain in (across, upwards))
    x = alt.X("x:Q", title=_WITH_SPEEDUP, scale=x_scale, axis=LATENCY_TICKS)
    y = alt.Y("y:Q", title=f"{metric_name(summary.metric)} − vanilla large (points)", scale=y_scale)
    base = alt.Chart(charts.data(records)).encode(x=x, y=y, color=charts.color(ARM_SERIES))
    seen = alt.Chart(charts.data({**one, "x": one["from_x"], "y": one["from_y"]} for one in records))
    seen = seen.encode(x=x, y=y, color=charts.color(ARM_SERIES), tooltip=["point:Q"])
    rules = base.mark_rule(strokeWidth=1.3, opacity=0.45)
    return alt.layer(
        alt.Chart(charts.data([{}])).mark_rule(color=charts.REFERENCE).encode(x=alt.datum(1.0)),
        rules.encode(x2="from_x:Q", y2="from_y:Q", strokeDash=alt.value([2, 2])),
        rules.encode(y="low:Q", y2="high:Q"),
        rules.encode(x="left:Q", x2="right:Q"),
        seen.mark_point(filled=False, size=45, opacity=0.8),
        base.encode(tooltip=["point:Q"]).mark_point(filled=True, shape="diamond", size=130, opacity=1),
        *_limits(summary, 0.0, upwards[0]),
        *charts.names(records, across, upwards, _SIDES, [{"x": one["from_x"], "y": one["from_y"]} for one in records]),
        title=alt.TitleParams("on test", subtitle=[one.test_key for one in points]),
    )


def _padded(values: Sequence[float], share: float) -> Domain:
    """From the least to the largest value, with this share of their span on either side."""
    room = share * (max(values) - min(values)) or 0.1
    return min(values) - room, max(values) + room


# Curves: points of one name are one curve, whose points move along it by one setting.
Across = Callable[[OperatingPoint], float | None]
"""The x of a point; None where it has none."""
Name = Callable[[OperatingPoint], str]
"""The curve of a point in the legend; empty for a point that is not drawn."""
_ALPHA = ("deferral_cost", "lossiness")
"""Settings that move a point along its curve: α of cascades and of lossy acceptance."""
_CASCADES = ("speculative_cascade", "token_cascade", "sequence_cascade", "speculative_lossy")
_SPECULATIVE = ("speculative_cascade", "speculative_lossy")
_DEFERRING = ("token_cascade", "diff_oracle")
"""The cascades of Figure 1, where each token is one model's."""
_UNVERIFIED = ("token_cascade", "sequence_cascade")
"""Methods that keep all their drafts, or draft nothing: no token of theirs is verified."""
_AXES: dict[str, Across] = {LATENCY: lambda point: point.relative_latency, CALLS: lambda point: point.large_calls_per_token}


def _points(summary: Summary) -> str:
    return f"{metric_name(summary.metric)} (points)"


def _vanilla(summary: Summary) -> list[alt.Chart]:
    return charts.reference_line(summary.vanilla.large.quality, "vanilla large")


def _curve_panels(
    summary: Summary,
    points: Sequence[OperatingPoint],
    axes: dict[str, Across],
    title: str,
    further: Iterable[alt.Chart],
    names: Sequence[str],
    name_of: Name | None = None,
) -> Iterator[Panel]:
    """For each axis, by its title, the curves of these points; an axis on which no point has a place is left out.

    Args:
        summary: The task's results.
        points: Those to draw; others than `names` are left out.
        axes: The x of a point by the title of the axis.
        title: Of each panel.
        further: Charts that each panel has too.
        names: The legend.
        name_of: Names the curve of a point; `curve_name` unless given.
    """
    name_of = name_of or curve_name
    series = [Series(name, PALETTE[place], SHAPES[place]) for place, name in enumerate(names)]
    rows = {id(point): index for index, point in enumerate(summary.points)}
    in_table = all(id(point) in rows for point in points)
    for axis, across in axes.items():
        records = [
            {"x": round(x, 5), "y": point.quality, "series": name, "curve": along_curve(point)}
            | ({"point": rows[id(point)]} if in_table else {"text": _point_text(summary, point)})
            for point in points
            if (name := name_of(point)) in names and (x := across(point)) is not None
        ]
        if records:
            tooltip = "point:Q" if in_table else "text:N"
            yield alt.layer(*charts.curves(records, series, axis, _points(summary), tooltip), *further, title=title)


def _point_text(summary: Summary, point: OperatingPoint) -> str:
    """The numbers of a point that has no row in the page's table."""
    measured = f"{field_text(point, 'quality_difference')} from vanilla), {field_text(point, 'speedup')}"
    quality = f"{metric_name(summary.metric)} {point.quality:.2f} ({measured}"
    return f"{curve_name(point)}, {settings_text(point.settings)}: {quality}"


def curve_name(point: OperatingPoint) -> str:
    """A point's entry in the legend: its method, its rule, how it takes β, and its drafter unless that is the small model."""
    settings = point.settings
    variant = settings.get("rule") or settings.get("confidence")
    name = method_name(point.method) + (f" [{variant}]" if variant else "")
    if "tuned" in settings:
        name += ", β tuned" if settings["tuned"] else ", β = 1"
    drafter = settings.get("drafter", "small")
    return name if drafter == "small" else f"{name}, {drafter}"


def along_curve(point: OperatingPoint) -> str:
    """The curve of a point, along which everything but α stays the same; a method without α has one curve."""
    fixed = {name: value for name, value in point.settings.items() if name not in _ALPHA}
    return curve_name(point) + (json.dumps(fixed, sort_keys=True) if len(fixed) < len(point.settings) else "")


def _is_speculative(point: OperatingPoint) -> bool:
    """Speculative decoding by the small model is drawn with the cascades: each of them starts from it."""
    return point.method == "speculative" and point.settings.get("drafter", "small") == "small"


def _compared(point: OperatingPoint) -> bool:
    return point.method in _SPECULATIVE or _is_speculative(point)


def _of_arm(points: Iterable[OperatingPoint], arm: str) -> list[OperatingPoint]:
    return [point for point in points if point.arm == arm]


@figure("How little of the large model is enough", "Kim et al. 2023, Figure 2")
def oracle(summary: Summary, _: Sweeps) -> list[Panel]:
    """Both models run at every step, and the large model replaces a token of the small one that it finds too unlikely. This
    costs more than vanilla large and shows only what is possible: how few replacements give the large model's quality. Bands
    are 95 % intervals of the quality."""
    records = [
        point_record(summary, point, x=100 * share, y=point.quality, series=point.arm)
        | charts.bounds(point.quality_interval, point.quality)
        for point in summary.points
        if point.method == "bild_oracle" and (share := ratio(point.counts.rollbacks, point.counts.tokens)) is not None
    ]
    band = alt.Chart(charts.data(records)).mark_area(opacity=0.12).encode(x="x:Q", y="low:Q", y2="high:Q", color="series:N")
    lines = charts.curves(records, ARM_SERIES, "tokens replaced by the large model (%)", _points(summary))
    return [alt.layer(band, *lines, *_vanilla(summary))] if records else []


@figure("What each policy is worth", "Kim et al. 2023, Figure 5")
def ablations(summary: Summary, _: Sweeps) -> list[Panel]:
    """BiLD against itself with one policy off: a fixed window instead of falling back when unsure, or no rollback. Lines join
    the settings that no other setting of the same kind beats; further left is faster."""
    policies = (
        Series("BiLD", PALETTE[0]),
        Series("without fallback", PALETTE[1], "square", charts.DASHED),
        Series("without rollback", INK, "triangle-up", charts.DOTTED),
    )
    panels: list[Panel] = []
    for arm in COLORS:
        kinds: dict[str, list[TimedPoint]] = {policy.name: [] for policy in policies}
        for point in summary.timed_points(arm, "bild"):
            thresholds = [point.settings.get(f"{name}_threshold") for name in ("fallback", "rollback")]
            if None not in thresholds:
                fallback, rollback = (float(value or 0.0) for value in thresholds)
                place = 1 if fallback == 0 else 2 if math.isinf(rollback) else 0
                kinds[policies[place].name].append(point)
        if sum(bool(points) for points in kinds.values()) > 1:
            records = [
                point_record(summary, points[index], x=points[index].relative_latency, y=points[index].quality, series=kind)
                for kind, points in kinds.items()
                for index in frontier([TradeOff(point.quality, point.speedup) for point in points])
            ]
            drawn = [policy for policy in policies if kinds[policy.name]]
            panels.append(alt.layer(*charts.curves(records, drawn, LATENCY, _points(summary)), *_vanilla(summary), title=arm))
    return panels


@figure("Cascades: quality against deferrals", "Narasimhan et al. 2024, Figure 1")
def deferrals(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one deferral rule as its α moves from the small model alone to the large model alone. The oracle runs both
    models at every step, so it shows only what its rule could do. Speculative decoding has a mark for each window: it defers
    once a draft and writes several tokens by it."""
    points = [point for point in summary.points if point.method in _DEFERRING or _is_speculative(point)]
    if not any(point.method in _DEFERRING for point in points):
        return []

    def deferred(point: OperatingPoint) -> float | None:
        # The oracle calls the large model at every token; it defers where it takes the large model's.
        counts = point.counts
        return ratio(counts.rollbacks if point.method == "diff_oracle" else counts.large_calls, counts.tokens)

    panels: list[Panel] = []
    for arm, small in summary.vanilla.small_models():
        ends: list[Record] = [
            {"x": 0.0, "y": small.quality, "text": "small model"},
            {"x": 1.0, "y": summary.vanilla.large.quality, "text": "vanilla large"},
        ]
        base = alt.Chart(charts.data(ends)).encode(x="x:Q", y="y:Q")
        square = base.mark_point(filled=True, shape="square", size=80, color=INK, opacity=1).encode(tooltip=["text:N"])
        name = base.encode(text="text:N").transform_filter("datum.x < 0.5")
        further = [*_vanilla(summary), square, name.mark_text(align="left", dx=8, dy=12, fontSize=11, color=INK)]
        own = _of_arm(points, arm)
        names = list(dict.fromkeys(map(curve_name, own)))
        panels += _curve_panels(summary, own, {"deferrals to the large model for each token": deferred}, arm, further, names)
    return panels


@figure("Cascades: quality against the large model's share", "Narasimhan et al. 2024, Figures 3, 10 and 11")
def cascades(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one deferral rule as its α moves. Further left the large model is asked, or rejects, less often; higher is
    better. The rejected share is of the drafted tokens that the large model verified."""
    points = [point for point in summary.points if point.method in _CASCADES or _is_speculative(point)]
    if not any(point.method in _CASCADES for point in points):
        return []

    def rejected(point: OperatingPoint) -> float | None:
        # Tokens after a rejection do not count.
        verified = point.counts.accepted + point.counts.rollbacks
        return 100.0 * point.counts.rollbacks / verified if verified and point.method not in _UNVERIFIED else None

    axes: dict[str, Across] = {"drafted tokens rejected (%)": rejected, CALLS: _AXES[CALLS]}
    names, panels = list(dict.fromkeys(map(curve_name, points))), list[Panel]()
    # A legend of more than eight entries is hard to read: further curves have panels of their own.
    for first in range(0, len(names), MOST_SERIES):
        shown = names[first : first + MOST_SERIES]
        for arm in COLORS:
            panels += _curve_panels(summary, _of_arm(points, arm), axes, arm, _vanilla(summary), shown)
    return panels


@figure("Cascades by block size", "Narasimhan et al. 2024, Figure 7")
def block_sizes(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one rule as its α moves, each panel one block size. Only timed points are drawn, of the first eight rules
    of the grid; further left is faster."""
    lengths = sorted({int(p.settings["draft_length"] or 0) for p in summary.timed_points() if p.method in _SPECULATIVE})
    shown = sorted(filter(_compared, summary.timed_points()), key=_is_speculative)
    names = list(dict.fromkeys(map(curve_name, shown)))[:MOST_SERIES]
    return [
        panel
        for arm in COLORS
        for length in lengths
        if len(lengths) > 1
        for panel in _curve_panels(
            summary,
            [point for point in _of_arm(shown, arm) if point.settings["draft_length"] == length],
            {LATENCY: _AXES[LATENCY]},
            f"{arm}, γ {length}",
            _vanilla(summary),
            names,
        )
    ]


@figure("Cascades by temperature", "Narasimhan et al. 2024, Figure 6")
def temperatures(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one rule as its α moves, each pair of panels one temperature, with the level of vanilla at that
    temperature. Against latency only timed points are drawn, against calls all points, from counts. The first eight rules of
    the grid are drawn."""
    swept = [one for one in (*_own_temperatures(summary), *summary.temperatures) if any(map(_compared, one.points))]
    if len({one.temperature for one in swept}) < 2:
        return []
    names = list(dict.fromkeys(curve_name(point) for one in swept for point in one.points if _compared(point)))[:MOST_SERIES]
    return [
        panel
        for arm in COLORS
        for one in sorted(swept, key=lambda one: one.temperature)
        if one.arm == arm
        for panel in _curve_panels(
            summary,
            one.points,
            _AXES,
            f"{arm}, T = {one.temperature:g}",
            charts.reference_line(one.vanilla_quality, "vanilla large"),
            names,
        )
    ]


def _own_temperatures(summary: Summary) -> Iterator[TemperaturePoints]:
    """The points of each sweep at its own temperature."""
    for arm in COLORS:
        points = [point for point in summary.points if point.arm == arm]
        if points:
            quality = points[0].quality - (points[0].quality_difference or 0.0)
            yield TemperaturePoints(arm=arm, temperature=temperature(points[0]), vanilla_quality=quality, points=points)


@figure("BiLD and BiLD*", "Narasimhan et al. 2024, Figure 8, top")
def bild_variants(summary: Summary, _: Sweeps) -> list[Panel]:
    """BiLD* is the cascade that samples speculatively from the distribution that BiLD is taken to mimic; BiLD falls back and
    rolls back. Each curve is one setting as its rollback threshold or α moves; of BiLD the settings with the most points are
    drawn. Against latency only timed points are drawn, against calls all points, from counts."""

    def name_of(point: OperatingPoint) -> str:
        settings = point.settings
        if settings.get("drafter", "small") != "small":
            return ""
        if (point.method, settings.get("rule")) == ("speculative_cascade", "bild"):
            return f"BiLD* γ {settings['draft_length']}"
        variant = settings.get("large_first") or settings.get("keep_agreed")
        if point.method != "bild" or variant or not settings["fallback_threshold"]:
            return ""
        fixed: Settings = {name: settings[name] for name in ("fallback_threshold", "max_draft") if name in settings}
        return f"BiLD {settings_text(fixed)}"

    counts = Counter(name for name in map(name_of, summary.points) if name)
    stars = [name for name in counts if name.startswith("BiLD*")]
    # Three points make a curve.
    most = sorted((name for name in counts if name not in stars and counts[name] >= 3), key=lambda name: -counts[name])
    shown = sorted(most[: MOST_SERIES - len(stars)])
    return _variant_panels(summary, [*stars, *shown], _AXES, name_of) if stars and shown else []


@figure("Lossy acceptance, β = 1 and tuned", "Narasimhan et al. 2024, Figure 8, bottom")
def lossy_variants(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is lossy acceptance of drawn tokens as its α moves, with β = 1 in the residual or with the β that its equation
    gives. As in the paper the share of calls is shown: to compute β takes time of its own."""

    def name_of(point: OperatingPoint) -> str:
        drawn = point.method == "speculative_lossy" and point.sampling and not point.sampling.greedy
        return curve_name(point) if drawn else ""

    points = list(filter(name_of, summary.points))
    if len({bool(point.settings.get("tuned")) for point in points}) < 2:
        return []
    return _variant_panels(summary, sorted(set(map(name_of, points)))[:MOST_SERIES], {CALLS: _AXES[CALLS]}, name_of)


def _variant_panels(summary: Summary, names: Sequence[str], axes: dict[str, Across], name_of: Name) -> list[Panel]:
    return [
        panel
        for arm in COLORS
        for panel in _curve_panels(summary, _of_arm(summary.points, arm), axes, arm, _vanilla(summary), names, name_of)
    ]
