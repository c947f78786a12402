"""What averages of quality hide: counts of a point's outputs, and of a timed point also details."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.evaluation.statistics import Interval


@dataclass(frozen=True, kw_only=True)
class OutputStatistics:
    """Counts over the outputs of a split."""

    looping: int
    """Outputs that contain a loop (`repetition.is_looping`)."""
    cut_off: int
    """Outputs that end at the length limit, without an end token."""
    empty: int
    """Outputs without a word."""
    exact: int
    """Outputs equal to one of their references."""
    differs: int
    """Outputs whose text differs from vanilla large's."""
    length_ratio: float | None = None
    """Words of all outputs over words of their references, of several the one nearest in length; None without any word."""
    vanilla_length_ratio: float | None = None
    """Tokens of all outputs over those of vanilla large's outputs, end tokens included."""


@dataclass(frozen=True, kw_only=True)
class LengthBand:
    """Quality on a third of the examples, by the length of their sources."""

    shortest: int
    """Tokens of the shortest source, end token included."""
    longest: int
    examples: int
    quality: float
    """By the task's metric, in points."""
    difference: float
    """From vanilla large on the same examples."""
    difference_interval: Interval
    """95 %, paired."""


@dataclass(frozen=True, kw_only=True)
class WorstOutput:
    """An output beside vanilla large's, which is better by the sentence-level metric."""

    example: int
    """Index in the split."""
    source: str
    references: list[str]
    vanilla: str
    output: str
    loss: float
    """Sentence-level quality of vanilla's output minus that of the point's, in points."""


@dataclass(frozen=True, kw_only=True)
class OutputDetails:
    """Of a timed point."""

    chrf: float | None = None
    """chrF in points, beside BLEU; None for other metrics."""
    chrf_signature: str | None = None
    """How chrF was computed, in sacrebleu's own words."""
    by_length: list[LengthBand] | None = None
    """Shortest sources first."""
    loss_share: float | None = None
    """Mean over the examples of what an output loses against vanilla large's by the sentence-level metric, in [0, 1]; an output
    that gains counts as 0."""
    worst: list[WorstOutput] | None = None
    """The outputs that lose most against vanilla large's, the worst first."""


@dataclass(frozen=True, kw_only=True)
class PointOutputs:
    """The worst outputs of a chosen point on one split."""

    point: int
    """Index into the summary's points."""
    split: str
    worst: list[WorstOutput]
