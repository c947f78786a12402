"""The choice: for each method the fastest timed point whose quality is not inferior to vanilla's by more than a margin.

Quality is not inferior where the lower bound of its paired difference, corrected for the number of points that are compared,
lies above minus the margin. A difference that merely was not proven does not suffice.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.evaluation.frontier import BASELINES, CHOSEN_ON, VANILLA, TradeOff, tradeoff_of
from tasks.evaluation.results.rows import MeasuredRow, SweepRow
from tasks.evaluation.settings import CHOICES, MarginSettings

DEFAULT_MARGINS = MarginSettings()


def keeps_quality(lower: float | None, margin: float) -> bool:
    """Whether a lower bound of the difference to vanilla proves that no more than the margin is lost; None proves nothing."""
    return lower is not None and lower > -margin


def choose(points: Sequence[TradeOff | None], kept: Sequence[bool]) -> int | None:
    """Index of the fastest point that keeps the quality; None where there is no such point.

    Of equally fast points the better one is chosen, then the first. A choice may be slower than vanilla and still be the
    fastest.
    """
    enough = [
        (-point.speedup, -point.quality, index)
        for index, (point, keeps) in enumerate(zip(points, kept, strict=True))
        if point is not None and keeps
    ]
    return min(enough)[2] if enough else None


def choose_rows(rows: Sequence[SweepRow], margins: MarginSettings = DEFAULT_MARGINS) -> dict[tuple[str, str], int | None]:
    """The choice for one drafter of each method that is no baseline, for each of `CHOICES`.

    Args:
        rows: of the drafter's sweep; only those of the validation split are compared.
        margins: what a choice may lose.

    Returns:
        `{(method, choice): index into rows, or None}`; empty without a measured vanilla row to compare with.
    """
    points = [tradeoff_of(row) if row.split == CHOSEN_ON else None for row in rows]
    if not any(row.method == VANILLA and point is not None for row, point in zip(rows, points, strict=True)):
        return {}
    found: dict[tuple[str, str], int | None] = {}
    for method in dict.fromkeys(row.method for row in rows if row.method not in BASELINES):
        own = [point if row.method == method else None for row, point in zip(rows, points, strict=True)]
        for choice in CHOICES:
            found[method, choice] = choose(own, [keeps_quality(lower_bound(row), margins.of(choice)) for row in rows])
    return found


def lower_bound(row: SweepRow) -> float | None:
    """The corrected lower bound of a row's difference to vanilla; None where the row holds none."""
    bounds = row.difference_bounds if isinstance(row, MeasuredRow) else None
    return None if bounds is None else bounds.lower
