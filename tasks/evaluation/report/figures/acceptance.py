"""What the large model keeps of drafts (Leviathan et al., 2023, section 3.1)."""

from __future__ import annotations

import altair as alt

from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.figure import Figure
from tasks.evaluation.report.figures.series import Record, Series
from tasks.evaluation.report.figures.theme import COLORS, PALE
from tasks.evaluation.report.formatting import method_name
from tasks.evaluation.report.selection import strictest_choices
from tasks.evaluation.results.rows import OperatingPoint
from tasks.evaluation.results.summary import Summary


def accepted_lengths(summary: Summary) -> Figure | None:
    """Kept tokens of a draft, and acceptance by position, of the chosen points; None where drafts were not recorded."""
    points = [point for point in strictest_choices(summary) if point.method in ("bild", "speculative")]
    points = sorted((point for point in points if point.accepted_lengths), key=lambda point: (point.arm, point.method))
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
    name = f"{method_name(point.method)}, {point.arm}"
    if point.method == "bild":
        return Series(name, COLORS[point.arm])
    return Series(name, PALE[point.arm], "diamond", parts.DASHED)


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
