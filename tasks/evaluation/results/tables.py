"""Rows of the report's tables, and what the papers print beside them.

Measured and published rows never mix: they are records of different types, distinguished by `source`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.rows import TestStatus
from tasks.evaluation.statistics import Interval


@dataclass(frozen=True, kw_only=True)
class PublishedResult:
    """Quality and speed-up that a paper prints for the task's data set and metric: other models, other hardware."""

    dataset: str
    """As printed."""
    quality: float
    speedup: float | None = None
    """None for vanilla itself."""


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """What Table 1 shows of a point on one split."""

    quality: float
    quality_interval: Interval | None = None
    quality_difference_interval: Interval | None = None
    speedup: float
    speedup_interval: Interval | None = None
    latency_ms: float


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of Table 1 (Kim et al., NeurIPS 2023)."""

    row: str
    """Its name."""
    label: str
    found: bool
    """False where nothing was measured or chosen."""
    settings: Settings
    validation: TableEntry | None = None
    test: TableEntry | None = None
    large_calls_per_token: float | None = None
    """On test where it was measured there."""
    margin: float | None = None
    """Points that the choice may lose; None for a model alone."""
    test_status: TestStatus | None = None
    """What test says of the choice; None for a model alone, and where it was not measured there."""
    published: list[PublishedResult]


@dataclass(frozen=True, kw_only=True)
class PointFigures:
    """A point as the papers' tables show it, on validation."""

    arm: str
    settings: Settings
    quality: float
    quality_interval: Interval | None = None
    quality_difference: float | None = None
    quality_difference_interval: Interval | None = None
    speedup: float | None = None
    speedup_interval: Interval | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredTableRow:
    """A row that was measured here."""

    source: Literal["measured"] = "measured"
    label: str


@dataclass(frozen=True, kw_only=True)
class PublishedTableRow:
    """A row as a paper prints it."""

    source: Literal["published"] = "published"
    label: str
    dataset: str
    """As printed."""


@dataclass(frozen=True, kw_only=True)
class SharesRow(PointFigures, MeasuredTableRow):
    """Fallbacks and rollbacks (BiLD, Tables 3 and 4), both for each generated token."""

    method: str
    fallback_share: float | None = None
    rollback_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedSharesRow(PublishedTableRow):
    """BiLD, Tables 3 and 4, unaligned drafter."""

    arm: str = "unaligned"
    method: str
    configuration: str
    """In the paper's words."""
    quality: float
    speedup: float
    fallback_share: float | None = None
    """Table 4's "% Fallback"; the paper names no denominator."""
    rollback_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class CascadeRow(MeasuredTableRow):
    """A method's fastest point at vanilla's quality, and its best within vanilla's latency (SpecCascade, Table 2)."""

    variant: str
    """Method and rule."""
    arm: str
    timed: int
    """Timed settings of the variant."""
    at_quality: PointFigures | None = None
    at_latency: PointFigures | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedSpeedup:
    """Speed-up at the large model's quality."""

    speedup: float


@dataclass(frozen=True, kw_only=True)
class PublishedQuality:
    """Best quality within the large model's latency."""

    quality: float


@dataclass(frozen=True, kw_only=True)
class PublishedCascadeRow(PublishedTableRow):
    """SpecCascade, Table 2: T5-small with T5-large, T = 1, γ = 5."""

    variant: str
    at_quality: PublishedSpeedup
    at_latency: PublishedQuality


@dataclass(frozen=True, kw_only=True)
class AcceptanceRow(MeasuredTableRow):
    """α of what drafts, greedy and at temperature 1 (SD, Table 3)."""

    drafter: str
    acceptance_rate: float | None = None
    acceptance_interval: Interval | None = None
    sampled_acceptance_rate: float | None = None
    sampled_acceptance_rate_interval: Interval | None = None
    expected_oracle_tokens: float | None = None
    """Theory: tokens for each run of the large model if an oracle chose γ, 1 / (1 - α), greedy."""


@dataclass(frozen=True, kw_only=True)
class PublishedAcceptanceRow(PublishedTableRow):
    """SD, Table 3, of T5-XXL (11B)."""

    drafter: str
    acceptance_rate: float
    sampled_acceptance_rate: float


@dataclass(frozen=True, kw_only=True)
class SpeculativeRow(PointFigures, MeasuredTableRow):
    """Expected and measured speed-up of speculative decoding (SD, Tables 2 to 4)."""

    temperature: float
    draft_length: int
    acceptance_rate: float | None = None
    acceptance_interval: Interval | None = None
    cost_ratio: float | None = None
    expected_speedup: float | None = None
    """Theory: SD, Theorem 3.8, whose check of a draft costs one step of the large model."""
    check_cost: float | None = None
    """Measured: a check of γ + 1 positions, in steps of the large model."""
    expected_speedup_checked: float | None = None
    """Theory: the same theorem with `check_cost`."""
    expected_oracle_speedup: float | None = None
    """Theory: what no γ exceeds by that theorem (SD, section 3.5)."""
    tokens_per_large_call: float | None = None
    """Accepted length as engines count it: with the corrected or bonus token."""
    expected_operations: float | None = None
    """Theory: SD, Theorem 3.11."""


@dataclass(frozen=True, kw_only=True)
class PublishedSpeculativeRow(PublishedTableRow):
    """SD, Tables 2 and 4: T5 as drafter of T5-XXL (11B), batch 1 on one TPU v4."""

    drafter: str
    temperature: float
    draft_length: int
    acceptance_rate: float
    """α, which Table 3 repeats."""
    cost_ratio: float
    """c, Table 4."""
    speedup: float
    """As measured."""
    expected_speedup: float
    """By Theorem 3.8, as printed: theory."""


@dataclass(frozen=True, kw_only=True)
class LenienceRow(PointFigures, MeasuredTableRow):
    """Lenience (SD, Table 5 and appendix A.5)."""

    temperature: float
    draft_length: int
    lenience: float
    accepted_share: float | None = None
    """Of all drafted tokens."""
    checked_share: float | None = None
    """Of the tokens that were checked: a draft is checked up to its first rejected token."""
    acceptance_rate: float | None = None
    """α with lenience, over prefixes that the large model generates (SD, A.5)."""
    acceptance_interval: Interval | None = None
    expected_speedup: float | None = None
    """Theory: SD, Theorem 3.8, by that α."""


@dataclass(frozen=True, kw_only=True)
class PublishedLenienceRow(PublishedTableRow):
    """SD, appendix A.5 with Table 5: T5-small as drafter of T5-XXL on WMT En-De."""

    temperature: float
    lenience: float
    acceptance_rate: float
    """α as printed."""
    expected_speedup: float
    """Theory: what the appendix derives from α with c = 0.015 (greedy: γ = 8); nothing was timed."""
