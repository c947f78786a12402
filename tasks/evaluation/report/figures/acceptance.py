"""How many drafted tokens stay: the currency of speculative decoding (Leviathan et al., 2023, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluation.report.figures.lookup import Point, chosen_points
from tasks.evaluation.report.figures.series import Bars, Chart, Panel, Spots
from tasks.evaluation.report.figures.theme import COLORS, tooltip_lines
from tasks.evaluation.report.tables import method_name

_METHODS = ("bild", "speculative")


def accepted_lengths(summary: Mapping[str, Any]) -> Chart | None:
    """Histogram of tokens kept of a draft, and acceptance by position, of what was chosen; None where drafts were not noted."""
    found = [(choice, point) for choice, point in chosen_points(summary, _METHODS) if point.get("accepted_lengths")]
    if not found:
        return None
    points = [point for _, point in found]
    longest = max(int(length) for point in points for length in point["accepted_lengths"])
    panels = [
        Panel(
            "tokens kept of a draft",
            "tokens kept",
            "share of drafts (%)",
            bars=[_histogram(point, longest) for point in points],
            categories=[str(length) for length in range(longest + 1)],
        )
    ]
    curves = [_by_position(summary, point) for point in points if point.get("acceptance_by_position")]
    if curves:
        panels.append(Panel("acceptance by position", "position in the draft", "kept, if all before it were (%)", curves))
    return Chart(
        "What becomes of drafts",
        "Of the points chosen on validation. Left: how many tokens of a draft the large model kept. Right: the chance that a "
        "position is kept where all before it were; a level line is the independence that the theory of speculative decoding "
        "assumes.",
        "Leviathan et al. 2023, section 3.1",
        panels,
    )


def _name(point: Point) -> str:
    return f"{method_name(point['method'])}, {point['drafter']}"


def _histogram(point: Point, longest: int) -> Bars:
    drafts = {int(length): count for length, count in point["accepted_lengths"].items()}
    total = sum(drafts.values())
    values: Sequence[float] = [100.0 * drafts.get(length, 0) / total if total else 0.0 for length in range(longest + 1)]
    texts = [f"{_name(point)}\n{length} kept: {value:.1f} % of {total} drafts" for length, value in enumerate(values)]
    return Bars(_name(point), values, COLORS[point["drafter"]], texts, hatched=point["method"] != "bild")


def _by_position(summary: Mapping[str, Any], point: Point) -> Spots:
    shares = [
        (place, 100.0 * share) for place, share in enumerate(point["acceptance_by_position"], start=1) if share is not None
    ]
    texts = [f"position {place}: {share:.1f} %\n{tooltip_lines(point, summary['metric'])}" for place, share in shares]
    bild = point["method"] == "bild"
    return Spots(
        _name(point),
        [place for place, _ in shares],
        [share for _, share in shares],
        COLORS[point["drafter"]],
        texts,
        marker="o" if bild else "D",
        hollow=not bild,
        line="-" if bild else ":",
    )
