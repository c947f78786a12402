"""The summary of a task: `summary.json`, which figures, tables, the page and `tasks.compare` read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tasks.decoding.method import LOOK_UPS, SamplingSettings
from tasks.evaluation.results import rows as records
from tasks.evaluation.results.codec import Settings, Source, decode, encode, read, text_of
from tasks.evaluation.results.pair import AcceptanceRate, NullTest, PairRecord
from tasks.evaluation.results.rows import TimedPoint
from tasks.evaluation.scoring.statistics import Interval, status_of
from tasks.evaluation.settings import CHOICES, CHOSEN_ON, REPORTED_ON, Experiment, MarginSettings
from tasks.models.settings import TrainingRecord

TableRow = dict[str, Any]
"""A row of Table 1 (`report.tables.table_rows`): its name, label and settings, its numbers on each split, what test says."""
Finding = Literal["helps", "hurts", "open"]


@dataclass(frozen=True, kw_only=True)
class ArmPoint:
    """The point that the sweep of one drafter chooses for a purpose, measured on test; vanilla where it chooses none."""

    purpose: str
    """A key of `report.tables.PURPOSES`."""
    settings: Settings | None = None
    """None for vanilla, whose speed-up is 1 and whose quality difference is 0."""
    speedup: float = 1.0
    speedup_interval: Interval | None = None
    quality_difference: float = 0.0
    quality_difference_interval: Interval | None = None
    margin: float | None = None
    """Points that the choice may lose; None for vanilla."""
    test: records.TestStatus | None = None
    """What test says of the choice; None for vanilla."""
    mean_accepted_length: float | None = None
    """Drafted tokens kept in each call of the large model; None for vanilla."""
    counts: records.DecodingCounts = field(default_factory=lambda: records.DecodingCounts(tokens=0))
    """Over all `examples` of test; nothing for vanilla, and in older records."""
    examples: int | None = None


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """The drafter of one arm and seed."""

    arm: str
    seed: int
    training: TrainingRecord | None = None
    agreement: AcceptanceRate | None = None
    """α of greedy decoding on validation: the share of the large model's tokens that are the drafter's argmax."""
    alpha: AcceptanceRate | None = None
    """α at temperature 1."""
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
    clock: AlignmentEffect | None = None
    """The same by the clock, from the settings that were timed, both arms in turn."""
    null_test: NullTest | None = None
    """Whether the clock takes equal models for equal; None where no two arms were timed in several rounds."""
    choices: list[AlignmentEffect]
    """At equal proven quality on validation, by purpose: each drafter at its cheapest proven setting, by counts."""
    costs: CostModel


@dataclass(frozen=True, kw_only=True)
class TemperaturePoints:
    """One arm's points at one temperature; all differences and speed-ups are from vanilla at the same temperature."""

    arm: str
    temperature: float
    vanilla_quality: float
    """Of the large model alone at this temperature, in points."""
    points: list[Annotated[TimedPoint | records.UntimedPoint, Field(discriminator="timed")]]
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


ALL_METHODS = "all"
"""In place of a method's name: all methods together."""
_DIGITS = 6
_NESTED = Source("summary", "this is an error of tasks.report")


@dataclass(frozen=True, kw_only=True)
class VanillaModels:
    """The models alone: large and small of the unaligned sweep, and the aligned small model."""

    large: records.ModelAlone
    small: records.ModelAlone | None = None
    small_aligned: records.ModelAlone | None = None

    def small_models(self) -> list[tuple[str, records.ModelAlone]]:
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
    test: records.TestStatus | None = None
    """What the test split says of it."""
    passed_over: list[PassedOver] = field(default_factory=list)
    """Faster choices that the test split spoke against, the fastest first."""
    headline: str = ""
    """One line: gain, cost, processor, and what a lossless choice gives."""
    text: str
    """One paragraph: what to deploy, then what test and validation say of it."""
    warnings: list[str] = field(default_factory=list)
    """What the stages warned of that made these results."""
    basis: dict[str, str] = field(default_factory=dict)
    """What it rests on in short lines by name: texts and models, measurement, seeds."""
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
    experiment: Experiment = field(default_factory=Experiment)
    corpus: str = ""
    """What the texts are, in words; empty in older records."""
    split: str
    """The split that points, frontiers and choices are of: validation."""
    signature: str | None = None
    """How BLEU or ROUGE was computed."""
    vanilla: VanillaModels
    points: list[Annotated[TimedPoint | records.UntimedPoint, Field(discriminator="timed")]]
    """Both sweeps' settings, unaligned first, baselines left out."""
    choices: list[records.Choice]
    margins: MarginSettings = field(default_factory=MarginSettings)
    """What a choice may lose, and how sure that has to be."""
    alignment: Alignment | None = None
    """What alignment gives, by counts; None where no cost model or no outputs were kept."""
    pareto: list[ParetoFront]
    pairs: dict[str, PairRecord]
    """What each arm's sweep of the first seed recorded of its pair."""
    arms: list[ArmResult] = field(default_factory=list)
    """The drafters of both arms and all seeds."""
    failed: list[records.FailedRow]
    definitions: dict[str, str]
    """What each number is, by its key."""
    tables: dict[str, list[dict[str, Any]]]
    """Rows of the papers' other tables by name, measured ones first; see `report.paper_tables`."""
    recommendation: Annotated[Recommendation, Field(alias="verdict")]
    table: list[TableRow]
    """Table 1."""
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

    def index_of(self, point: records.OperatingPoint) -> int:
        """The index of one of the points, by identity: two settings may measure the same."""
        return next(index for index, one in enumerate(self.points) if one is point)

    def chosen_points(self) -> Iterator[tuple[records.Choice, TimedPoint]]:
        """The choices that found a point, in order."""
        yield from ((one, self.timed_point(one.point)) for one in self.choices if one.point is not None)

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
    return text_of(summary, _DIGITS)


