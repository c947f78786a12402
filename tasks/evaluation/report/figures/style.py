"""How matplotlib's figures look and are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasks.evaluation.report.figures.theme import FAINT

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "hatch.linewidth": 0.8,
    "svg.hashsalt": "draftline",
}
TITLE: dict[str, Any] = {"fontsize": 9.5, "color": "#555555", "loc": "left"}
NOTE: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5, "color": FAINT}
LINES: dict[str, Any] = {"-": "-", "--": (0, (4, 1.5)), ":": ":", "": ""}


def frame(axes: Axes, x: str, y: str) -> None:
    """Names the axes."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.tick_params(length=3, color="#555555")


def save(figure: Figure, path: Path) -> None:
    """Writes PNG or SVG by the suffix of `path`; the same figure gives the same bytes."""
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
