"""A chart as plain data: what is drawn, said once, so that the pictures and the page cannot show different numbers.

`figures.draw` makes a matplotlib figure of a `Chart`, `charts` makes the same chart interactive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Interval = Sequence[float] | None
Window = tuple[tuple[float, float], tuple[float, float]]
"""The ranges of x and y that are seen at first."""


@dataclass(frozen=True)
class Spots:
    """One entry of a legend: marks in the plane, joined by a line or not."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    texts: Sequence[str] = ()
    """What each mark says when it is pointed at, lines divided by line feeds; empty for lines without marks."""
    marker: str = "o"
    """As matplotlib calls it; empty for a line alone."""
    size: float = 6.0
    hollow: bool = False
    faint: bool = False
    rim: bool = False
    """A dark edge: the mark was chosen."""
    line: str = ""
    """`-`, `--` or `:`; empty for marks alone."""
    x_intervals: Sequence[Interval] = ()
    y_intervals: Sequence[Interval] = ()
    listed: bool = True
    """Whether the legend names it."""
    group: str = ""
    """Marks of one group are shown and hidden together on the page; empty: by the name."""


@dataclass(frozen=True)
class Bars:
    """One series of bars over the panel's categories."""

    name: str
    values: Sequence[float | None]
    color: str
    texts: Sequence[str] = ()
    hatched: bool = False
    said: Sequence[str] = ()
    """A short text at each bar's end."""


@dataclass(frozen=True)
class Heat:
    """A map of cells: rows of `values` from the bottom up."""

    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float | None]]
    texts: Sequence[Sequence[str]]
    middle: float
    """The value that stands between the two colours."""
    digits: int = 2
    marked: Sequence[Sequence[bool]] = ()
    """Cells whose number is printed bold, in a frame."""
    signed: bool = False

    def number(self, row: int, column: int) -> str:
        """What is printed in a cell; nothing where there is no value."""
        value = self.values[row][column]
        return "" if value is None else f"{value:{'+' if self.signed else ''}.{self.digits}f}".replace("-", "−")


@dataclass(frozen=True)
class Rule:
    """A straight line to compare with: at `x`, at `y`, or the diagonal where both are None."""

    text: str = ""
    x: float | None = None
    y: float | None = None
    dotted: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    spots: Sequence[Spots] = ()
    bars: Sequence[Bars] = ()
    categories: Sequence[str] = ()
    heat: Heat | None = None
    rules: Sequence[Rule] = ()
    stacked: bool = False
    """Bars lie, one behind the other; else they stand side by side."""
    square: bool = False
    """Both axes have the same range and scale."""
    windows: dict[str, Window] = field(default_factory=dict)
    """Views by name; the first is seen at first."""


@dataclass(frozen=True)
class Chart:
    """A figure: panels in rows of `columns`."""

    title: str
    caption: str
    """How to read it, a sentence or two."""
    follows: str
    """The figure of a paper that it is drawn after; empty where there is none."""
    panels: Sequence[Panel]
    columns: int = 2
