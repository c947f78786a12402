"""The trade-off figures of Narasimhan et al., *Faster Cascades via Speculative Decoding*, 2024.

One curve for each deferral rule: quality against how often a cascade defers (Figure 1), against how often the large model
rejects (Figures 3, 10 and 11), against its calls, and against latency by block size (Figure 7).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

import altair as alt

from tasks.evaluation.measurements import ratio
from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.figure import Figure, Panel
from tasks.evaluation.report.figures.series import Record, Series
from tasks.evaluation.report.figures.theme import COLORS, INK, MOST_SERIES, PALETTE, SHAPES
from tasks.evaluation.report.formatting import method_name, metric_name
from tasks.evaluation.results.rows import OperatingPoint
from tasks.evaluation.results.summary import Summary

_CASCADES = ("speculative_cascade", "token_cascade", "sequence_cascade", "speculative_lossy")
_SPECULATIVE = ("speculative_cascade", "speculative_lossy")
_DEFERRING = ("token_cascade", "diff_oracle")
"""The cascades of Figure 1, where each token is one model's."""
_UNVERIFIED = ("token_cascade", "sequence_cascade")
"""Methods that keep all their drafts, or draft nothing: no token of theirs is verified."""
_ALPHA = ("deferral_cost", "lossiness")
"""Settings that move a point along its curve: α of these methods."""
CALLS = "large calls for each token"
LATENCY = "latency relative to vanilla large (= 1)"

Across = Callable[[OperatingPoint], float | None]
"""The x of a point; None where it has none."""


def deferral_curves(summary: Summary) -> Figure | None:
    """Quality against deferrals for each token (Figure 1); None where neither token cascades nor their oracle were swept."""
    points = [point for point in summary.points if point.method in _DEFERRING or _is_speculative(point)]
    if not any(point.method in _DEFERRING for point in points):
        return None
    large, panels = summary.vanilla.large.quality, list[Panel]()
    for arm, small in summary.vanilla.small_models():
        ends = [*parts.reference_line(large, "vanilla large"), *_models_alone(small.quality, large)]
        own = [point for point in points if point.arm == arm]
        panels += _panels(summary, own, {"deferrals to the large model for each token": _deferrals}, arm, ends)
    caption = (
        "Each curve is one deferral rule as its α moves from the small model alone to the large model alone. The oracle runs "
        "both models at every step, so it shows only what its rule could do. Speculative decoding has a mark for each window: "
        "it defers once a draft and writes several tokens by it."
    )
    title, after = "Cascades: quality against deferrals", "Narasimhan et al. 2024, Figure 1"
    return Figure(title, caption, panels, after) if panels else None


def _deferrals(point: OperatingPoint) -> float | None:
    """The oracle calls the large model at every token; it defers where it takes the large model's."""
    counts = point.counts
    return ratio(counts.rollbacks if point.method == "diff_oracle" else counts.large_calls, counts.tokens)


def _models_alone(small: float, large: float) -> list[alt.Chart]:
    """The qualities of the two models as the ends of all curves; a level line names the large one."""
    ends: list[Record] = [{"x": 0.0, "y": small, "text": "small model"}, {"x": 1.0, "y": large, "text": "vanilla large"}]
    base = alt.Chart(parts.data(ends)).encode(x="x:Q", y="y:Q")
    name = base.encode(text="text:N").transform_filter("datum.x < 0.5")
    return [
        base.mark_point(filled=True, shape="square", size=80, color=INK, opacity=1).encode(tooltip=["text:N"]),
        name.mark_text(align="left", dx=8, dy=12, fontSize=11, color=INK),
    ]


def cascade_curves(summary: Summary) -> Figure | None:
    """Quality against rejections and against the large model's calls; None where no cascade was swept."""
    points = [point for point in summary.points if point.method in _CASCADES or _is_speculative(point)]
    if not any(point.method in _CASCADES for point in points):
        return None
    shares: dict[str, Across] = {
        "drafted tokens rejected (%)": _rejected,
        CALLS: lambda point: point.large_calls_per_token,
    }
    vanilla = parts.reference_line(summary.vanilla.large.quality, "vanilla large")
    names, panels = list(dict.fromkeys(map(curve_name, points))), list[Panel]()
    # A legend of more than eight entries is hard to read: further curves have panels of their own.
    for first in range(0, len(names), MOST_SERIES):
        page = [point for point in points if curve_name(point) in names[first : first + MOST_SERIES]]
        for arm in COLORS:
            own = [point for point in page if point.arm == arm]
            panels += _panels(summary, own, shares, arm, vanilla, names[first : first + MOST_SERIES])
    caption = (
        "Each curve is one deferral rule as its α moves. Further left the large model is asked, or rejects, less often; higher "
        "is better. The rejected share is of the drafted tokens that the large model verified."
    )
    title, after = "Cascades: quality against the large model's share", "Narasimhan et al. 2024, Figures 3, 10 and 11"
    return Figure(title, caption, panels, after) if panels else None


