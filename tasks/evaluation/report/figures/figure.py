"""A figure: one or more charts under one title, as a picture (PNG or SVG) and as specifications for the page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from tasks.evaluation.report.figures.theme import CONFIG, INK, LETTER_WIDTH, SYMBOL_WIDTH

Panel = alt.LayerChart | alt.FacetChart
"""What `alt.layer` may return; all panels are layers."""
Spec = dict[str, Any]
"""A Vega-Lite specification."""

_PAIR_WIDTH, _SINGLE_WIDTH, _SCALE = 430, 680, 1.6
"""Pixels of a panel in a picture, and pixels of the PNG for each of them."""
_CAPTION_LETTERS = 0.155
"""Letters of a caption that fit in a pixel of width."""


@dataclass(frozen=True)
class Figure:
    """Charts under one title. The charts have no width: a picture gives them one, on the page they fill their column."""

    title: str
    caption: str
    """How to read it, a sentence or two."""
    panels: Sequence[Panel]
    after: str = ""
    """The figure of a paper that shows the same; empty where there is none."""
    height: int = 300
    """Pixels of a panel without its title, axes and legend."""
    square: bool = False
    """Whether panels are as wide as high."""
    zoom: bool = True
    """Whether the reader of the page can move and enlarge the charts; not for categories."""


def save(figure: Figure, path: Path) -> None:
    """Writes PNG or SVG by the suffix of `path`; the same figure gives the same bytes."""
    if path.suffix == ".svg":
        path.write_text(_renumbered(vl_convert.vegalite_to_svg(picture_spec(figure))), encoding="utf-8")
    else:
        path.write_bytes(vl_convert.vegalite_to_png(picture_spec(figure), scale=_SCALE))


def _renumbered(svg: str) -> str:
    """The picture with its clip paths numbered from 0: vl-convert goes on counting from one picture to the next."""
    numbers: dict[str, str] = {}
    return re.sub(r"(?<=clip)\d+", lambda found: numbers.setdefault(found[0], str(len(numbers))), svg)


def picture_spec(figure: Figure) -> Spec:
    """All panels in one specification, at most two side by side, with title and caption above them."""
    columns = min(2, len(figure.panels))
    width = figure.height if figure.square else _PAIR_WIDTH if columns > 1 else _SINGLE_WIDTH
    panels = [panel.properties(width=width, height=figure.height) for panel in figure.panels]
    after = f" After {figure.after}." if figure.after else ""
    caption = textwrap.wrap(figure.caption + after, int(max(columns * width, 480) * _CAPTION_LETTERS))
    title = alt.TitleParams(figure.title, subtitle=caption, fontSize=16, fontWeight="bold", color=INK, offset=14)
    # Without validation, which takes as long as making the panels; the tests validate them.
    spec = alt.concat(*panels, columns=columns, spacing=24, title=title).to_dict(validate=False)
    letters = max(map(_longest_label, spec["concat"]))
    # Panels share the colours of a legend; without a legend each panel has its own.
    resolve = {"scale": {"color": "shared" if letters else "independent"}}
    fitting = int(columns * width / (letters * LETTER_WIDTH + SYMBOL_WIDTH))
    legend = {**CONFIG["legend"], "columns": max(1, fitting)}
    return {**spec, "resolve": resolve, "config": {**CONFIG, "legend": legend}}


def page_specs(figure: Figure, datasets: Spec) -> list[Spec]:
    """One specification a panel, without size, configuration and data.

    Args:
        figure: The figure.
        datasets: Gains the panels' data by name; panels of any figure that show equal data share them.
    """
    specs = []
    for spec in (panel.to_dict(validate=False) for panel in figure.panels):
        datasets |= spec.pop("datasets", {})
        layout = {"height": figure.height, "square": figure.square, "zoom": figure.zoom, "letters": _longest_label(spec)}
        rest = {name: value for name, value in spec.items() if name not in ("config", "$schema")}
        specs.append({**rest, "usermeta": layout})
    return specs


def _longest_label(spec: Spec) -> int:
    """Letters of the longest label in the legends of a panel, which list the domains of its series; 0 without a legend."""
    channels = [layer.get("encoding", {}).get(name, {}) for layer in spec["layer"] for name in ("color", "shape")]
    labels = [label for channel in channels for label in (channel.get("scale") or {}).get("domain", ())]
    return max((len(label) for label in labels if isinstance(label, str)), default=0)
