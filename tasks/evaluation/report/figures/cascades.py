"""What Narasimhan et al., *Faster Cascades via Speculative Decoding*, 2024, draw: quality against how often the large model is
asked (Figure 1) and against how often it rejects (Figures 3, 10 and 11), one curve a deferral rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasks.evaluation.report.figures.lookup import Point
from tasks.evaluation.report.figures.series import Chart, Panel, Rule, Spots
from tasks.evaluation.report.figures.theme import DRAFTERS, PALETTE, tooltip_lines
from tasks.evaluation.report.table import METRIC_NAMES
from tasks.evaluation.report.tables import method_name

_CASCADES = ("speculative_cascade", "token_cascade", "sequence_cascade", "diff_oracle", "speculative_lossy")
_BESIDE = ("speculative",)
"""Drawn beside them, for every cascade starts from it."""
_KNOBS = ("deferral_cost", "lossiness")
"""α of these methods."""
_MARKERS = "o^sDvPX*<>"


def cascade_curves(summary: Mapping[str, Any]) -> Chart | None:
    """Quality against rejections and against the large model's calls; None where no cascade was swept."""
    if not any(point["method"] in _CASCADES for point in summary["points"]):
        return None
    names = list(dict.fromkeys(_curve_name(point) for point in _shown(summary)))
    panels = []
    for drafter in DRAFTERS:
        own = [point for point in _shown(summary) if point["drafter"] == drafter]
        metric, rule = METRIC_NAMES[summary["metric"]], Rule("vanilla large", y=summary["vanilla"]["large"]["quality"])
        for words, share in (("drafted tokens rejected (%)", _rejected), ("large calls for each token", _calls)):
            curves = _curves(summary, own, names, share)
            if curves:
                panels.append(Panel(drafter, words, metric, curves, rules=[rule]))
    if not panels:
        return None
    return Chart(
        "Cascades: quality against the large model's share",
        "Each curve is one deferral rule as its α moves. Further left the large model is asked, or says no, less often; higher "
        "is better. Rejected: of the drafted tokens that the large model judged, those that it replaced.",
        "Narasimhan et al. 2024, Figures 1, 3 and 8",
        panels,
    )


def _shown(summary: Mapping[str, Any]) -> list[Point]:
    return [point for point in summary["points"] if point["method"] in (*_CASCADES, *_BESIDE)]


def _curve_name(point: Point) -> str:
    rule = point["settings"].get("rule")
    return f"{method_name(point['method'])} [{rule}]" if rule else method_name(point["method"])


def _rejected(point: Point) -> float | None:
    """Share of the judged tokens that were rejected, in percent: behind a rejection nothing is judged."""
    counts = point["counts"]
    judged = counts["accepted"] + counts["rollbacks"]
    # A cascade that keeps all its drafts judges nothing, and one that drafts nothing has nothing to judge.
    verifies = point["method"] not in ("token_cascade", "sequence_cascade", "diff_oracle")
    return 100.0 * counts["rollbacks"] / judged if judged and verifies else None


def _calls(point: Point) -> float | None:
    calls: float | None = point["large_calls_per_token"]
    return calls


def _curves(
    summary: Mapping[str, Any], points: Sequence[Point], names: Sequence[str], share: Callable[[Point], float | None]
) -> list[Spots]:
    """Those of a rule have the same colour in every panel, whatever else they are set to."""
    curves = []
    for place, name in enumerate(names):
        groups: dict[str, list[tuple[float, Point]]] = {}
        for point in points:
            x = share(point) if _curve_name(point) == name else None
            if x is not None:
                groups.setdefault(_fixed(point), []).append((x, point))
        for turn, group in enumerate(groups.values()):
            known = sorted(group, key=lambda entry: entry[0])
            curves.append(
                Spots(
                    name,
                    [x for x, _ in known],
                    [point["quality"] for _, point in known],
                    PALETTE[place % len(PALETTE)],
                    [tooltip_lines(point, summary["metric"]) for _, point in known],
                    marker=_MARKERS[place % len(_MARKERS)],
                    size=5.0,
                    line="" if len(known) == 1 else "-",
                    listed=turn == 0,
                )
            )
    return curves


def _fixed(point: Point) -> str:
    """What stays the same along a curve: everything but α; of a method without one nothing."""
    settings: Mapping[str, Any] = point["settings"]
    if not any(knob in settings for knob in _KNOBS):
        return ""
    return json.dumps({name: value for name, value in settings.items() if name not in _KNOBS}, sort_keys=True)