def by_block_size(summary: Summary) -> Figure | None:
    """Quality against measured latency, a panel for each γ (Figure 7); None where cascades were timed at one γ alone."""
    timed = [point for point in summary.timed_points() if point.method in _SPECULATIVE]
    lengths = sorted({int(point.settings["draft_length"] or 0) for point in timed})
    if len(lengths) < 2:
        return None
    shown = [*timed, *filter(_is_speculative, summary.timed_points())]
    names = list(dict.fromkeys(map(curve_name, shown)))[:MOST_SERIES]
    vanilla, panels = parts.reference_line(summary.vanilla.large.quality, "vanilla large"), list[Panel]()
    for arm in COLORS:
        for length in lengths:
            own = [p for p in shown if (p.arm, p.settings["draft_length"]) == (arm, length) and curve_name(p) in names]
            panels += _panels(summary, own, {LATENCY: lambda p: p.relative_latency}, f"{arm}, γ {length}", vanilla, names)
    caption = (
        "Each curve is one rule as its α moves, each panel one block size. Only timed points are drawn; further left is faster."
        + (f" The first {MOST_SERIES} rules of the grid are drawn." if len(names) == MOST_SERIES else "")
    )
    return Figure("Cascades by block size", caption, panels, "Narasimhan et al. 2024, Figure 7")


def _panels(
    summary: Summary,
    points: Sequence[OperatingPoint],
    shares: dict[str, Across],
    title: str,
    beside: Iterable[alt.Chart],
    names: Sequence[str] = (),
) -> Iterator[Panel]:
    """For each of `shares`, by the title of its axis, the curves of these points; a share that no point has is left out.

    Args:
        summary: The task's results.
        points: Of one drafter.
        shares: The x of a point by the axis' title.
        title: Of each panel.
        beside: Further charts of each panel.
        names: The legend, where it is more than the names of these points.
    """
    names = names or list(dict.fromkeys(map(curve_name, points)))
    series = [Series(name, PALETTE[place], SHAPES[place]) for place, name in enumerate(names)]
    for axis, across in shares.items():
        records = [_record(summary, point, x) for point in points if (x := across(point)) is not None]
        if records:
            lines = parts.curves(records, series, axis, f"{metric_name(summary.metric)} (points)")
            yield alt.layer(*lines, *beside, title=title)


def _record(summary: Summary, point: OperatingPoint, x: float) -> Record:
    curve = along_curve(point)
    return parts.point_record(summary, point, x=round(x, 5), y=point.quality, series=curve_name(point), curve=curve)


def along_curve(point: OperatingPoint) -> str:
    """The curve of a point, along which everything but α stays the same; a method without α has one curve."""
    fixed = {name: value for name, value in point.settings.items() if name not in _ALPHA}
    return curve_name(point) + (json.dumps(fixed, sort_keys=True) if len(fixed) < len(point.settings) else "")


def compared_with_cascades(point: OperatingPoint) -> bool:
    """Whether a point is of a cascade that is verified speculatively, or of speculative decoding."""
    return point.method in _SPECULATIVE or _is_speculative(point)


def curve_name(point: OperatingPoint) -> str:
    """A point's entry in the legend: its method, its rule, how it takes β, and its drafter unless that is the small model."""
    settings = point.settings
    variant = settings.get("rule") or settings.get("confidence")
    name = method_name(point.method) + (f" [{variant}]" if variant else "")
    if "tuned" in settings:
        name += ", β tuned" if settings["tuned"] else ", β = 1"
    arm = settings.get("drafter", "small")
    return name if arm == "small" else f"{name}, {arm}"


def _is_speculative(point: OperatingPoint) -> bool:
    """Speculative decoding by the small model is drawn beside the cascades: each of them starts from it."""
    return point.method == "speculative" and point.settings.get("drafter", "small") == "small"


def _rejected(point: OperatingPoint) -> float | None:
    """Share of the verified tokens that were rejected, in percent; tokens after a rejection do not count."""
    verified = point.counts.accepted + point.counts.rollbacks
    return 100.0 * point.counts.rollbacks / verified if verified and point.method not in _UNVERIFIED else None
