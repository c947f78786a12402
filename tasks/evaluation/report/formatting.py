"""Points and their numbers in words, for sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tasks.evaluation.report.table import METRIC_NAMES, settings_text
from tasks.evaluation.report.tables import method_name

Entry = Mapping[str, Any]
"""A point of the summary, or its measurements on one split."""


def point_text(point: Entry) -> str:
    """What a point is: `BiLD with the aligned drafter (α_FB 0.6 α_RB 2 ≤ 10)`."""
    settings = settings_text(point["settings"])
    return f"{method_name(point['method'])} with the {point['drafter']} drafter" + (f" ({settings})" if settings else "")


def speed_text(entry: Entry) -> str:
    """`1.89× [1.80, 1.97]`; without an interval where there is none."""
    return f"{entry['speedup']:.2f}×" + interval_text(entry["speedup_interval"])


def difference_text(entry: Entry) -> str:
    """`-0.78 points [-1.49, -0.26]` from vanilla; `no difference measured` where vanilla lacks on that split."""
    if entry["quality_difference"] is None:
        return "no difference measured"
    return f"{_signed(entry['quality_difference'])} points" + interval_text(entry["quality_difference_interval"], "+")


def quality_text(entry: Entry, metric: str) -> str:
    """`BLEU 93.90 (+0.04 points [-0.30, +0.40] from vanilla)`."""
    return f"{METRIC_NAMES[metric]} {entry['quality']:.2f} ({difference_text(entry)} from vanilla)"


def is_faster(entry: Entry) -> bool:
    """Faster than vanilla beyond the noise of its timing: the whole interval of the speed-up lies above 1."""
    interval = entry["speedup_interval"]
    return bool((interval[0] if interval else entry["speedup"]) > 1.0)


def best_choice(summary: Entry, choice: str, drafter: str | None = None, without: int | None = None) -> int | None:
    """The place of the fastest point among what was chosen, over all methods; None where nothing was.

    Args:
        summary: with `choices` and `points`.
        choice: of `TOLERANCES`.
        drafter: only its choices.
        without: a place that is left out.
    """
    places = [
        found["point"]
        for found in summary["choices"]
        if found["choice"] == choice and found["point"] not in (None, without) and drafter in (None, found["drafter"])
    ]
    return fastest(summary["points"], places)


def fastest(points: Sequence[Entry], places: Iterable[int]) -> int | None:
    """Of these places that of the fastest point; of equally fast ones the better, then the first."""
    order = sorted(places, key=lambda place: (-points[place]["speedup"], -points[place]["quality"], place))
    return order[0] if order else None


def fastest_lossless(points: Sequence[Entry]) -> Entry | None:
    """The fastest timed point that is faster than vanilla and gives its own output; beam search gives another search's."""
    found = [
        place
        for place, point in enumerate(points)
        if point["timed"] and point["lossless"] and "beam" not in point["method"] and is_faster(point)
    ]
    best = fastest(points, found)
    return None if best is None else points[best]


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-0.00", "+0.00")


def interval_text(interval: Sequence[float] | None, sign: str = "") -> str:
    """` [1.80, 1.97]`, with a space before it; nothing where there is no interval."""
    return f" [{interval[0]:{sign}.2f}, {interval[1]:{sign}.2f}]" if interval else ""
