"""The figures that set quality against what it costs: the Pareto figure of a task, BiLD's studies, and the cascades' curves.

Shares and calls come from counts, which are exact for replayed points too; latencies and speed-ups are those of timed points.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import altair as alt

from tasks.decoding.registry import ORACLES
from tasks.evaluation.report import charts, formatting
from tasks.evaluation.report.charts import ARM_SERIES, COLORS, INK, MOST_SERIES, Panel, Record, figure, point_record
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.rows import OperatingPoint, TimedMeasurements, TimedPoint, ratio
from tasks.evaluation.results.summary import Summary, Sweeps, TemperaturePoints, chosen, fastest, temperature
from tasks.evaluation.selection import TradeOff, frontier
from tasks.evaluation.settings import CHOICES

CALLS = "large calls for each token"
LATENCY = "latency relative to vanilla large (= 1)"

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
_SIDES = {"aligned": (-11, -11), "unaligned": (11, 11)}
"""Where a letter stands, pixels right and down of its mark: nothing that beats an aligned point lies above and left of it."""
_LATENCY_TICKS = alt.Axis(
    labelExpr="datum.value > 0 ? [format(datum.value, '.2~f'), format(1 / datum.value, '.2~f') + '×'] : '0'",
    labelSeparation=10,
)
"""Relative latencies with the speed-up under each."""


@figure(
    f"{{task}}: {{metric}} against latency, within {_CLOSE:g} points of vanilla large", "Kim et al. 2023, Figure 4", height=360
)
def pareto(summary: Summary, _: Sweeps) -> list[Panel]:
    """Further left is faster, higher is better; steps are the best of all methods. Pale: beaten by another point of the same
    arm. Dark rim: chosen on validation. Bars of the lettered points are 95 % intervals: across of the speed-up, upwards of the
    difference from vanilla large. Diamonds: on test, as differences from vanilla there; joined to the ring where validation
    saw the point."""
    named, tested, keys, test_keys = _lettered(summary)
    vanilla = summary.vanilla.large.quality
    near = [point for point in summary.timed_points() if point.quality >= vanilla - _CLOSE]
    latencies = [1.0, *(point.relative_latency for point in near if point.relative_latency < _SLOWEST)]
    top = max([vanilla, *(point.quality for point in near)]) + 0.2 * _CLOSE
    x = _latency(_padded([*latencies, *(record["x"] for record in named)], 0.08))
    y = alt.Y("y:Q", title=_points(summary), scale=alt.Scale(domain=[vanilla - _CLOSE, top], nice=False))
    title = alt.TitleParams(f"on {summary.split}, where settings are chosen", subtitle=keys)
    panels = [_lettered_panel(summary, named, _pareto_marks(summary, x, y), x, y, vanilla).properties(title=title)]
    if tested:
        x = _latency(_padded([1.0, *(one[name] for one in tested for name in ("left", "right", "from_x"))], 0.12))
        low, high = _padded([0.0, *(one[name] for one in tested for name in ("low", "high", "from_y"))], 0.08)
        metric, scale = formatting.metric_name(summary.metric), alt.Scale(domain=[low, high], nice=False)
        y = alt.Y("y:Q", title=f"{metric} − vanilla large (points)", scale=scale)
        base = charts.chart(tested, x=x, y=y, color=charts.color(ARM_SERIES), tooltip=["point:Q"])
        joined = base.mark_rule(strokeWidth=1.3, opacity=0.45, strokeDash=[2, 2]).encode(x2="from_x:Q", y2="from_y:Q")
        rings = base.mark_point(filled=False, size=45, opacity=0.8).encode(x="from_x:Q", y="from_y:Q")
        diamonds = base.mark_point(filled=True, shape="diamond", size=130, opacity=1)
        panel = _lettered_panel(summary, tested, [joined, rings, diamonds], x, y, 0.0)
        panels.append(panel.properties(title=alt.TitleParams("on test", subtitle=test_keys)))
    return panels


def _lettered(summary: Summary) -> tuple[list[Record], list[Record], list[str], list[str]]:
    """For each arm and kind of choice the fastest chosen point of all methods, and the recommended point, each with a letter:
    as records on validation and on test, and what each panel says of them."""
    purposes: dict[int, list[str]] = {}
    for arm, (choice, name) in itertools.product(COLORS, formatting.CHOICE_NAMES.items()):
        if point := fastest(chosen(summary, choice, arm)):
            purposes.setdefault(summary.index_of(point), []).append(name)
    if summary.recommended is not None:
        purposes.setdefault(summary.index_of(summary.recommended), []).append("recommended")
    named, tested, keys, test_keys = list[Record](), list[Record](), list[str](), list[str]()
    for letter, (index, words) in zip("ABCDE", purposes.items(), strict=False):
        point, test = summary.timed_point(index), summary.timed_point(index).test
        red = formatting.is_contradicted(formatting.marks_of_point(summary, index))
        look = {"series": point.arm, "tone": charts.CONTRADICTED if red else COLORS[point.arm], "point": index}
        vanilla = summary.vanilla.large.quality
        named.append({**_with_intervals(point, point.quality - vanilla, vanilla), **look, "name": letter})
        what = f"{point.speedup:.2f}× {formatting.method_name(point.method)}, {point.arm}: {', '.join(words)}"
        keys.append(f"{letter}  {what}{' (contradicted on test)' if red else ''}")
        result = f"{test.speedup:.2f}×, {formatting.difference_text(test)}" if test else "not measured on test"
        test_keys.append(f"{letter}  {result}{', contradicted' if red and test else ''}")
        if test is not None and test.quality_difference is not None:
            before = {"from_x": point.relative_latency, "from_y": point.quality_difference}
            look["name"] = f"{letter} contradicted" if red else letter
            tested.append({**_with_intervals(test, test.quality_difference), **before, **look})
    return named, tested, keys, test_keys


def _lettered_panel(
    summary: Summary, records: Sequence[Record], marks: Sequence[alt.Chart], x: alt.X, y: alt.Y, level: float
) -> Panel:
    """Marks over the intervals of the lettered points, with their letters, vanilla's `level` and that of each margin."""
    bars = charts.chart(records, x=x, y=y, color=charts.color(ARM_SERIES)).mark_rule(strokeWidth=1.3, opacity=0.45, clip=True)
    layers = [bars.encode(y="low:Q", y2="high:Q"), bars.encode(x="left:Q", x2="right:Q")] if records else []
    layers += [_vanilla_latency(), *marks, *charts.reference_line(level, "vanilla", x=1.0)]
    for margin in map(summary.margins.of, CHOICES):
        layers += charts.reference_line(level - margin, f"− {margin:g}", x=1.0, dotted=True)
    for arm, (dx, dy) in _SIDES.items():
        layers += charts.names([record for record in records if record["series"] == arm], dx, dy)
    return alt.layer(*layers)


