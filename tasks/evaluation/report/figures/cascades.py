"""The figures of Narasimhan et al., *Faster Cascades via Speculative Decoding*, 2024: quality against how often the large model
is asked (Figure 1) and against how often it rejects (Figures 3, 10 and 11), one curve for each deferral rule.
"""

from __future__ import annotations

import json

import altair as alt

from tasks.evaluation.report.figures.figure import Figure, Panel
from tasks.evaluation.report.figures.series import Record, Series, curves, point_record, reference_line
from tasks.evaluation.report.figures.theme import COLORS, PALETTE, SHAPES
from tasks.evaluation.report.formatting import METRIC_NAMES, method_name
from tasks.evaluation.results.points import OperatingPoint
from tasks.evaluation.results.summary import Summary

_CASCADES = ("speculative_cascade", "token_cascade", "sequence_cascade", "diff_oracle", "speculative_lossy")
_SHOWN = (*_CASCADES, "speculative")
"""Speculative decoding is drawn beside the cascades: each of them starts from it."""
_UNVERIFIED = ("token_cascade", "sequence_cascade", "diff_oracle")
"""Methods that keep all their drafts, or draft nothing: no token of theirs is judged."""
_ALPHA = ("deferral_cost", "lossiness")
"""Settings that move a point along its curve: α of these methods."""


def cascade_curves(summary: Summary) -> Figure | None:
    """Quality against rejections and against the large model's calls; None where no cascade was swept."""
    points = [point for point in summary.points if point.method in _SHOWN]
    if not any(point.method in _CASCADES for point in points):
        return None
    names = dict.fromkeys(map(_curve_name, points))
    series = [Series(name, PALETTE[place % len(PALETTE)], SHAPES[place % len(SHAPES)]) for place, name in enumerate(names)]
    reference = reference_line(summary.vanilla.large.quality, "vanilla large")
    panels: list[Panel] = []
    for drafter in COLORS:
        for title, share in (("drafted tokens rejected (%)", _rejected), ("large calls for each token", _calls)):
            own = [(point, x) for point in points if point.drafter == drafter and (x := share(point)) is not None]
            records = [_record(summary, point, x) for point, x in own]
            if records:
                lines = curves(records, series, title, f"{METRIC_NAMES[summary.metric]} (points)")
                panels.append(alt.layer(*lines, *reference, title=drafter))
    caption = (
        "Each curve is one deferral rule as its α moves. Further left the large model is asked, or rejects, less often; higher "
        "is better. The rejected share is of the drafted tokens that the large model judged."
    )
    title, after = "Cascades: quality against the large model's share", "Narasimhan et al. 2024, Figures 1, 3 and 8"
    return Figure(title, caption, panels, after) if panels else None


def _record(summary: Summary, point: OperatingPoint, x: float) -> Record:
    """Along a curve everything but α stays the same; a method without α has one curve."""
    fixed = {name: value for name, value in point.settings.items() if name not in _ALPHA}
    curve = _curve_name(point) + (json.dumps(fixed, sort_keys=True) if len(fixed) < len(point.settings) else "")
    return point_record(summary, point, x=round(x, 5), y=point.quality, series=_curve_name(point), curve=curve)


def _curve_name(point: OperatingPoint) -> str:
    rule = point.settings.get("rule")
    return f"{method_name(point.method)} [{rule}]" if rule else method_name(point.method)


def _rejected(point: OperatingPoint) -> float | None:
    """Share of the judged tokens that were rejected, in percent; tokens behind a rejection are not judged."""
    judged = point.counts.accepted + point.counts.rollbacks
    return 100.0 * point.counts.rollbacks / judged if judged and point.method not in _UNVERIFIED else None


def _calls(point: OperatingPoint) -> float | None:
    return point.large_calls_per_token
