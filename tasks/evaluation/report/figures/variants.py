"""Two readings of one method side by side: BiLD and its cascade, and lossy acceptance with either residual.

These are the two halves of Figure 8 of Narasimhan et al., 2024.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import altair as alt

from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.cascades import CALLS, LATENCY, curve_name
from tasks.evaluation.report.figures.figure import Figure, Panel
from tasks.evaluation.report.figures.series import Series
from tasks.evaluation.report.figures.theme import COLORS, INK, MOST_SERIES, PALETTE, SHAPES
from tasks.evaluation.report.formatting import metric_name, settings_text
from tasks.evaluation.results.rows import OperatingPoint
from tasks.evaluation.results.summary import Summary

_FEWEST = 3
"""Points that make a curve."""
_STAR = "BiLD*"
_FIXED = ("fallback_threshold", "max_draft")
"""Settings that stay the same along a curve of BiLD."""
_Name = Callable[[OperatingPoint], str]


def bild_variants(summary: Summary) -> Figure | None:
    """BiLD at several windows and fallback thresholds beside BiLD*; None unless both were swept."""
    points = [point for point in summary.points if _bild_name(point)]
    counts = Counter(_bild_name(point) for point in points)
    stars = [name for name in counts if name.startswith(_STAR)]
    most = sorted((name for name in counts if name not in stars and counts[name] >= _FEWEST), key=lambda name: -counts[name])
    shown = sorted(most[: MOST_SERIES - len(stars)])
    if not (stars and shown):
        return None
    names = [*stars, *shown]
    panels = list(_panels(summary, points, names, _bild_name, (LATENCY, CALLS)))
    caption = (
        f"{_STAR} is the cascade that samples speculatively from the distribution that BiLD is taken to mimic; BiLD falls back "
        "and rolls back. Each curve is one setting as its rollback threshold or α moves. Against latency only timed points are "
        "drawn, against calls all points, from counts."
        + (f" Of {len(most)} settings of BiLD those with the most points are drawn." if len(most) > len(shown) else "")
    )
    return Figure(f"BiLD and {_STAR}", caption, panels, "Narasimhan et al. 2024, Figure 8, top")


def _bild_name(point: OperatingPoint) -> str:
    """The curve of a point; empty for other methods, for variants of BiLD, without fallback, and without the small model."""
    settings = point.settings
    if settings.get("drafter", "small") != "small":
        return ""
    if (point.method, settings.get("rule")) == ("speculative_cascade", "bild"):
        return f"{_STAR} γ {settings['draft_length']}"
    other = settings.get("large_first") or settings.get("keep_agreed")
    if point.method != "bild" or other or not settings["fallback_threshold"]:
        return ""
    return f"BiLD {settings_text({name: settings[name] for name in _FIXED if name in settings})}"


def lossy_variants(summary: Summary) -> Figure | None:
    """Lossy acceptance with β = 1 and with tuned β; None unless both were swept with sampling: greedy, both are exact."""
    points = [p for p in summary.points if p.method == "speculative_lossy" and p.sampling and not p.sampling.greedy]
    names = sorted(set(map(curve_name, points)))
    if len({bool(point.settings.get("tuned")) for point in points}) < 2:
        return None
    caption = (
        "Each curve is lossy acceptance as its α moves, with β = 1 in the residual or with the β that its equation gives. "
        "As in the paper the share of calls is shown: to compute β takes time of its own."
    )
    panels = list(_panels(summary, points, names[:MOST_SERIES], curve_name, (CALLS,)))
    return Figure("Lossy acceptance, β = 1 and tuned", caption, panels, "Narasimhan et al. 2024, Figure 8, bottom")


def _panels(
    summary: Summary, points: Sequence[OperatingPoint], names: Sequence[str], name_of: _Name, axes: Sequence[str]
) -> Iterator[Panel]:
    """For each drafter the curves against each axis; latencies are of timed points alone."""
    series = [Series(name, INK if name.startswith(_STAR) else PALETTE[at], SHAPES[at]) for at, name in enumerate(names)]
    vanilla = parts.reference_line(summary.vanilla.large.quality, "vanilla large")
    for arm in COLORS:
        for axis in axes:
            records = [
                parts.point_record(summary, point, x=x, y=point.quality, series=name_of(point))
                for point in points
                if point.arm == arm and name_of(point) in names
                if (x := point.relative_latency if axis == LATENCY else point.large_calls_per_token) is not None
            ]
            if records:
                lines = parts.curves(records, series, axis, f"{metric_name(summary.metric)} (points)")
                yield alt.layer(*lines, *vanilla, title=arm)
