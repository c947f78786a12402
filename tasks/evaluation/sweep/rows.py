"""Rows of a sweep: a point is evaluated, and its row is appended after each of its rounds.

Evaluated are quality and counts on the whole split; latency on a subset comes from the clock. A point that fails costs its own
row, not the sweep.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tasks.decoding.generation import Counts, Detokenise, Generation, pieces_by_proposer
from tasks.decoding.method import Pair, Request
from tasks.decoding.registry import METHODS, ORACLES
from tasks.evaluation.results import rows as records
from tasks.evaluation.results.codec import Settings, joined
from tasks.evaluation.results.files import WORK, HypothesisFile, KeptOutputs, SweepRowFile, point_key
from tasks.evaluation.results.rows import MeasuredRow, Outcome, SweepRow, TimedRow, Timing
from tasks.evaluation.scoring.quality import OutputCheck, Quality, check_outputs, score
from tasks.evaluation.scoring.statistics import combined, speedup_interval
from tasks.evaluation.selection import grid_bounds, point_bounds
from tasks.evaluation.settings import SweepSettings
from tasks.evaluation.sweep.clock import Lap
from tasks.evaluation.sweep.grid import VANILLA, SweepPoint, is_vanillas_output, runs_no_small_model
from tasks.evaluation.sweep.replay import Outputs, Split, decoded_outputs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


OfLarge = dict[tuple[str, SweepPoint], tuple[Outputs, Quality]]
"""What points write in which no small model runs, and its quality, by split and point."""


@dataclass
class PointEvaluator:
    """Evaluates points of one sweep with one pair of models."""

    open_pair: Callable[[], Pair]
    """Opens the models, which are closed while another process times."""
    tokenizer: PreTrainedTokenizerBase
    metric: str
    request: Request
    sweep: SweepSettings
    of_large: OfLarge = field(default_factory=dict)
    """Evaluators of one large model share it."""

    def __post_init__(self) -> None:
        """Begin with nothing known."""
        # Points of a grid generate the same output for most examples.
        self._text = functools.cache(self._detokenise)
        self._qualities: dict[tuple[str, int], Quality] = {}
        self._compared: dict[str, int] = {}

    @property
    def pair(self) -> Pair:
        """The models, opened anew where they were closed."""
        return self.open_pair()

    @property
    def decodes_together(self) -> bool:
        """Whether all points are decoded on one batch after the other (`GridReplay`): where a planned sweep draws tokens."""
        return self.sweep.plan and not self.request.sampling.greedy

    def decoded(self, point: SweepPoint, split: Split) -> Outputs:
        """The point's outputs on the whole split, decoded in batches."""
        return decoded_outputs(point, self.pair, split, self.request, self.sweep)

    def outputs(self, point: SweepPoint, split: Split, decoded: Outputs | None = None) -> Outputs:
        """The point's outputs on the whole split; of one without a small model they are decoded once for all drafters.

        Args:
            point: The point.
            split: The examples.
            decoded: The outputs, where another process has decoded them.
        """
        if not runs_no_small_model(point):
            return decoded or self.decoded(point, split)
        if not self.has_outputs(point, split):
            outputs = decoded or self.decoded(point, split)
            self.of_large[split.name, point] = outputs, self._quality(outputs, split)
        return self.of_large[split.name, point][0]

    def has_outputs(self, point: SweepPoint, split: Split) -> bool:
        """Whether another drafter's sweep has decoded a point that is the same for all."""
        return (split.name, point) in self.of_large

    def vanilla(self, split: Split) -> Outputs:
        """The outputs of the large model alone, decoded once for each split."""
        return self.outputs(VANILLA, split)

    def vanilla_quality(self, split: Split) -> Quality:
        """Their quality."""
        self.vanilla(split)
        return self.of_large[split.name, VANILLA][1]

    def check_vanilla(self, split: Split) -> OutputCheck | None:
        """How the large model's outputs compare with trivial baselines; None where nothing is generated."""
        texts = self.texts(self.vanilla(split))
        return check_outputs(texts, split.examples, self.metric, self.sweep.bootstrap_samples, self.sweep.seed)

    def compare(self, points: Sequence[SweepPoint], split: Split) -> None:
        """Announce the points among which a split chooses, so that their bounds are corrected for it."""
        self._compared[split.name] = sum(point.method not in ORACLES for point in points)

    def assess(self, outputs: Outputs, split: Split, *, lossless: bool = False) -> Outcome:
        """Quality, its difference from vanilla's, and counts; the lower bound of the difference has a share of the level.

        Args:
            outputs: of one point.
            split: the examples.
            lossless: whether they are vanilla's by construction (`is_vanillas_output`).
        """
        quality, vanilla = self._quality(outputs, split), self.vanilla_quality(split)
        compared = self._compared.get(split.name)
        sampled = not self.request.sampling.greedy
        bounds = point_bounds(quality, vanilla, self.sweep.margins, compared, lossless=lossless, sampled=sampled)
        return self._outcome(outputs, split, quality, bounds)

    def assess_grid(self, points: Sequence[SweepPoint], outputs: Mapping[int, Outputs], split: Split) -> dict[int, Outcome]:
        """What `assess` gives for the points of a grid that is planned, with lower bounds that hold for all of them at once."""
        vanilla = self.vanilla_quality(split)
        qualities = {index: self._quality(one, split) for index, one in outputs.items()}
        compared = {index: one for index, one in qualities.items() if points[index].method not in ORACLES}
        bounds = grid_bounds(
            *(compared, vanilla, self.sweep.margins),
            lossless={index for index in compared if is_vanillas_output(points[index])},
            sampled=not self.request.sampling.greedy,
            compared=self._compared.get(split.name, len(compared)),
            seed=self.sweep.seed,
        )
        return {index: self._outcome(outputs[index], split, quality, bounds.get(index)) for index, quality in qualities.items()}

    def _outcome(self, outputs: Outputs, split: Split, quality: Quality, bounds: records.DifferenceBounds | None) -> Outcome:
        return Outcome(
            how=outputs.how,
            quality=quality.scores,
            quality_interval=quality.interval,
            quality_difference_interval=quality.minus(self.vanilla_quality(split)),
            difference_bounds=bounds,
            signature=quality.signature,
            counts=counts_record(outputs.counts),
        )

    def texts(self, outputs: Outputs) -> list[str]:
        """The texts of outputs, by example; of the first sample, where there are several."""
        return [self._text(tuple(tokens)) for tokens in outputs.tokens]

    def timing(self, lap: Lap, split: Split, earlier: Timing | None = None) -> Timing:
        """One round of latencies beside vanilla, combined with the earlier rounds, and some texts."""
        rounds = [] if earlier is None else earlier.rounds or []
        own = records.TimedRound(latency_ms=_rounded(lap.latency_ms), vanilla_latency_ms=_rounded(lap.vanilla_latency_ms))
        rounds = [*rounds, own]
        method_ms, vanilla_ms = combined(rounds)
        mismatches = lap.mismatches
        if mismatches is not None:
            mismatches = max(mismatches, (earlier and earlier.timed_mismatches) or 0)
        return Timing(
            latency_ms=_rounded(method_ms),
            vanilla_latency_ms=_rounded(vanilla_ms),
            speedup=sum(vanilla_ms) / sum(method_ms),
            speedup_interval=speedup_interval(rounds, self.sweep.bootstrap_samples, self.sweep.seed),
            rounds=rounds,
            timed_mismatches=mismatches,
            shown=shown_examples(lap.generations, self.vanilla(split), split, self._detokenise),
        )

    def _quality(self, outputs: Outputs, split: Split) -> Quality:
        texts = (*self.texts(outputs), *(self._text(tuple(tokens)) for tokens in outputs.further))
        key = (split.name, hash(texts))
        if key not in self._qualities:
            references = [example.references for example in split.examples]
            self._qualities[key] = score(texts, references, self.metric, self.sweep.bootstrap_samples, self.sweep.seed)
        return self._qualities[key]

    def _detokenise(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


def _rounded(milliseconds: Sequence[float]) -> list[float]:
    """To a tenth of a microsecond, which is below the noise of any call."""
    return [round(one, 4) for one in milliseconds]


def counts_record(counts: Counts) -> records.DecodingCounts:
    """Counts as rows hold them: `kept` by `drafted/kept`."""
    kept = {f"{drafted}/{kept}": drafts for (drafted, kept), drafts in sorted(counts.kept.items())}
    return records.DecodingCounts(**{**vars(counts), "verified": dict(sorted(counts.verified.items())), "kept": kept})


def shown_examples(
    generations: Sequence[Generation], vanilla: Outputs, split: Split, text: Detokenise
) -> list[records.ShownExample]:
    """The first timed examples of a split.

    Args:
        generations: The point's, of the first timed examples.
        vanilla: The large model's outputs on the split.
        split: The examples.
        text: Makes a text of tokens.
    """
    return [
        records.ShownExample(
            source=split.examples[example].source,
            references=list(split.examples[example].references),
            vanilla=text(tuple(vanilla.tokens[example])),
            pieces=pieces_by_proposer(generation.tokens, generation.proposers, text),
            proposers=generation.proposers,
        )
        for example, generation in zip(split.timed, generations, strict=False)
    ]


# Writing rows.

Known = tuple[Outputs, Outcome]


@dataclass(frozen=True)
class Asked:
    """Why a point is timed, and what is known of it before."""

    why: str
    known: Known
    index: int | None = None
    """In the grid, of a point that the plan asked for."""
    predicted: records.Prediction | None = None


@dataclass
class RowWriter:
    """Writes the rows of one sweep; a row that is in the file with all its rounds is not measured again."""

    evaluator: PointEvaluator
    rows: SweepRowFile
    task: str
    arm: str
    on_row: Callable[[SweepRow], object] = id
    """Called with each finished row."""
    further_rounds: int = 0
    """That a timed point has besides `sweep.latency_rounds`."""
    _files: dict[str, HypothesisFile] = field(default_factory=dict, init=False, repr=False)
    """By split."""

    def resumed(self, point: SweepPoint, split: Split, outcome: Outcome | None = None) -> TimedRow | None:
        """The row of a point that was timed in an earlier process, reported if it has all its rounds.

        Args:
            point: The point.
            split: The examples.
            outcome: As this sweep finds it: its bounds depend on the points that are compared.
        """
        found = self._find(point, split)
        if not isinstance(found, TimedRow):
            return None
        row = self._with_bounds(found, outcome)
        if self.finished(row):
            self._report(row)
        return row

    def write_round(self, point: SweepPoint, split: Split, lap: Lap, asked: Asked) -> SweepRow:
        """One more round of a point, and its row so far, which is reported when it has all its rounds.

        Args:
            point: The point.
            split: The examples.
            lap: What the clock measured.
            asked: What the point is timed for.
        """
        earlier, why, predicted = self._find(point, split), asked.why, asked.predicted
        if not isinstance(earlier, TimedRow):
            earlier = None
        else:
            why, predicted = earlier.why or why, earlier.predicted or predicted
        parts = self._header(point, split), asked.known[1], self.evaluator.timing(lap, split, earlier)
        row = self.rows.append(joined(TimedRow, *parts, why=why, predicted=predicted))
        return self._report(row) if self.finished(row) else row

    def finished(self, row: SweepRow) -> bool:
        """Whether a row needs no further round: it has all of them, or failed."""
        wanted = self.evaluator.sweep.latency_rounds + self.further_rounds
        return not isinstance(row, TimedRow) or len(row.rounds or ()) >= wanted

    def is_finished(self, point: SweepPoint, split: Split) -> bool:
        """Whether the file has all rounds of a point, and its texts."""
        found = self._find(point, split)
        return isinstance(found, TimedRow) and self.finished(found) and _key(point) in self._file(split)

    def write_untimed(
        self,
        point: SweepPoint,
        split: Split,
        outcome: Outcome,
        predicted: records.Prediction | None = None,
        same_as: Settings | None = None,
    ) -> SweepRow:
        """The row of a point that is not timed; a new row only where its values differ from those in the file."""
        found = self._find(point, split)
        row = joined(MeasuredRow, self._header(point, split), outcome, predicted=predicted, same_as=same_as)
        if isinstance(found, TimedRow):
            return self._report(self._with_bounds(found, outcome))
        new = {field.name: getattr(row, field.name) for field in dataclasses.fields(row) if field.name != "fingerprint"}
        # A row in the file that holds every value of the new one.
        if found is not None and all(value is None or getattr(found, name, None) == value for name, value in new.items()):
            return self._report(found)
        return self._report(self.rows.append(row))

    def write_failed(self, point: SweepPoint, split: Split, error: str) -> SweepRow:
        """The row of a point that could not be measured: its error and no number."""
        return self._report(self.rows.append(joined(records.FailedRow, self._header(point, split), error=error)))

    def _with_bounds(self, found: TimedRow, outcome: Outcome | None) -> TimedRow:
        """A row of the file, again where its bounds are of another grid: they depend on the points that are compared."""
        if outcome is None or outcome.difference_bounds == found.difference_bounds:
            return found
        row = self.rows.append(dataclasses.replace(found, difference_bounds=outcome.difference_bounds))
        assert isinstance(row, TimedRow)  # noqa: S101 (a row is appended as it is)
        return row

    def keep(self, outputs: Mapping[SweepPoint, Outputs], split: Split) -> None:
        """Write the outputs of points beside the rows, before anything says that the points are finished."""
        kept = {_key(point): KeptOutputs(self.evaluator.texts(one), np.array(one.work)) for point, one in outputs.items()}
        self._file(split).add(kept)

    def drafter_steps(self, point: SweepPoint, split: Split) -> list[int]:
        """Steps of the drafter for each timed example, of a point whose outputs are kept."""
        steps: list[int] = self._file(split)[_key(point)].work[split.timed, WORK.index("drafter_steps")].tolist()
        return steps

    def _file(self, split: Split) -> HypothesisFile:
        if split.name not in self._files:
            path = self.rows.path.with_name(f"hypotheses-{split.name}.parquet")
            self._files[split.name] = HypothesisFile(path, self.rows.fingerprint)
        return self._files[split.name]

    def _header(self, point: SweepPoint, split: Split) -> records.RowHeader:
        return records.RowHeader(
            task=self.task,
            arm=self.arm,
            split=split.name,
            method=point.method,
            settings=point.plain_settings,
            lossless=METHODS[point.method].lossless,
            metric=self.evaluator.metric,
            examples=len(split.examples),
            sampling=self.evaluator.request.sampling,
        )

    def _find(self, point: SweepPoint, split: Split) -> SweepRow | None:
        return self.rows.find(split.name, point.method, point.plain_settings)

    def _report(self, row: SweepRow) -> SweepRow:
        self.on_row(row)
        return row


def _key(point: SweepPoint) -> tuple[str, str]:
    return point_key(point.method, point.plain_settings)
