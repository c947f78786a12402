"""Who proposed each token of some outputs (Leviathan et al., 2023, Figure 5): one strip of tokens for each output."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from tasks.evaluation.report.figures import series as parts
from tasks.evaluation.report.figures.figure import Figure, Panel
from tasks.evaluation.report.figures.series import Record, Series
from tasks.evaluation.report.figures.theme import QUIET
from tasks.evaluation.report.formatting import method_name, settings_text
from tasks.evaluation.report.selection import Sweeps, reported_row, strictest_choices
from tasks.evaluation.results.rows import ShownExample
from tasks.evaluation.results.summary import Summary

_PROPOSERS = {
    "s": Series("drafted and kept", "#8CCBEF"),
    "l": Series("the large model, after a draft", "#F0B95B"),
    "c": Series("the large model, in place of a drafted token", "#D55E00"),
}
_METHODS = ("speculative", "bild")
_MOST_PANELS = 4


def token_trace(summary: Summary, sweeps: Sweeps) -> Figure | None:
    """Strips of tokens of the chosen points; None where no row tells who proposed its tokens."""
    panels: list[Panel] = []
    for point in sorted(strictest_choices(summary), key=lambda point: (point.arm, point.method)):
        row = reported_row(point, sweeps) if point.method in _METHODS else None
        shown = [one for one in (row.shown or () if row is not None else ()) if one.proposers]
        if row is not None and shown and len(panels) < _MOST_PANELS:
            title = [f"{method_name(point.method)}, {point.arm} ({row.split})", settings_text(point.settings)]
            panels.append(_panel(shown, title))
    caption = (
        "Of the points chosen on validation, the first timed texts: each square is a token. A run of the large model adds the "
        "token behind a draft that it keeps, or the one in place of the first that it does not; further dark squares are "
        "further runs. Vanilla runs it once a token."
    )
    return (
        Figure("Who proposed each token", caption, panels, "Leviathan et al. 2023, Figure 5", 190, zoom=False)
        if panels
        else None
    )


def _panel(shown: Sequence[ShownExample], title: list[str]) -> Panel:
    records: list[Record] = [
        {"x": place, "end": place + 1, "y": f"text {number}", "series": _PROPOSERS[letter].name}
        for number, one in enumerate(shown, start=1)
        for place, letter in enumerate(one.proposers)
    ]
    totals: list[Record] = [
        {"x": len(one.proposers), "y": f"text {number}", "text": f"{_own(one)} of {len(one.proposers)}"}
        for number, one in enumerate(shown, start=1)
    ]
    x = alt.X("x:Q", title="position in the output (tokens); right: tokens of the large model", scale=alt.Scale(zero=True))
    y = alt.Y("y:N", title=None, sort=[f"text {number}" for number in range(1, len(shown) + 1)])
    tokens = alt.Chart(parts.data(records)).mark_bar(stroke="white", strokeWidth=1).encode(x=x, x2="end:Q", y=y)
    names = (
        alt.Chart(parts.data(totals)).mark_text(align="left", dx=5, fontSize=11, color=QUIET).encode(x=x, y=y, text="text:N")
    )
    return alt.layer(
        tokens.encode(color=parts.color(list(_PROPOSERS.values())), tooltip=["series:N", "x:Q"]),
        names,
        title=alt.TitleParams(title),
    )


def _own(one: ShownExample) -> int:
    """Tokens that the large model put."""
    return len(one.proposers) - one.proposers.count("s")
