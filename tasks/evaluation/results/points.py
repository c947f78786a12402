"""Operating points of the summary: what was measured of a method at one setting, or of a model alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tasks.decoding.settings import SamplingSettings
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.outputs import LengthBand, OutputStatistics
from tasks.evaluation.results.rows import DecodingCounts, DifferenceBounds, Prediction
from tasks.evaluation.selection.status import Status
from tasks.evaluation.statistics import Interval


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Measurements of one row on its split, with the ratios of its counts; times are None for a row without them."""

    quality: float
    """By the task's metric, in points, of which more is better."""
    quality_interval: Interval | None = None
    quality_difference_interval: Interval | None = None
    """Of quality minus vanilla large's, paired, 95 %."""
    difference_bounds: DifferenceBounds | None = None
    """One-sided; the lower one is corrected where points were chosen by it."""
    qualities: dict[str, float | None]
    """By metric; of perplexity less is better."""
    speedup: float | None = None
    speedup_interval: Interval | None = None
    latency_ms: float | None = None
    """Mean over the timed examples."""
    latency_ms_p50: float | None = None
    latency_ms_p95: float | None = None
    latency_ms_p99: float | None = None
    relative_latency: float | None = None
    """1 / speedup."""
    predicted: Prediction | None = None
    time_ms: dict[str, float] | None = None
    """Mean milliseconds of an example by part: encoders, small, large, other."""
    large_calls_per_token: float | None = None
    small_steps_per_token: float | None = None
    accepted_share: float | None = None
    mean_accepted_length: float | None = None
    tokens_per_large_call: float | None = None
    """Accepted length as engines count it: with the corrected or bonus token."""
    fallback_rate: float | None = None
    rollback_rate: float | None = None
    counts: DecodingCounts
    outputs: OutputStatistics | None = None
    """Loops, cut-off outputs, lengths, differences from vanilla."""
    chrf: float | None = None
    """chrF in points; of timed points, beside BLEU."""
    loss_share: float | None = None
    """Mean loss of an output against vanilla's by the sentence-level metric, gains as 0, in [0, 1]; of timed points."""
    by_length: list[LengthBand] | None = None
    """Quality by the length of the source; of timed points."""
    examples: int | None = None
    """Examples of the split."""
    timed_examples: int = 0


@dataclass(frozen=True, kw_only=True)
class TimedMeasurements(Measurements):
    """Measurements of a row that was timed."""

    speedup: float
    latency_ms: float
    latency_ms_p50: float
    latency_ms_p95: float
    relative_latency: float


@dataclass(frozen=True, kw_only=True)
class ModelAlone(TimedMeasurements):
    """A model decoding alone, on validation and, where it was measured there, on test."""

    test: TimedMeasurements | None = None


@dataclass(frozen=True, kw_only=True)
class TestMeasurements(TimedMeasurements):
    """A point on the test split."""

    quality_difference: float | None = None
    """Quality minus that of vanilla large of the same sweep and split."""


@dataclass(frozen=True, kw_only=True)
class OperationsRatio:
    """Theory: work of one generated token relative to the large model alone."""

    flops: float
    bytes: float
    intensity: float


@dataclass(frozen=True, kw_only=True)
class PointHeader:
    """A setting of the grid with one small model."""

    method: str
    drafter: str
    """Which small model: `unaligned` or `aligned`."""
    settings: Settings
    sampling: SamplingSettings | None = None
    lossless: bool
    timed: bool
    """Whether the point is a `TimedPoint`."""
    how: str | None = None
    """`replayed`, `decoded` or, of given texts, `scored`."""
    why: str | None = None
    """Why the point was timed."""
    same_as: Settings | None = None
    """Settings of another point that behaves the same on every example."""


@dataclass(frozen=True, kw_only=True)
class OperatingPoint(Measurements, PointHeader):
    """A method at one setting on validation: a `TimedPoint` or an `UntimedPoint`."""

    quality_difference: float | None = None
    """Quality minus that of vanilla large of the same sweep and split, in points."""
    accepted_lengths: dict[int, int] | None = None
    """Verified drafts by the number of their tokens that were kept."""
    acceptance_by_position: list[float] | None = None
    """P(token i of a draft is kept | all before it were), for i = 1, 2, …"""
    operations: OperationsRatio | None = None
    chosen: str | None = None
    """The strictest of `CHOICES` that the point was chosen for."""
    test: TestMeasurements | None = None
    """The same point on the test split; None where it was not measured there."""


@dataclass(frozen=True, kw_only=True)
class TimedPoint(TimedMeasurements, OperatingPoint):
    """A point that was timed: the only kind that can be chosen or lie on a frontier."""

    timed: Literal[True] = True


@dataclass(frozen=True, kw_only=True)
class UntimedPoint(OperatingPoint):
    """A point whose quality and counts are exact, and whose speed is at most predicted."""

    timed: Literal[False] = False


@dataclass(frozen=True, kw_only=True)
class TestStatus:
    """What the test split says of a choice, each by one-sided bounds: confirmed, open or contradicted."""

    quality: Status | None = None
    """Whether the difference to vanilla lies above minus the margin; None where it was not measured."""
    speed: Status | None = None
    """Whether the speed-up lies above 1."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The fastest timed point of a method that keeps the quality to a margin beyond doubt."""

    method: str
    drafter: str
    choice: str
    """One of `CHOICES`: `no_loss` or `one_point`."""
    margin: float | None = None
    """Points that it may lose."""
    point: int | None = None
    """Index into the summary's points; None where no timed setting keeps the quality."""
    test: TestStatus | None = None
    """None where the point was not measured on test."""


@dataclass(frozen=True, kw_only=True)
class FailedPoint:
    """A row that holds an error, or numbers that are not finite."""

    method: str
    drafter: str
    split: str
    settings: Settings
    error: str
