"""The fastest of a summary's points under a condition, and when a point counts as faster than vanilla."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.evaluation.results.points import TimedMeasurements, TimedPoint
from tasks.evaluation.results.summary import Summary


def is_faster(measured: TimedMeasurements) -> bool:
    """Faster than vanilla beyond the noise of its timing: the whole interval of the speed-up lies above 1."""
    interval = measured.speedup_interval
    return (interval[0] if interval else measured.speedup) > 1.0


def fastest(summary: Summary, indices: Iterable[int | None]) -> int | None:
    """The index of the fastest of these timed points; of equally fast ones the better, then the first."""

    def order(index: int) -> tuple[float, float, int]:
        point = summary.timed_point(index)
        return -point.speedup, -point.quality, index

    return min((index for index in indices if index is not None), key=order, default=None)


def best_choice(summary: Summary, choice: str, drafter: str | None = None, without: int | None = None) -> int | None:
    """The index of the fastest chosen point over all methods; None where none was chosen.

    Args:
        summary: with points and choices.
        choice: one of `TOLERANCES`.
        drafter: only its choices.
        without: an index that is left out.
    """
    found = [one.point for one in summary.choices if one.choice == choice and drafter in (None, one.drafter)]
    return fastest(summary, [index for index in found if index != without])


def fastest_lossless(summary: Summary) -> TimedPoint | None:
    """The fastest timed point that beats vanilla and gives its exact output; beam search gives another search's output."""
    found = [
        index
        for index, point in enumerate(summary.points)
        if isinstance(point, TimedPoint) and point.lossless and "beam" not in point.method and is_faster(point)
    ]
    best = fastest(summary, found)
    return None if best is None else summary.timed_point(best)
