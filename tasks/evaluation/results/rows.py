"""Rows of a sweep, one line of `rows.jsonl` each: a point that failed, that was measured, or that was also timed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Len

from tasks.decoding.settings import SamplingSettings
from tasks.evaluation.metrics import metric_of, points_of
from tasks.evaluation.results.codec import Json, Settings, Source, decode, is_json, parse
from tasks.evaluation.results.outputs import OutputDetails, OutputStatistics
from tasks.evaluation.results.row_file import RowFile
from tasks.evaluation.statistics import Interval


@dataclass(frozen=True, kw_only=True)
class DecodingCounts:
    """Raw counts, summed over the examples of a split; ratios are made from them once, in `measurements`."""

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
class RowHeader:
    """What a row says of its point before anything is measured."""

    task: str = ""
    drafter: str
    """Which small model: `unaligned` or `aligned`."""
    split: str
    method: str
    settings: Settings
    lossless: bool
    metric: str
    """The full name of the task's metric, whose name is a key of `quality`."""
    examples: int | None = None
    """Examples of the split."""
    sampling: SamplingSettings | None = None
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
class Outcome:
    """What decoding a split gave: quality in points, with 95 % intervals, and counts."""

    how: str | None = None
    """`replayed`, `decoded` or, of given texts, `scored`."""
    quality: dict[str, float]
    """By the names of metrics; of perplexity less is better."""
    quality_interval: Interval | None = None
    quality_difference_interval: Interval | None = None
    """Of quality minus vanilla large's, paired."""
    difference_bounds: DifferenceBounds | None = None
    """By which points are chosen on validation, and choices confirmed or contradicted on test."""
    signature: str | None = None
    """How BLEU, ROUGE or perplexity was computed: sacrebleu's signature, or the like."""
    counts: DecodingCounts
    outputs: OutputStatistics | None = None
    """Loops, cut-off outputs, lengths, differences from vanilla; None where they were not counted, as of given texts."""


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
    """95 %, from examples and rounds (`rounds.speedup_interval`)."""
    rounds: list[TimedRound] | None = None
    """In the order of time; fewer than `sweep.latency_rounds` in a sweep that was interrupted."""
    time_ms: dict[str, float] | None = None
    """Mean milliseconds of an example by part: encoders, small, large, other."""
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
        """Quality by the task's metric, in points, of which more is better; NaN where the row holds none."""
        name = metric_of(self.metric).name
        return points_of(name, self.quality.get(name, float("nan")))


@dataclass(frozen=True, kw_only=True)
class TimedRow(OutputDetails, Timing, MeasuredRow):
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
    timed = "speedup" in value or "latency_ms" in value
    return decode(TimedRow if timed else MeasuredRow, value, source)


def read_rows(path: Path, fix: str, name: str = "") -> list[SweepRow]:
    """The rows of a file; an unfinished last line, which a kill leaves behind, is not a row.

    Args:
        path: A `rows.jsonl`; without such a file there are no rows.
        fix: What the user does about a damaged file, as an imperative clause.
        name: What errors call the file, where its path says nothing to the user.

    Raises:
        InputError: a line is damaged or of another version.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    if not is_json(lines[-1]):
        lines.pop()
    sources = [Source(f"{name or path}, line {number}", fix) for number in range(1, len(lines) + 1)]
    return [row_from(parse(line, source), source) for line, source in zip(lines, sources, strict=True) if line.strip()]


class SweepRowFile(RowFile[SweepRow]):
    """The rows of one sweep."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        super().__init__(path, fingerprint, _measured)
        self.compact()

    def compact(self) -> None:
        """Leave only the last row of each point and split: a point has a row after each of its rounds."""
        last = {(row.split, row.method, str(row.settings)): row for row in self.rows}
        if len(last) < len(self.rows):
            kept = {id(row) for row in last.values()}
            self.replace([row for row in self.rows if id(row) in kept])

    def find(self, split: str, method: str, settings: Settings) -> SweepRow | None:
        """The last row of a point on a split, if there is one."""
        wanted = split, method, settings
        return next((row for row in reversed(self.rows) if (row.split, row.method, row.settings) == wanted), None)


def _measured(value: Json, source: Source) -> MeasuredRow | None:
    row = row_from(value, source)
    return row if isinstance(row, MeasuredRow) else None
