"""Labels on a figure, put where they cover neither each other nor the marks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

Spot = tuple[float, float]

_ANGLES = tuple(math.radians(degrees) for degrees in range(0, 360, 20))
_DISTANCES = (8.0, 14.0, 22.0, 32.0, 44.0, 58.0, 74.0)
_MARK = 4.0
"""Half the width of what a mark is taken to cover, and the least room between labels, in points."""
_COVERED = 10.0
"""How many points further away a label may lie to leave one more mark free."""
_ROUNDS = 3
_STYLE: dict[str, Any] = {
    "textcoords": "offset points",
    "ha": "center",
    "va": "center",
    "zorder": 8,
    "bbox": {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
}


@dataclass(frozen=True)
class Label:
    """A text for the mark at (`x`, `y`), in the axes' data."""

    x: float
    y: float
    text: str
    color: str


def place_labels(axes: Axes, labels: Sequence[Label], marks: Sequence[Spot], size: float = 8.0) -> list[Bbox]:
    """Draws `labels`, each joined to its mark by a thin line.

    A place is sought in growing circles around the mark. Outside the axes, on another label or across another label's
    line are the last resorts; else the nearest place that covers few marks. Labels are placed one after the other, and
    then again with all the others in place.

    Args:
        axes: already laid out, for the search is in pixels.
        labels: to be drawn.
        marks: in the axes' data, what should stay visible; a line is given as points along it.
        size: of the text, points.

    Returns:
        Where the labels lie, in pixels.
    """
    figure = axes.get_figure(root=True)
    if figure is None:
        raise ValueError("the axes belong to no figure")
    scale = figure.dpi / 72.0
    covered = axes.transData.transform(np.asarray(marks, dtype=np.float64).reshape(-1, 2))
    texts = [_draw(axes, label, size) for label in labels]
    anchors = [_pixels(axes, (label.x, label.y)) for label in labels]
    places: dict[int, Bbox] = {}
    # From the top down: marks that lie close together keep their order in their labels.
    downwards = sorted(range(len(labels)), key=lambda place: -anchors[place][1])
    for turn in downwards * _ROUNDS:
        others = [(anchors[other], box) for other, box in places.items() if other != turn]
        own, anchor = texts[turn].get_window_extent(), anchors[turn]
        costs = {
            box: _cost(box, anchor, axes.bbox, others, covered, scale)
            for box in _candidates(anchor, own.width, own.height, scale)
        }
        places[turn] = min(costs, key=lambda box: costs[box])
    for place, box in places.items():
        x, y = _middle(box)
        texts[place].set_position(((x - anchors[place][0]) / scale, (y - anchors[place][1]) / scale))
    return [places[place] for place in range(len(labels))]


def _draw(axes: Axes, label: Label, size: float) -> Annotation:
    """The label on its mark, for its size."""
    arrow = {"arrowstyle": "-", "color": label.color, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3.5}
    look: dict[str, Any] = {"fontsize": size, "color": label.color, "arrowprops": arrow}
    return axes.annotate(label.text, (label.x, label.y), (0, 0), **look, **_STYLE)


def _candidates(anchor: Spot, width: float, height: float, scale: float) -> Iterator[Bbox]:
    """Boxes of that size whose edges lie at the given distances from `anchor`, in pixels."""
    for distance, angle in itertools.product(_DISTANCES, _ANGLES):
        x = anchor[0] + math.cos(angle) * (distance * scale + width / 2)
        y = anchor[1] + math.sin(angle) * (distance * scale + height / 2)
        yield Bbox.from_extents(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _cost(
    box: Bbox, anchor: Spot, inside: Bbox, others: Sequence[tuple[Spot, Bbox]], marks: NDArray[np.float64], scale: float
) -> tuple[int, float]:
    """What speaks against putting a label there: faults first, then covered marks and distance, in points."""
    line, wide = (anchor, _middle(box)), box.padded(_MARK * scale)
    faults = 0 if inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1 else 2
    for other_anchor, other in others:
        other_line = (other_anchor, _middle(other))
        faults += 2 * wide.overlaps(other) + _cross(line, other_line) + _passes(line, other) + _passes(other_line, wide)
    under = (marks[:, 0] > wide.x0) & (marks[:, 0] < wide.x1) & (marks[:, 1] > wide.y0) & (marks[:, 1] < wide.y1)
    return faults, _COVERED * float(under.sum()) + math.dist(*line) / scale


def _passes(line: tuple[Spot, Spot], box: Bbox) -> bool:
    """Whether a line runs through a box: it crosses one of its diagonals, or ends inside."""
    diagonals = (((box.x0, box.y0), (box.x1, box.y1)), ((box.x0, box.y1), (box.x1, box.y0)))
    return box.contains(*line[1]) or any(_cross(line, diagonal) for diagonal in diagonals)


def _cross(first: tuple[Spot, Spot], second: tuple[Spot, Spot]) -> bool:
    """Whether two segments cross: each one's ends lie on different sides of the other."""
    return all(_side(*a, b[0]) * _side(*a, b[1]) < 0 for a, b in ((first, second), (second, first)))


def _side(start: Spot, end: Spot, spot: Spot) -> float:
    return (end[0] - start[0]) * (spot[1] - start[1]) - (end[1] - start[1]) * (spot[0] - start[0])


def _middle(box: Bbox) -> Spot:
    return (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2


def _pixels(axes: Axes, spot: Spot) -> Spot:
    x, y = axes.transData.transform(spot)
    return float(x), float(y)
