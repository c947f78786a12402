"""Names beside marks, each on a side where it covers neither a mark nor another name."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from tasks.evaluation.report.figures.series import Record, data

Domain = tuple[float, float]
"""Ends of an axis."""
_Box = tuple[float, float, float, float]
"""Left, top, right and bottom, pixels."""

_WIDTH, _HEIGHT = 430.0, 360.0
"""Pixels of the smallest panel that is drawn: on a larger one names are further apart."""
_SIDES = {"above left": (-11, -11), "below right": (11, 11), "above right": (11, -11), "below left": (-11, 11)}
"""Pixels right and down of the mark."""
_LETTER, _LINE, _MARK = 7.5, 14.0, 7.0
"""Width of a letter, height of a line, and half the width of a mark, pixels."""


def names(
    records: Sequence[Record], across: Domain, upwards: Domain, preferred: dict[str, str], others: Sequence[Record] = ()
) -> list[alt.Chart]:
    """The names of marks as charts.

    Args:
        records: with `x`, `y`, `name`, `series`, and `tone`, the colour of the name.
        across: the domain of `x`.
        upwards: the domain of `y`.
        preferred: for each series the side that is tried first, a key of `_SIDES`.
        others: further marks, with `x` and `y`, that no name may cover.
    """
    found = sides(records, across, upwards, preferred, others)
    placed = [{**record, "side": side} for record, side in zip(records, found, strict=True)]
    text = alt.Chart(data(placed)).encode(x="x:Q", y="y:Q", text="name:N", color=alt.Color("tone:N", scale=None))
    return [
        text.transform_filter(alt.datum.side == side).mark_text(
            dx=dx, dy=dy, fontSize=13, fontWeight="bold", align="right" if dx < 0 else "left"
        )
        for side, (dx, dy) in _SIDES.items()
    ]


def sides(
    records: Sequence[Record], across: Domain, upwards: Domain, preferred: dict[str, str], others: Sequence[Record] = ()
) -> list[str]:
    """The side of each name; where every side covers something, the preferred one."""
    centres = [_pixels(record["x"], record["y"], across, upwards) for record in records]
    marks = [*centres, *(_pixels(other["x"], other["y"], across, upwards) for other in others)]
    taken: list[_Box] = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in marks]
    found = []
    for record, (x, y) in zip(records, centres, strict=True):
        first = preferred[record["series"]]
        options = [first, *(side for side in _SIDES if side != first)]
        boxes = {side: _box(x, y, side, len(record["name"])) for side in options}
        free = (side for side in options if not any(_overlap(boxes[side], other) for other in taken))
        side = next(free, first)
        taken.append(boxes[side])
        found.append(side)
    return found


def _pixels(x: float, y: float, across: Domain, upwards: Domain) -> tuple[float, float]:
    right = (x - across[0]) / (across[1] - across[0]) * _WIDTH
    return right, (upwards[1] - y) / (upwards[1] - upwards[0]) * _HEIGHT


def _box(x: float, y: float, side: str, letters: int) -> _Box:
    dx, dy = _SIDES[side]
    edge, width = x + dx, letters * _LETTER
    left = edge - width if dx < 0 else edge
    return left, y + dy - _LINE / 2, left + width, y + dy + _LINE / 2


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
