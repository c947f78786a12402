"""What averages hide, for the chosen points: counts of outputs by split, and the worst outputs beside vanilla's.

Validation and test never stand in one list.
"""

from __future__ import annotations

from difflib import SequenceMatcher

from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.report.formatting import NOTHING, number_text, point_text
from tasks.evaluation.report.selection import Sweeps, rows_of
from tasks.evaluation.results.rows import Measurements, TimedMeasurements, TimedRow, WorstOutput
from tasks.evaluation.results.summary import PointOutputs, Summary

HEADINGS = [
    "point",
    "looping",
    "cut off",
    "empty",
    "differ from vanilla",
    "equal a reference",
    "words / reference",
    "tokens / vanilla",
]
HEADINGS += ["chrF", "p50 ms", "p95 ms", "p99 ms", "quality by source length, shortest third first"]
Piece = tuple[str, bool]
"""A stretch of words, and whether the other text has other words there."""


def chosen_outputs(summary: Summary, sweeps: Sweeps) -> list[PointOutputs]:
    """The worst outputs of every chosen point on each split that it was timed on, an entry for each split."""
    return [
        PointOutputs(point=index, split=row.split, worst=row.worst)
        for index, point in enumerate(summary.points)
        if point.chosen
        for row in rows_of(point, sweeps)
        if isinstance(row, TimedRow) and row.worst
    ]


def table(summary: Summary, split: str) -> list[tuple[int | None, list[str]]]:
    """The cells by `HEADINGS` of vanilla and of the chosen points on a split, each with the point's index."""
    found: list[tuple[int | None, str, Measurements | None]] = [(None, "vanilla large", _on(summary.vanilla.large, split))]
    found += [(None, f"vanilla small, {name}", _on(model, split)) for name, model in summary.vanilla.small_models()]
    found += [(index, point_text(point), _on(point, split)) for index, point in enumerate(summary.points) if point.chosen]
    return [(index, _cells(name, one)) for index, name, one in found if one is not None and one.outputs is not None]


def worst_by_split(summary: Summary) -> list[tuple[str, list[tuple[int, list[WorstOutput]]]]]:
    """For each split, test first, the index and the worst outputs of each chosen point; splits without any are left out."""
    groups = []
    for split in (REPORTED_ON, CHOSEN_ON):
        own = [(one.point, one.worst) for one in summary.worst if one.split == split]
        if own:
            groups.append((split, own))
    return groups


def side_by_side(vanilla: str, output: str) -> tuple[list[Piece], list[Piece]]:
    """Vanilla's text and the point's, each in pieces by word."""
    old, new = vanilla.split(), output.split()
    left: list[Piece] = []
    right: list[Piece] = []
    for kind, i, i_end, j, j_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for side, words in ((left, old[i:i_end]), (right, new[j:j_end])):
            if words:
                side.append((" ".join(words), kind != "equal"))
    return left, right


def _on(measured: Measurements, split: str) -> Measurements | None:
    found: Measurements | None = measured if split == CHOSEN_ON else getattr(measured, "test", None)
    return found


def _cells(name: str, measured: Measurements) -> list[str]:
    counted = measured.outputs
    assert counted is not None  # noqa: S101 (`table` leaves such points out)
    examples = measured.examples
    counts = (counted.looping, counted.cut_off, counted.empty, counted.differs, counted.exact)
    times = [getattr(measured, f"latency_ms_p{percent}") for percent in (50, 95, 99)] if _timed(measured) else [None] * 3
    bands = [
        f"{band.shortest} to {band.longest} tokens: {band.quality:.2f} ({band.difference:+.2f})"
        for band in measured.by_length or ()
    ]
    return [
        name,
        *(f"{count} of {examples}" if examples else str(count) for count in counts),
        *(number_text(value) for value in (counted.length_ratio, counted.vanilla_length_ratio, measured.chrf, *times)),
        "; ".join(bands) or NOTHING,
    ]


def _timed(measured: Measurements) -> bool:
    return isinstance(measured, TimedMeasurements)