def read_summary(path: Path, name: str, fix: str) -> Summary:
    """Reads a `summary.json`.

    Args:
        path: The file.
        name: What the user calls the result.
        fix: What the user does about a damaged file, as an imperative clause.

    Raises:
        InputError: the file is damaged or of another version.
    """
    return read(Summary, path, Source(name, fix))


# What figures, tables and the recommendation ask of a summary's points: which is chosen, fastest, measured where. A point
# without times has exact quality and counts and a predicted latency; it is never chosen and lies on no frontier.

Sweeps = Mapping[str, Sequence[records.SweepRow]]
"""The rows of both sweeps by arm."""


def test_status(test: records.TimedMeasurements | None, margin: float) -> records.TestStatus | None:
    """What the test split says of a point that may lose `margin` points; None where it was not measured there."""
    if test is None:
        return None
    bounds, speedup = test.difference_bounds, test.speedup_interval
    return records.TestStatus(
        quality=None if bounds is None else status_of((bounds.lower, bounds.upper), -margin),
        speed=None if speedup is None else status_of(speedup, 1.0),
    )


def sweep_command(task: str) -> str:
    """The command that makes the rows of a task's sweeps."""
    return f"python -m tasks.sweep --task {task}"


def is_faster(measured: records.TimedMeasurements) -> bool:
    """Faster than vanilla beyond the noise of its timing: the whole interval of the speed-up lies above 1."""
    interval = measured.speedup_interval
    return (interval[0] if interval else measured.speedup) > 1.0


def reported(point: TimedPoint) -> tuple[records.TimedMeasurements, str]:
    """The measurements to report of a point, and their split: test where it was measured there, else validation."""
    return (point.test, REPORTED_ON) if point.test else (point, CHOSEN_ON)


def fastest(points: Iterable[TimedPoint]) -> TimedPoint | None:
    """The fastest of these points; of equally fast ones the better, then the first."""
    return max(points, key=lambda point: (point.speedup, point.quality), default=None)


def chosen(summary: Summary, choice: str, arm: str | None = None) -> list[TimedPoint]:
    """The points of all methods, or of an arm's, that were chosen for one of `CHOICES`, in the order of the points."""
    found = {one.point for one in summary.choices if one.choice == choice and arm in (None, one.arm)}
    return [summary.timed_point(index) for index in range(len(summary.points)) if index in found]


def fastest_lossless(summary: Summary) -> TimedPoint | None:
    """The fastest timed point that beats vanilla and gives its exact output; beam search gives another search's output."""
    lossless = (point for point in summary.timed_points() if point.lossless and "beam" not in point.method)
    return fastest(filter(is_faster, lossless))


def fastest_choice(summary: Summary, arm: str) -> tuple[str, TimedPoint] | None:
    """An arm's fastest chosen point, and what it was chosen for: no loss or, where nothing was, one point of loss."""
    found = ((choice, fastest(chosen(summary, choice, arm))) for choice in CHOICES)
    return next(((choice, point) for choice, point in found if point is not None), None)


def reported_row(point: records.OperatingPoint, sweeps: Sweeps) -> records.TimedRow | None:
    """The timed row that is reported for a point: of the test split, else of the validation split; the last one counts."""
    wanted = _key(point, point.settings)
    rows = (row for row in sweeps[point.arm] if isinstance(row, records.TimedRow) and _key(row, row.settings) == wanted)
    by_split = {row.split: row for row in rows}
    return by_split.get(REPORTED_ON) or by_split.get(CHOSEN_ON)


def _key(point: records.OperatingPoint | records.MeasuredRow, settings: Settings) -> str:
    """Identifies a point to the six digits that a summary keeps."""
    short = {name: f"{value:.6g}" if type(value) in (int, float) else value for name, value in settings.items()}
    return json.dumps([point.method, point.arm, short, repr(point.sampling)], sort_keys=True)


def temperature(point: records.OperatingPoint) -> float:
    """The temperature of sampling; 0 is greedy."""
    return 0.0 if point.sampling is None else point.sampling.temperature


def acceptance_of(pair: PairRecord, point: records.OperatingPoint) -> AcceptanceRate | None:
    """α of what drafts at a point, by the point's sampling and lenience; None where it was measured for others only."""
    used, lenience = point.sampling or SamplingSettings(), float(point.settings.get("lenience") or 1.0)
    found = pair.acceptance_rate(sampled=used.temperature > 0, drafter=point.drafter, lenience=lenience)
    # Greedy decoding takes the argmax, whatever is left out below it.
    untruncated = used.temperature == 0 or (not used.top_k and used.top_p == 1)
    return found if found is not None and untruncated and found.temperature == used.temperature else None


def cost_ratios_of(pair: PairRecord, point: records.OperatingPoint) -> tuple[float | None, float | None]:
    """c and ĉ of what drafts at a point: a run of it over one of the large model, in time and in weights of the decoder.

    Known for the small model; both are 0 without a model, as in the paper, else None.
    """
    if point.drafter in LOOK_UPS:
        return 0.0, 0.0
    if point.drafter != "small":
        return None, None
    return pair.cost_ratio, None if pair.sizes is None else pair.sizes.decoder_ratio
