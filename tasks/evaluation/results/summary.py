"""The summary of a task: `summary.json`, which figures, tables, the page and `tasks.compare` read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tasks.evaluation.results.codec import VERSION, Settings, Source, decode, encode, parse
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import (
    Choice,
    FailedRow,
    ModelAlone,
    OperatingPoint,
    TestStatus,
    TimedPoint,
    UntimedPoint,
    WorstOutput,
)
from tasks.evaluation.scoring.statistics import Interval
from tasks.evaluation.settings import MarginSettings
from tasks.models.settings import TrainingRecord

TableRow = dict[str, Any]
"""A row of Table 1 (`report.tables.table_rows`): its name, label and settings, its numbers on each split, what test says."""
Finding = Literal["helps", "hurts", "open"]


@dataclass(frozen=True, kw_only=True)
class ArmPoint:
    """The point that the sweep of one drafter chooses for a purpose, measured on test; vanilla where it chooses none."""

    purpose: str
    """A key of `report.summarize.PURPOSES`."""
    settings: Settings | None = None
    """None for vanilla, whose speed-up is 1 and whose quality difference is 0."""
    speedup: float = 1.0
    speedup_interval: Interval | None = None
    quality_difference: float = 0.0
    quality_difference_interval: Interval | None = None
    margin: float | None = None
    """Points that the choice may lose; None for vanilla."""
    test: TestStatus | None = None
    """What test says of the choice; None for vanilla."""


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """The drafter of one arm and seed."""

    arm: str
    seed: int
    training: TrainingRecord | None = None
    points: list[ArmPoint]


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Milliseconds of what is counted, the same for the drafters of both arms; model runs alone."""

    text_ms: float
    """Both encoders."""
    large_call_ms: float
    """A run of the large model, before its first position."""
    checked_position_ms: float
    drafter_step_ms: float


@dataclass(frozen=True, kw_only=True)
class AlignmentEffect:
    """Time of the unaligned drafters over that of the aligned ones, by counts and one cost model (`evaluation.effect`)."""

    purpose: str
    """A key of `report.tables.PURPOSES`, or `BILD_FRONTIERS`."""
    split: str
    texts: int
    by_seed: dict[int, float]
    ratio: float
    """Geometric mean over seeds."""
    interval: Interval | None = None
    """95 %, over seeds and texts; None with one seed, whose spread is not known."""
    finding: Finding
    """`helps` where the whole interval lies above 1, `hurts` where it lies below, otherwise `open`."""
    counts: dict[str, dict[str, float]]
    """By arm what a text takes on average: large calls, checked positions and drafter steps; empty for frontiers."""


BILD_FRONTIERS = "bild_frontiers"
"""The purpose of the effect at equal quality along BiLD's frontiers."""


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """What alignment gives."""

    counted: AlignmentEffect | None
    """At equal quality along BiLD's frontiers on validation; None where BiLD was not swept with both arms."""
    choices: list[AlignmentEffect]
    """At what each sweep chose, on test, by purpose."""
    costs: CostModel


@dataclass(frozen=True, kw_only=True)
class TemperaturePoints:
    """One arm's points at one temperature; all differences and speed-ups are from vanilla at the same temperature."""

    arm: str
    temperature: float
    vanilla_quality: float
    """Of the large model alone at this temperature, in points."""
    points: list[Annotated[TimedPoint | UntimedPoint, Field(discriminator="timed")]]
    """None of them is chosen."""


@dataclass(frozen=True, kw_only=True)
class NamedTestSet:
    """One test set: Table 1 with this set in place of test, and what alignment gives on it."""

    name: str
    split: str
    """Its split: `test` for the main one, on which everything else of the report is measured, or `test.NAME`."""
    examples: int | None = None
    table: list[TableRow]
    """`test` and `test_status` of a row are of this set; without published numbers but for the main one."""
    effects: list[AlignmentEffect]
    """Aligned drafters over unaligned ones, over all seeds."""


@dataclass(frozen=True, kw_only=True)
class PointOutputs:
    """The worst outputs of a chosen point on one split."""

    point: int
    """Index into the summary's points."""
    split: str
    worst: list[WorstOutput]


ALL_METHODS = "all"
"""In place of a method's name: all methods together."""
_DIGITS = 6
_NESTED = Source("summary", "this is an error of tasks.report")


@dataclass(frozen=True, kw_only=True)
class VanillaModels:
    """The models alone: large and small of the unaligned sweep, and the aligned small model."""

    large: ModelAlone
    small: ModelAlone | None = None
    small_aligned: ModelAlone | None = None

    def small_models(self) -> list[tuple[str, ModelAlone]]:
        """The small models that were measured, each with its arm."""
        both = (("unaligned", self.small), ("aligned", self.small_aligned))
        return [(arm, model) for arm, model in both if model is not None]


@dataclass(frozen=True, kw_only=True)
class ParetoFront:
    """The timed points of one method, or of all, that no other beats."""

    arm: str
    method: str
    """A method's name or `ALL_METHODS`."""
    points: list[int]
    """Indices into the summary's points, the fastest first."""


@dataclass(frozen=True, kw_only=True)
class SweptPairs:
    """`pair.json` of each sweep; None where a sweep left none."""

    unaligned: PairRecord | None = None
    aligned: PairRecord | None = None

    def of(self, arm: str) -> PairRecord:
        """The record of an arm's sweep; one that knows nothing where it left none."""
        return (self.aligned if arm == "aligned" else self.unaligned) or PairRecord()


