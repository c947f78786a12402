"""Colours, marks and words that every figure and the page share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluation.report.table import METRIC_NAMES, settings_text
from tasks.evaluation.report.tables import method_name

# Okabe and Ito's colours: told apart with every kind of colour vision, and these two in black and white.
COLORS = {"aligned": "#0072B2", "unaligned": "#D55E00"}
DRAFTERS = tuple(COLORS)
INK, FAINT = "#222222", "#8A8A8A"
PARTS = {"encoders": "#999999", "small": "#56B4E9", "large": "#E69F00", "other": "#DDDDDD"}
"""Of the time that an example takes."""
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A", "#000000", "#A3A500", "#7B4FA3")
"""Where colour says something else than the drafter, for example the rule of a cascade."""

CLOSE = 2.0
"""Points of quality under vanilla that a view of what lies close to it shows."""
SLOWEST = 1.15
"""Latency relative to vanilla up to which such a view reaches, unless what it is about is slower."""
_MARKERS = {
    "bild": "o",
    "speculative": "D",
    "speculative_lenient": "d",
    "speculative_lossy": "X",
    "speculative_confident": "<",
    "speculative_adaptive": ">",
    "speculative_cascade": "^",
    "token_cascade": "P",
    "sequence_cascade": "p",
    "bild_oracle": "*",
    "diff_oracle": "h",
    "speculative_beam": "H",
    "beam_large": "8",
    "calm": "X",
    "vanilla_small": "v",
    "vanilla_large": "s",
}


def marker_of(method: str) -> str:
    """The mark of a method, as matplotlib calls it."""
    return _MARKERS.get(method, "D")


def point_name(point: Mapping[str, Any]) -> str:
    """A point by method, drafter and settings, in one line."""
    return f"{method_name(point['method'])}, {point['drafter']}, {settings_text(point['settings']) or 'no settings'}"


def with_interval(
    value: float | None, interval: Sequence[float] | None, digits: int = 2, unit: str = "", sign: str = ""
) -> str:
    """`1.62× [1.58, 1.66]`; a dash where there is no value."""
    if value is None:
        return "–"
    bounds = f" [{interval[0]:{sign}.{digits}f}, {interval[1]:{sign}.{digits}f}]" if interval else ""
    return f"{value:{sign}.{digits}f}{unit}{bounds}"


def tooltip_lines(point: Mapping[str, Any], metric: str) -> str:
    """What a point says when it is pointed at, lines divided by line feeds."""
    lines = [
        f"{method_name(point['method'])}, {point['drafter']}",
        settings_text(point["settings"]) or "no settings",
        f"{METRIC_NAMES[metric]} {with_interval(point['quality'], point['quality_interval'])}",
    ]
    if point["timed"]:
        lines.append(f"speed-up {with_interval(point['speedup'], point['speedup_interval'], unit='×')} (measured)")
    elif point.get("predicted"):
        lines.append(f"speed-up {point['predicted']['speedup']:.2f}× (predicted, not timed)")
    else:
        lines.append("not timed")
    if point["large_calls_per_token"] is not None:
        lines.append(f"{point['large_calls_per_token']:.2f} large calls a token")
    return "\n".join(lines)