@figure("All points and the models alone", "Kim et al. 2023, Figure 4", height=360)
def everything(summary: Summary, _: Sweeps) -> list[Panel]:
    """Every timed point on validation, and the models alone, whose bars are 95 % intervals of their quality. Further left is
    faster, higher is better; steps are the best of all methods."""
    large = summary.vanilla.large
    models = [{"x": 1.0, "y": large.quality, **_bounds(large), "text": "vanilla large", "tone": INK, "form": "square"}]
    for arm, small in summary.vanilla.small_models():
        look = {"text": f"small {small.speedup:.1f}×", "tone": COLORS[arm], "form": "triangle-down"}
        models.append({"x": small.relative_latency, "y": small.quality, **_bounds(small), **look})
    base = charts.chart(models, color=alt.Color("tone:N", scale=None), tooltip=["text:N"])
    alone = [
        *_vanilla(summary),
        base.mark_rule(strokeWidth=1.2, opacity=0.5).encode(y="low:Q", y2="high:Q"),
        base.mark_point(filled=True, size=80, opacity=1).encode(shape=alt.Shape("form:N", scale=None)),
        base.mark_text(align="left", dx=5, dy=15, fontSize=11).encode(text="text:N").transform_filter("datum.x != 1"),
    ]
    y = alt.Y("y:Q", title=_points(summary), scale=charts.PADDED)
    return [alt.layer(*alone, _vanilla_latency(), *_pareto_marks(summary, _latency(None), y))]


def _with_intervals(measured: TimedMeasurements, difference: float, level: float = 0.0) -> Record:
    """Latency and quality of a point with their intervals, the quality as its difference from vanilla over a level."""
    fast, slow = measured.speedup_interval or (measured.speedup, measured.speedup)
    low, high = measured.quality_difference_interval or (difference, difference)
    place = {"x": measured.relative_latency, "left": 1 / slow, "right": 1 / fast}
    return {**place, "y": level + difference, "low": level + low, "high": level + high}


