"""What the large model keeps of drafts (Leviathan et al., 2023, section 3.1), and how often it is asked or rejects.

The latter are the figures of Narasimhan et al., *Faster Cascades via Speculative Decoding*, 2024, one curve for each deferral
rule: quality against how often the large model is asked (Figure 1) and against how often it rejects (Figures 3, 10 and 11).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import altair as alt

from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.figure import Figure, Panel
from tasks.evaluation.report.figures.series import Record, Series
from tasks.evaluation.report.figures.theme import COLORS, MOST_SERIES, PALE, PALETTE, SHAPES
from tasks.evaluation.report.formatting import method_name, metric_name
from tasks.evaluation.report.selection import strictest_choices
from tasks.evaluation.results.points import OperatingPoint
from tasks.evaluation.results.summary import Summary

_CASCADES = ("speculative_cascade", "token_cascade", "sequence_cascade", "diff_oracle", "speculative_lossy")
_SHOWN = (*_CASCADES, "speculative")
"""Speculative decoding is drawn beside the cascades: each of them starts from it."""
_UNVERIFIED = ("token_cascade", "sequence_cascade", "diff_oracle")
"""Methods that keep all their drafts, or draft nothing: no token of theirs is verified."""
_ALPHA = ("deferral_cost", "lossiness")
"""Settings that move a point along its curve: α of these methods."""


def accepted_lengths(summary: Summary) -> Figure | None:
    """Kept tokens of a draft, and acceptance by position, of the chosen points; None where drafts were not recorded."""
    points = [point for point in strictest_choices(summary) if point.method in ("bild", "speculative")]
    points = sorted((point for point in points if point.accepted_lengths), key=lambda point: (point.drafter, point.method))
    if not points:
        return None
    series = [_series(point) for point in points]
    x = alt.X("x:O", title="tokens kept of a draft", axis=alt.Axis(labelAngle=0))
    y = alt.Y("y:Q", title="share of drafts (%)", scale=alt.Scale(zero=True))
    histogram = [record for point in points for record in _histogram(point)]
    panels = [alt.layer(parts.grouped_bars(histogram, series, x, y))]
    positions = [record for point in points for record in _by_position(point)]
    if positions:
        x = alt.X("x:Q", title="position in the draft", axis=alt.Axis(tickMinStep=1, format="d"), scale=parts.PADDED)
        kept = "kept, if all before it were kept (%)"
        panels.append(alt.layer(*parts.curves(positions, series, x, kept, tooltip="text:N")))
    caption = (
        "Of the points chosen on validation. Left: how many tokens of a draft the large model kept. Right: the probability "
        "that a position is kept if all positions before it were kept; a level line is the independence that the theory of "
        "speculative decoding assumes."
    )
    return Figure("How many drafted tokens are kept", caption, panels, "Leviathan et al. 2023, section 3.1", zoom=False)


def _series(point: OperatingPoint) -> Series:
    name = f"{method_name(point.method)}, {point.drafter}"
    if point.method == "bild":
        return Series(name, COLORS[point.drafter])
    return Series(name, PALE[point.drafter], "diamond", parts.DASHED)


def _histogram(point: OperatingPoint) -> list[Record]:
    drafts, name = point.accepted_lengths or {}, _series(point).name
    total = sum(drafts.values()) or 1
    shares = [(length, 100.0 * drafts.get(length, 0) / total) for length in range(max(drafts) + 1)]
    text = "{}\n{} kept: {:.1f} % of {} drafts"
    return [{"x": x, "y": round(y, 3), "series": name, "text": text.format(name, x, y, total)} for x, y in shares]


def _by_position(point: OperatingPoint) -> list[Record]:
    name, shares = _series(point).name, enumerate(point.acceptance_by_position or (), start=1)
    text = "{}\nposition {}: {:.1%}"
    return [{"x": place, "y": 100 * share, "series": name, "text": text.format(name, place, share)} for place, share in shares]


def cascade_curves(summary: Summary) -> Figure | None:
    """Quality against rejections and against the large model's calls; None where no cascade was swept."""
    points = [point for point in summary.points if point.method in _SHOWN]
    if not any(point.method in _CASCADES for point in points):
        return None
    names = list(dict.fromkeys(map(_curve_name, points)))
    panels: list[Panel] = []
    # A legend of more than eight entries is hard to read: further curves have panels of their own.
    for first in range(0, len(names), MOST_SERIES):
        panels += _cascade_panels(summary, points, names[first : first + MOST_SERIES])
    caption = (
        "Each curve is one deferral rule as its α moves. Further left the large model is asked, or rejects, less often; higher "
        "is better. The rejected share is of the drafted tokens that the large model verified."
    )
    title, after = "Cascades: quality against the large model's share", "Narasimhan et al. 2024, Figures 1, 3 and 8"
    return Figure(title, caption, panels, after) if panels else None


def _cascade_panels(summary: Summary, points: Sequence[OperatingPoint], names: Sequence[str]) -> Iterator[Panel]:
    """For each drafter the curves of these names, against rejections and against calls."""
    series = [Series(name, PALETTE[place], SHAPES[place]) for place, name in enumerate(names)]
    reference = parts.reference_line(summary.vanilla.large.quality, "vanilla large")
    for drafter in COLORS:
        own = [point for point in points if point.drafter == drafter and _curve_name(point) in names]
        shares = {
            "drafted tokens rejected (%)": [(point, _rejected(point)) for point in own],
            "large calls for each token": [(point, point.large_calls_per_token) for point in own],
        }
        for title, measured in shares.items():
            records = [_record(summary, point, x) for point, x in measured if x is not None]
            if records:
                lines = parts.curves(records, series, title, f"{metric_name(summary.metric)} (points)")
                yield alt.layer(*lines, *reference, title=drafter)


def _record(summary: Summary, point: OperatingPoint, x: float) -> Record:
    """Along a curve everything but α stays the same; a method without α has one curve."""
    fixed = {name: value for name, value in point.settings.items() if name not in _ALPHA}
    curve = _curve_name(point) + (json.dumps(fixed, sort_keys=True) if len(fixed) < len(point.settings) else "")
    return parts.point_record(summary, point, x=round(x, 5), y=point.quality, series=_curve_name(point), curve=curve)


def _curve_name(point: OperatingPoint) -> str:
    rule = point.settings.get("rule")
    return f"{method_name(point.method)} [{rule}]" if rule else method_name(point.method)


def _rejected(point: OperatingPoint) -> float | None:
    """Share of the verified tokens that were rejected, in percent; tokens after a rejection do not count."""
    verified = point.counts.accepted + point.counts.rollbacks
    return 100.0 * point.counts.rollbacks / verified if verified and point.method not in _UNVERIFIED else None
