"""What the test split says of a choice: it confirms it, contradicts it, or leaves it open."""

from __future__ import annotations

from typing import Literal

from tasks.evaluation.statistics import Interval

Status = Literal["confirmed", "open", "contradicted"]
"""`confirmed`: the lower bound is above the limit. `contradicted`: the upper bound is below it. `open`: neither."""


def status_of(bounds: Interval, limit: float) -> Status:
    """The status of a quantity with these one-sided bounds that has to lie above `limit`."""
    lower, upper = bounds
    if lower > limit:
        return "confirmed"
    return "contradicted" if upper < limit else "open"
