"""Every method beside BiLD with the same drafter, both chosen alike."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.evaluation.results.codec import Settings
from tasks.evaluation.statistics import Interval


@dataclass(frozen=True, kw_only=True)
class BesideBild:
    """The point that was chosen of a method, and how many times as fast it is as the one that was chosen of BiLD."""

    method: str
    drafter: str
    """Which small model, of both methods: `unaligned` or `aligned`."""
    choice: str
    """One of `CHOICES`, for both methods."""
    split: str
    """Of all numbers here: test, or validation where one of the two points was not measured on test."""
    settings: Settings | None = None
    """None where no timed setting was shown to keep the quality: vanilla takes its place."""
    quality_difference: float | None = None
    """Quality minus vanilla's, in points; None for vanilla."""
    quality_difference_interval: Interval | None = None
    speedup: float = 1.0
    speedup_interval: Interval | None = None
    bild_settings: Settings | None = None
    """None where vanilla takes the place of BiLD."""
    over_bild: float = 1.0
    """Its speed-up over BiLD's."""
    over_bild_interval: Interval | None = None
    """95 %, over examples and rounds; None where vanilla takes the place of both."""
