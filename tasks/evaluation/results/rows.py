"""Rows of a sweep, one line of `rows.jsonl` each, and the operating points that the summary makes of them.

A row is a point that failed, that was measured, or that was also timed. A point is a setting with its measurements, on
validation and, where it was measured there, on test.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Len

from tasks.decoding.method import SamplingSettings
from tasks.evaluation.results.codec import Json, Settings, Source, decode, parse
from tasks.evaluation.scoring.metrics import metric_of, points_of
from tasks.evaluation.scoring.statistics import Interval, Status


@dataclass(frozen=True, kw_only=True)
class DecodingCounts:
    """Raw counts, summed over the examples of a split; ratios are made from them once, by `measure`."""

    tokens: int
    small_steps: int = 0
    """Runs of the small model or of another drafting model; a table look-up or a copy is not a run."""
    large_calls: int = 0
    drafted: int = 0
    accepted: int = 0
    fallbacks: int = 0
    """Drafts that ended because the small model was not confident."""
    rollbacks: int = 0
    """Verifications that replaced a drafted token."""
    verified: dict[int, int] | None = None
    """Calls of the large model by the number of positions that each verified; None where it was not recorded."""
    kept: dict[str, int] | None = None
    """Verified drafts by `drafted/kept` tokens; None where it was not recorded."""
    layers: int | None = None
    """Decoder layers that the large model ran where a method leaves some out; 0 for other methods."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Latency and speed-up by the cost model; never a measurement."""

    latency_ms: float
    speedup: float


@dataclass(frozen=True, kw_only=True)
class ShownExample:
    """One example's texts, for the page."""

    source: str
    references: list[str]
    vanilla: str
    """The large model's own text."""
    pieces: list[tuple[str, str]]
    """The point's text in order, cut where the proposer changes: (text, `s` small, `l` large or `c` corrected)."""
    proposers: str = ""
    """One such letter for each token; empty in older rows."""


@dataclass(frozen=True, kw_only=True)
class PointHeader:
    """A setting of the grid with one small model."""

    arm: str
    """Which small model: `unaligned` or `aligned`."""
    method: str
    settings: Settings
    lossless: bool
    sampling: SamplingSettings | None = None

    @property
    def drafter(self) -> str:
        """What drafts: one of `decoding.method.DRAFTERS`."""
        return str(self.settings.get("drafter", "small"))


@dataclass(frozen=True, kw_only=True)
class RowHeader(PointHeader):
    """What a row says of its point before anything is measured."""

    task: str = ""
    split: str
    metric: str
    """The full name of the task's metric, whose name is a key of `quality`."""
    examples: int | None = None
    """Examples of the split."""
    fingerprint: str = ""
    """Of the settings, data and code that the row depends on."""


@dataclass(frozen=True, kw_only=True)
class DifferenceBounds:
    """One-sided bounds of a point's paired quality difference to vanilla large, in points."""

    lower: float
    """On validation corrected for the number of settings and drafters that are compared."""
    upper: float
    """Never corrected."""
    compared: int
    """Settings that the lower bounds of this drafter hold for at once; 1 on test."""


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """Counts of a split, and intervals of the quality: the same in a row and in the point that is made of it."""

    quality_interval: Interval | None = None
    quality_difference_interval: Interval | None = None
    """Of quality minus vanilla large's, paired, 95 %."""
    difference_bounds: DifferenceBounds | None = None
    """By which points are chosen on validation, and choices confirmed or contradicted on test."""
    counts: DecodingCounts


@dataclass(frozen=True, kw_only=True)
class Outcome(Decoded):
    """What decoding a split gave: quality in points, with 95 % intervals, and counts."""

    how: str | None = None
    """`replayed`, `decoded` or, of given texts, `scored`."""
    quality: dict[str, float]
    """By the names of metrics; of perplexity less is better."""
    signature: str | None = None
    """How BLEU, ROUGE or perplexity was computed: sacrebleu's signature, or the like."""


