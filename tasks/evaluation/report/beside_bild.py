"""Every method beside BiLD: with the same drafter, both chosen on validation for the same loss, both measured on test."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.report.formatting import CHOICE_NAMES, field_text, method_name, settings_text
from tasks.evaluation.report.selection import Sweeps, rows_of
from tasks.evaluation.results.rows import TimedPoint, TimedRound, TimedRow
from tasks.evaluation.results.summary import OverBild, Summary
from tasks.evaluation.rounds import speed_ratio, speedup_of
from tasks.evaluation.settings import CHOICES
from tasks.evaluation.statistics import Interval
from tasks.paths import ARMS

HEADINGS = ["chosen for", "drafter", "method", "over BiLD", "speed-up", "quality − vanilla", "settings"]
NOTES = [
    "Over BiLD: the speed-up of the method's choice over that of BiLD's choice with the same drafter, with its 95 % interval "
    "over examples and rounds. Both were chosen on validation in the same way.",
    "Where no timed setting of a method was shown to keep the quality, vanilla takes its place, with a speed-up of 1; so it "
    "does for BiLD.",
    "Each interval holds by itself: of twenty methods that are as fast as BiLD, one may be expected to exclude 1.",
]
_BILD, _VANILLA = "bild", "none: vanilla"
_SAMPLES, _SEED = 1000, 1


def beside_bild(summary: Summary, sweeps: Sweeps) -> list[OverBild]:
    """A row for each choice, drafter and method but BiLD, the fastest beside BiLD first; none where BiLD was not swept.

    Args:
        summary: Points and choices, unrounded.
        sweeps: The rows that they were made of.
    """
    found: list[OverBild] = []
    for choice in CHOICES:
        for arm in ARMS:
            chosen = {
                one.method: None if one.point is None else summary.timed_point(one.point)
                for one in summary.choices
                if (one.choice, one.arm) == (choice, arm)
            }
            if _BILD in chosen:
                bild = chosen.pop(_BILD)
                rows = [_compared(method, choice, arm, point, bild, sweeps) for method, point in chosen.items()]
                found += sorted(rows, key=lambda row: -row.over_bild)
    return found


def _compared(
    method: str, choice: str, arm: str, point: TimedPoint | None, bild: TimedPoint | None, sweeps: Sweeps
) -> OverBild:
    tested = all(one.test is not None for one in (point, bild) if one is not None)
    split = REPORTED_ON if tested else CHOSEN_ON
    ratio, interval = _over(_rounds(point, sweeps, split), _rounds(bild, sweeps, split))
    found = OverBild(
        method=method,
        arm=arm,
        choice=choice,
        split=split,
        bild_settings=None if bild is None else bild.settings,
        over_bild=ratio,
        over_bild_interval=interval,
    )
    if point is None:
        return found
    measured = point.test if tested and point.test else point
    return dataclasses.replace(
        found,
        settings=point.settings,
        quality_difference=measured.quality_difference,
        quality_difference_interval=measured.quality_difference_interval,
        speedup=measured.speedup,
        speedup_interval=measured.speedup_interval,
    )


def _rounds(point: TimedPoint | None, sweeps: Sweeps, split: str) -> Sequence[TimedRound]:
    """The rounds of a point on a split; empty for vanilla in its place."""
    rows = [] if point is None else rows_of(point, sweeps)
    return [
        one
        for row in rows
        if isinstance(row, TimedRow) and row.split == split
        for one in row.rounds or [TimedRound(latency_ms=row.latency_ms, vanilla_latency_ms=row.vanilla_latency_ms)]
    ]


def _over(own: Sequence[TimedRound], bild: Sequence[TimedRound]) -> tuple[float, Interval | None]:
    """Vanilla's rounds are those beside the other method: a ratio of 1 in each."""
    if not own and not bild:
        return 1.0, None
    own, bild = own or _of_vanilla(bild), bild or _of_vanilla(own)
    if len(own[0].latency_ms) != len(bild[0].latency_ms):  # an older row was timed on other examples
        return speedup_of(own) / speedup_of(bild), None
    return speed_ratio(own, bild, _SAMPLES, _SEED)


def _of_vanilla(rounds: Sequence[TimedRound]) -> list[TimedRound]:
    return [TimedRound(latency_ms=one.vanilla_latency_ms, vanilla_latency_ms=one.vanilla_latency_ms) for one in rounds]


def table_cells(rows: Sequence[OverBild]) -> list[list[str]]:
    """The body of the table under `HEADINGS`."""
    return [
        [
            CHOICE_NAMES[row.choice],
            row.arm,
            method_name(row.method),
            field_text(row, "over_bild") + ("" if row.split == REPORTED_ON else f", on {row.split}"),
            field_text(row, "speedup"),
            field_text(row, "quality_difference"),
            _VANILLA if row.settings is None else settings_text(row.settings),
        ]
        for row in rows
    ]
