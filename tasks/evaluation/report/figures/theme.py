"""Colours, sizes and fonts that every chart has in common."""

from __future__ import annotations

from typing import Any

import altair as alt

# Okabe and Ito's palette: readers with any kind of colour vision can tell the colours apart.
COLORS = {"aligned": "#0072B2", "unaligned": "#D55E00"}
"""By drafter."""
PALE = {"aligned": "#9ECAE6", "unaligned": "#F5BE95"}
"""By drafter, for the second series of a drafter."""
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777", "#000000", "#A3A500", "#7B4FA3")
"""For series that are not drafters."""
SHAPES = ("circle", "triangle-up", "square", "diamond", "triangle-down", "cross", "triangle-left", "triangle-right")
MOST_SERIES = 8
"""Entries of a legend."""
PARTS = {"encoders": "#A6A6A6", "small": "#8CCBEF", "large": "#F0B95B", "other": "#DDDDDD"}
"""Parts of the time that one example takes."""
DIVERGING = ("#E8A06B", "#FFFFFF", "#86B4DB")
"""Below, at and above the reference; black numbers stay legible on all of them."""
CONTRADICTED = "#B00020"
"""Of a choice that test contradicts; a word stands beside it."""
INK, QUIET, REFERENCE = "#222222", "#555555", "#8A8A8A"

LETTER_WIDTH, SYMBOL_WIDTH = 6.8, 44
"""Pixels of one letter of a legend's label, and of a symbol with the space around it; page.js counts with the same."""
_LABELS = {"labelColor": INK, "labelFontSize": 12, "labelLimit": 400}
_TITLES = {"titleColor": INK, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8}
_LINES = {"gridColor": "#E8E8E8", "domainColor": REFERENCE, "tickColor": REFERENCE}
_SYMBOLS = {"symbolSize": 80, "symbolOpacity": 1, "columnPadding": 16, "rowPadding": 4}

LATENCY_TICKS = alt.Axis(
    labelExpr="datum.value > 0 ? [format(datum.value, '.2~f'), format(1 / datum.value, '.2~f') + '×'] : '0'",
    labelSeparation=10,
)
"""Relative latencies with the speed-up under each."""

CONFIG: dict[str, Any] = {
    "background": "white",
    # vl-convert and browsers both have a font of this name, with Greek letters and mathematical signs.
    "font": "sans-serif",
    "view": {"stroke": None},
    "title": {"anchor": "start", "color": QUIET, "fontSize": 12, "fontWeight": "normal", "subtitleColor": QUIET},
    "axis": {**_LABELS, **_TITLES, **_LINES, "labelFlush": False, "labelSeparation": 6},
    "axisXQuantitative": {"tickCount": 8},
    "legend": {**_LABELS, **_SYMBOLS, "orient": "bottom", "layout": {"bottom": {"direction": "vertical", "anchor": "start"}}},
    "scale": {"zero": False},
}
"""Vega-Lite's configuration, for pictures and for the page."""