@dataclass(frozen=True, kw_only=True)
class TimedRound:
    """One visit to a point: milliseconds of the timed examples, each beside vanilla large's; other points are timed between."""

    latency_ms: Annotated[list[float], Len(min_length=1)]
    vanilla_latency_ms: Annotated[list[float], Len(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Latencies at batch 1, encoders included, of the timed examples in one order, beside vanilla large's."""

    latency_ms: Annotated[list[float], Len(min_length=1)]
    """Medians over the rounds, like vanilla's."""
    vanilla_latency_ms: list[float]
    speedup: float
    """Sum of vanilla's latencies over the sum of the method's, before they were rounded."""
    speedup_interval: Interval | None = None
    """95 %, from examples and rounds (`statistics.speedup_interval`)."""
    rounds: list[TimedRound] | None = None
    """In the order of time; fewer than `sweep.latency_rounds` in a sweep that was interrupted."""
    timed_mismatches: int | None = None
    """Timed examples whose tokens differ from those that quality was measured on, in the round with most of them; None where a
    difference fails the point."""
    shown: list[ShownExample] | None = None


@dataclass(frozen=True, kw_only=True)
class FailedRow(RowHeader):
    """A point that could not be measured."""

    error: str


@dataclass(frozen=True, kw_only=True)
class MeasuredRow(Outcome, RowHeader):
    """A point whose outputs are known; without times unless it is a `TimedRow`."""

    why: str | None = None
    """Why the point was timed."""
    predicted: Prediction | None = None
    same_as: Settings | None = None
    """Settings of an earlier point of the method that behaves the same on every example."""

    @property
    def value(self) -> float:
        """Quality by the task's metric, in points, of which more is better."""
        name = metric_of(self.metric).name
        return points_of(name, self.quality[name])


@dataclass(frozen=True, kw_only=True)
class TimedRow(Timing, MeasuredRow):
    """A point that was decoded and timed."""


SweepRow = FailedRow | MeasuredRow
"""Any row; a `TimedRow` is a `MeasuredRow`."""


def row_from(value: Json, source: Source) -> SweepRow:
    """The row that a JSON object holds.

    Raises:
        InputError: a field is missing or has another type.
    """
    if "error" in value:
        return decode(FailedRow, value, source)
    return decode(TimedRow if "speedup" in value or "latency_ms" in value else MeasuredRow, value, source)


def read_rows(path: Path, fix: str) -> list[SweepRow]:
    """The rows of a file; an unfinished last line, which a kill leaves behind, is not a row.

    Args:
        path: A `rows.jsonl`; without such a file there are no rows.
        fix: What the user does about a damaged file, as an imperative clause.

    Raises:
        InputError: a line is damaged or of another version.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    sources = [Source(f"{path}, line {number}", fix) for number in range(1, len(lines) + 1)]
    return [row_from(parse(line, source), source) for line, source in zip(lines, sources, strict=True) if line.strip()]


@dataclass(frozen=True, kw_only=True)
class Measurements(Decoded):
    """Measurements of one row on its split, with the ratios of its counts (`numbers_of`); times are None without them."""

    quality: float
    """By the task's metric, in points, of which more is better."""
    quality_difference: float | None = None
    """Quality minus that of vanilla large of the same sweep and split, in points; None of a model alone."""
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
    large_calls_per_token: float | None = None
    accepted_share: float | None = None
    mean_accepted_length: float | None = None
    tokens_per_large_call: float | None = None
    """Accepted length as engines count it: with the corrected or bonus token."""
    fallback_rate: float | None = None
    rollback_rate: float | None = None
    examples: int | None = None
    """Examples of the split."""
    timed_examples: int = 0
    timed_rounds: int = 0
    """Of the timed examples; after a single one `speedup_interval` covers examples only."""


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


def numbers_of(row: MeasuredRow) -> dict[str, Any]:
    """The fields of `Measurements` that a row does not hold under their names: quality, ratios of counts and times.

    `joined(Measurements, row, **numbers_of(row))` are the measurements of a row; `TimedMeasurements` of a timed one.
    """
    counts = row.counts
    found = {
        "quality": row.value,
        "qualities": dict(row.quality),
        "large_calls_per_token": ratio(counts.large_calls, counts.tokens),
        "accepted_share": ratio(counts.accepted, counts.drafted),
        "mean_accepted_length": ratio(counts.accepted, counts.large_calls),
        "tokens_per_large_call": ratio(counts.tokens, counts.large_calls),
        "fallback_rate": ratio(counts.fallbacks, counts.tokens),
        "rollback_rate": ratio(counts.rollbacks, counts.large_calls),
    }
    if not isinstance(row, TimedRow):
        return found
    p50, p95, p99 = np.percentile(row.latency_ms, (50, 95, 99)).tolist()
    times = {"latency_ms": float(np.mean(row.latency_ms)), "latency_ms_p50": p50, "latency_ms_p95": p95, "latency_ms_p99": p99}
    sizes = {"timed_examples": len(row.latency_ms), "timed_rounds": len(row.rounds or ()) or 1}
    return {**found, **times, **sizes, "relative_latency": 1.0 / row.speedup}


def ratio(numerator: float, denominator: float) -> float | None:
    """The quotient; None over nothing."""
    return numerator / denominator if denominator else None


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Theory: work of one generated token; of a point, relative to that of the large model alone."""

    flops: float
    """Arithmetic operations; a multiplication and an addition count as two."""
    bytes: float
    """Memory traffic: weights, keys and values read."""
    intensity: float
    """Operations per byte."""


@dataclass(frozen=True, kw_only=True)
class OperatingPoint(Measurements, PointHeader):
    """A row of validation as a point, with its row of test: a `TimedPoint` or an `UntimedPoint`."""

    timed: bool
    """Whether the point is a `TimedPoint`."""
    how: str | None = None
    """`replayed`, `decoded` or, of given texts, `scored`."""
    why: str | None = None
    """Why the point was timed."""
    same_as: Settings | None = None
    """Settings of another point that behaves the same on every example."""
    acceptance_by_position: list[float] | None = None
    """P(token i of a draft is kept | all before it were), for i = 1, 2, …"""
    operations: Operations | None = None
    chosen: str | None = None
    """The strictest of `CHOICES` that the point was chosen for."""
    test: TimedMeasurements | None = None
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
    arm: str
    choice: str
    """One of `CHOICES`: `no_loss` or `one_point`."""
    margin: float | None = None
    """Points that it may lose."""
    point: int | None = None
    """Index into the summary's points; None where no timed setting keeps the quality."""
    test: TestStatus | None = None
    """None where the point was not measured on test."""