@dataclass(frozen=True, kw_only=True)
class PassedOver:
    """A choice that is not recommended although it is faster on validation."""

    point: int
    """Index into the summary's points."""
    choice: str
    """One of `CHOICES`."""
    reason: str
    """What the test split says of it."""


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Which operating point to deploy."""

    point: int | None = None
    """Index into the summary's points; None for vanilla large."""
    choice: str | None = None
    """What the point was chosen for, one of `CHOICES`; None for vanilla, and for a lossless point that no choice names."""
    test: TestStatus | None = None
    """What the test split says of it."""
    passed_over: list[PassedOver] = field(default_factory=list)
    """Faster choices that the test split spoke against, the fastest first."""
    headline: str = ""
    """One line: gain, cost, processor, and what a lossless choice gives."""
    text: str
    """One paragraph: what to deploy, then what test and validation say of it."""
    basis: dict[str, str] = field(default_factory=dict)
    """What it rests on in short lines by name: texts and models, measurement, seeds, outputs."""
    evidence: list[str] = field(default_factory=list)
    """A sentence for each thing that the choice was compared with."""
    changes: list[str]
    """A sentence for each thing that would change the choice."""
    against: list[str] = field(default_factory=list)
    """What makes any speed-up over this large model worthless, a clause each; then nothing is recommended."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All of `summary.json`."""

    task: str
    metric: str
    dataset: str = "none"
    """The public data set whose published numbers compare with these (`corpus.dataset`)."""
    corpus: str = ""
    """What the texts are, in words; empty in older records."""
    split: str
    """The split that points, frontiers and choices are of: validation."""
    signature: str | None = None
    """How BLEU or ROUGE was computed."""
    chrf_signature: str | None = None
    """How chrF was computed."""
    vanilla: VanillaModels
    points: list[Annotated[TimedPoint | UntimedPoint, Field(discriminator="timed")]]
    """Both sweeps' settings, unaligned first, baselines left out."""
    choices: list[Choice]
    margins: MarginSettings = field(default_factory=MarginSettings)
    """What a choice may lose, and how sure that has to be."""
    alignment: Alignment | None = None
    """What alignment gives, by counts; None where no cost model or no outputs were kept."""
    pareto: list[ParetoFront]
    pairs: SweptPairs
    arms: list[ArmResult] = field(default_factory=list)
    """The drafters of both arms and all seeds."""
    worst: list[PointOutputs] = field(default_factory=list)
    """Of the chosen points, an entry for each split."""
    failed: list[FailedRow]
    definitions: dict[str, str]
    """What each number is, by its key."""
    tables: dict[str, list[dict[str, Any]]]
    """Rows of the papers' other tables by name, measured ones first; see `report.paper_tables`."""
    recommendation: Annotated[Recommendation, Field(alias="verdict")]
    table: list[TableRow]
    """Table 1."""
    over_bild: list[dict[str, Any]] = field(default_factory=list)
    """Every other method against BiLD, chosen alike (`report.summarize.over_bild`)."""
    temperatures: list[TemperaturePoints] = field(default_factory=list)
    """The grid at further temperatures, by arm."""
    test_sets: list[NamedTestSet] = field(default_factory=list)
    """Where the test sets have names: the main one first."""

    def timed_points(self, arm: str | None = None, method: str | None = None) -> list[TimedPoint]:
        """The points that were timed; of an arm, or of a method, where given."""
        return [
            point
            for point in self.points
            if isinstance(point, TimedPoint) and arm in (None, point.arm) and method in (None, point.method)
        ]

    def timed_point(self, index: int) -> TimedPoint:
        """The point of that index, which choices and frontiers refer to: such a point was timed."""
        point = self.points[index]
        assert isinstance(point, TimedPoint)  # noqa: S101 (`choose` and `frontier` see timed points only)
        return point

    def index_of(self, point: OperatingPoint) -> int:
        """The index of one of the points, by identity: two settings may measure the same."""
        return next(index for index, one in enumerate(self.points) if one is point)

    def chosen_points(self) -> Iterator[tuple[Choice, TimedPoint]]:
        """The choices that found a point, in order."""
        for choice in self.choices:
            if choice.point is not None:
                yield choice, self.timed_point(choice.point)

    @property
    def recommended(self) -> TimedPoint | None:
        """The point to deploy; None for vanilla large."""
        return None if self.recommendation.point is None else self.timed_point(self.recommendation.point)

    def front(self, arm: str, method: str = ALL_METHODS) -> list[TimedPoint]:
        """The points of a frontier, the fastest first; empty where nothing was timed."""
        found = (one for one in self.pareto if (one.arm, one.method) == (arm, method))
        return [self.timed_point(index) for one in found for index in one.points]


def rounded(summary: Summary) -> Summary:
    """The summary as it is read back from disk: floats to six significant digits."""
    return decode(Summary, encode(summary, digits=_DIGITS), _NESTED)


def summary_json(summary: Summary) -> str:
    """The text of `summary.json`."""
    values = {"version": VERSION, **encode(summary, digits=_DIGITS)}
    return json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def read_summary(path: Path, name: str, fix: str) -> Summary:
    """Reads a `summary.json`.

    Args:
        path: The file.
        name: What the user calls the result.
        fix: What the user does about a damaged file, as an imperative clause.

    Raises:
        InputError: the file is damaged or of another version.
    """
    source = Source(name, fix)
    return decode(Summary, parse(path.read_text(encoding="utf-8", errors="replace"), source), source)