def _bounds(measured: TimedMeasurements | OperatingPoint) -> Record:
    low, high = measured.quality_interval or (measured.quality, measured.quality)
    return {"low": low, "high": high}


def _padded(values: Sequence[float], share: float) -> tuple[float, float]:
    """From the least to the largest value with room on either side, twice as much on the right for the names of the limits."""
    room = share * (max(values) - min(values)) or 0.1
    return min(values) - room, max(values) + 2 * room


def _latency(domain: tuple[float, float] | None) -> alt.X:
    """The axis of latency; without a domain it holds all marks."""
    scale = charts.PADDED if domain is None else alt.Scale(domain=list(domain), nice=False)
    return alt.X("x:Q", title="latency relative to vanilla large, and speed-up (×)", scale=scale, axis=_LATENCY_TICKS)


def _vanilla_latency() -> alt.Chart:
    line: alt.Chart = charts.chart([{}], x=alt.datum(1.0), y=alt.Undefined).mark_rule(color=charts.REFERENCE)
    return line


def _pareto_marks(summary: Summary, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Frontiers and timed points over the latency and the quality of vanilla large, without oracles, which are never worth
    deploying."""
    fronts = {arm: summary.front(arm) for arm in COLORS}
    leading = {id(point) for front in fronts.values() for point in front}
    found = [point for point in summary.timed_points() if point.method not in ORACLES]
    counts = Counter(formatting.method_name(point.method) for point in found)
    shown = sorted(counts, key=lambda name: (name != "BiLD", name != "speculative", -counts[name], name))
    if len(shown) > _MOST_METHODS:
        shown = [*shown[: _MOST_METHODS - 1], _OTHERS]
    records = []
    for point in found:
        name = formatting.method_name(point.method)
        look = {"series": point.arm, "method": name if name in shown else _OTHERS}
        state = "chosen" if point.chosen else "leading" if id(point) in leading else "beaten"
        records.append(point_record(summary, point, x=point.relative_latency, y=point.quality, **look, state=state))
    # Level from a point of the frontier to the next one, and on to vanilla's latency.
    steps: list[Record] = []
    for arm, front in fronts.items():
        corners = [(point.relative_latency, point.quality) for point in front]
        corners += [(max(1.0, corners[-1][0]), corners[-1][1])] if corners else []
        steps += ({"x": across, "y": quality, "series": arm} for across, quality in corners)
    grey = alt.Legend(symbolFillColor=charts.REFERENCE, symbolStrokeColor=charts.REFERENCE)
    shapes = charts.shape(charts.palette(shown), "method", legend=grey)
    points = charts.chart(records, x=x, y=y, color=charts.color(ARM_SERIES), tooltip=["point:Q"], shape=shapes)
    lines = charts.chart(steps, x=x, y=y, color=charts.color(ARM_SERIES), strokeDash=charts.dash(ARM_SERIES))
    states = {record["state"] for record in records}
    return [
        lines.mark_line(interpolate="step-after", strokeWidth=1.6, clip=True),
        *(
            points.transform_filter(alt.datum.state == name).properties(mark=_STATES[name])
            for name in _STATES
            if name in states
        ),
    ]


# Curves: points of one name are one curve, whose points move along it by one setting.
Across = Callable[[OperatingPoint], float | None]
"""The x of a point; None where it has none."""
Name = Callable[[OperatingPoint], str]
"""The curve of a point in the legend; empty for a point that is not drawn."""
Group = tuple[str, Iterable[OperatingPoint], Sequence[alt.Chart]]
"""The title of a panel, its points, and what else is drawn there."""
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
    drafter = settings.get("drafter", "small")
    return name if drafter == "small" else f"{name}, {drafter}"


def _along(point: OperatingPoint) -> str:
    """The curve of a point, along which everything but α stays the same; a method without α has one curve."""
    fixed = {name: value for name, value in point.settings.items() if name not in _ALPHA}
    return curve_name(point) + (json.dumps(fixed, sort_keys=True) if len(fixed) < len(point.settings) else "")


def _curve_panels(
    summary: Summary, groups: Iterable[Group], axes: dict[str, Across], names: Sequence[str], name_of: Name = curve_name
) -> Iterator[Panel]:
    """For each group and axis, by its title, the curves of the points with these `names`; an axis on which no point has a place
    is left out. A point that has no row in the page's table brings its numbers as text."""
    rows = {id(point): {"point": index} for index, point in enumerate(summary.points)}
    for title, points, further in groups:
        for axis, across in axes.items():
            records = [
                {"x": round(x, 5), "y": point.quality, "series": name, "curve": _along(point)}
                | rows.get(id(point), {"text": _point_text(summary, point)})
                for point in points
                if (name := name_of(point)) in names and (x := across(point)) is not None
            ]
            if records:
                curves = charts.curves(records, charts.palette(names), axis, _points(summary))
                yield alt.layer(*curves, *further, title=title)


def _point_text(summary: Summary, point: OperatingPoint) -> str:
    difference, speed = (formatting.field_text(point, name) for name in ("quality_difference", "speedup"))
    numbers = f"{formatting.metric_name(summary.metric)} {point.quality:.2f} ({difference} from vanilla), {speed}"
    return f"{curve_name(point)}, {formatting.settings_text(point.settings)}: {numbers}"


def _by_arm(summary: Summary, points: Sequence[OperatingPoint]) -> Iterator[Group]:
    return ((arm, [point for point in points if point.arm == arm], _vanilla(summary)) for arm in COLORS)


def _is_speculative(point: OperatingPoint) -> bool:
    """Speculative decoding by the small model is drawn with the cascades: each of them starts from it."""
    return point.method == "speculative" and point.settings.get("drafter", "small") == "small"


def _compared(points: Iterable[OperatingPoint], methods: Sequence[str]) -> list[OperatingPoint]:
    """The points of these methods and, where there are any, those of speculative decoding."""
    found = [point for point in points if point.method in methods or _is_speculative(point)]
    return [] if all(map(_is_speculative, found)) else found


def _names(points: Iterable[OperatingPoint]) -> list[str]:
    return list(dict.fromkeys(map(curve_name, points)))


@figure("How little of the large model is enough", "Kim et al. 2023, Figure 2")
def oracle(summary: Summary, _: Sweeps) -> list[Panel]:
    """Both models run at every step, and the large model replaces a token of the small one that it finds too unlikely. This
    costs more than vanilla large and shows only what is possible: how few replacements give the large model's quality. Bands
    are 95 % intervals of the quality."""
    records = [
        point_record(summary, point, x=100 * share, y=point.quality, series=point.arm, **_bounds(point))
        for point in summary.points
        if point.method == "bild_oracle" and (share := ratio(point.counts.rollbacks, point.counts.tokens)) is not None
    ]
    if not records:
        return []
    band = charts.chart(records, y="low:Q", y2="high:Q", color="series:N").mark_area(opacity=0.12)
    lines = charts.curves(records, ARM_SERIES, "tokens replaced by the large model (%)", _points(summary))
    return [alt.layer(band, *lines, *_vanilla(summary))]


@figure("What each policy is worth", "Kim et al. 2023, Figure 5")
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
        kinds: dict[str, list[TimedPoint]] = {}
        for point in summary.timed_points(arm, "bild"):
            kinds.setdefault(policy(point), []).append(point)
        kinds.pop("", None)
        if len(kinds) > 1:
            best = {kind: frontier([TradeOff(point.quality, point.speedup) for point in own]) for kind, own in kinds.items()}
            groups.append((arm, [kinds[kind][index] for kind, found in best.items() for index in found], _vanilla(summary)))
            drawn |= kinds.keys()
    return list(_curve_panels(summary, groups, {LATENCY: _AXES[LATENCY]}, sorted(drawn), policy))


@figure("Cascades: quality against deferrals", "Narasimhan et al. 2024, Figure 1")
def deferrals(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one deferral rule as its α moves from the small model alone to the large model alone. The oracle runs both
    models at every step, so it shows only what its rule could do. Speculative decoding has a mark for each window: it defers
    once a draft and writes several tokens by it."""

    def deferred(point: OperatingPoint) -> float | None:
        # The oracle calls the large model at every token; it defers where it takes the large model's.
        counts = point.counts
        return ratio(counts.rollbacks if point.method == "diff_oracle" else counts.large_calls, counts.tokens)

    points, panels = _compared(summary.points, _DEFERRING), list[Panel]()
    for arm, small in summary.vanilla.small_models():
        large = {"x": 1.0, "y": summary.vanilla.large.quality, "text": "vanilla large"}
        ends = charts.chart([{"x": 0.0, "y": small.quality, "text": "small model"}, large])
        squares = ends.mark_point(filled=True, shape="square", size=80, color=INK, opacity=1).encode(tooltip=["text:N"])
        name = ends.encode(text="text:N").transform_filter("datum.x < 0.5")
        name = name.mark_text(align="left", dx=8, dy=12, fontSize=11, color=INK)
        own = [point for point in points if point.arm == arm]
        group = arm, own, [*_vanilla(summary), squares, name]
        panels += _curve_panels(summary, [group], {"deferrals to the large model for each token": deferred}, _names(own))
    return panels


@figure("Cascades: quality against the large model's share", "Narasimhan et al. 2024, Figures 3, 10 and 11")
def cascades(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one deferral rule as its α moves. Further left the large model is asked, or rejects, less often; higher is
    better. The rejected share is of the drafted tokens that the large model verified."""

    def rejected(point: OperatingPoint) -> float | None:
        # Tokens after a rejection do not count.
        verified = point.counts.accepted + point.counts.rollbacks
        return 100.0 * point.counts.rollbacks / verified if verified and point.method not in _UNVERIFIED else None

    axes: dict[str, Across] = {"drafted tokens rejected (%)": rejected, CALLS: _AXES[CALLS]}
    points, panels = _compared(summary.points, _CASCADES), list[Panel]()
    # A legend of more than eight entries is hard to read: further curves have panels of their own.
    names = _names(points)
    for first in range(0, len(names), MOST_SERIES):
        panels += _curve_panels(summary, _by_arm(summary, points), axes, names[first : first + MOST_SERIES])
    return panels


@figure("Cascades by block size", "Narasimhan et al. 2024, Figure 7")
def block_sizes(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one rule as its α moves, each panel one block size. Only timed points are drawn, of the first eight rules
    of the grid; further left is faster."""
    points = sorted(_compared(summary.timed_points(), _SPECULATIVE), key=_is_speculative)
    lengths = sorted({int(point.settings["draft_length"] or 0) for point in points if not _is_speculative(point)})
    groups: list[Group] = [
        (f"{arm}, γ {length}", [point for point in own if point.settings["draft_length"] == length], vanilla)
        for arm, own, vanilla in _by_arm(summary, points)
        for length in lengths
    ]
    names = _names(points)[:MOST_SERIES]
    return list(_curve_panels(summary, groups, {LATENCY: _AXES[LATENCY]}, names)) if len(lengths) > 1 else []


@figure("Cascades by temperature", "Narasimhan et al. 2024, Figure 6")
def temperatures(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is one rule as its α moves, each pair of panels one temperature, with the level of vanilla at that
    temperature. Against latency only timed points are drawn, against calls all points, from counts. The first eight rules of
    the grid are drawn."""
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
    names = _names(point for _, points in compared for point in points)[:MOST_SERIES]
    several = len({one.temperature for one, points in compared if points}) > 1
    return list(_curve_panels(summary, groups, _AXES, names)) if several else []


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
        if point.method != "bild" or settings.get("large_first") or settings.get("keep_agreed"):
            return ""
        fixed: Settings = {name: settings[name] for name in ("fallback_threshold", "max_draft") if name in settings}
        return f"BiLD {formatting.settings_text(fixed)}" if settings["fallback_threshold"] else ""

    counts = Counter(name for name in map(name_of, summary.points) if name)
    stars = [name for name in counts if name.startswith("BiLD*")]
    # Three points make a curve.
    most = sorted((name for name in counts if name not in stars and counts[name] >= 3), key=lambda name: -counts[name])
    shown = sorted(most[: MOST_SERIES - len(stars)])
    if not (stars and shown):
        return []
    return list(_curve_panels(summary, _by_arm(summary, summary.points), _AXES, [*stars, *shown], name_of))


@figure("Lossy acceptance, β = 1 and tuned", "Narasimhan et al. 2024, Figure 8, bottom")
def lossy_variants(summary: Summary, _: Sweeps) -> list[Panel]:
    """Each curve is lossy acceptance of drawn tokens as its α moves, with β = 1 in the residual or with the β that its equation
    gives. As in the paper the share of calls is shown: to compute β takes time of its own."""
    lossy = [point for point in summary.points if point.method == "speculative_lossy"]
    points = [point for point in lossy if point.sampling and not point.sampling.greedy]
    if len({bool(point.settings.get("tuned")) for point in points}) < 2:
        return []
    names = sorted(_names(points))[:MOST_SERIES]
    return list(_curve_panels(summary, _by_arm(summary, points), {CALLS: _AXES[CALLS]}, names))
