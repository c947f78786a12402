"""Write the rows of a sweep: appended after each round of a point, reported with all its rounds, failed one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tasks.evaluation.results.codec import Settings, joined
from tasks.evaluation.results.files import HypothesisFile, SweepRowFile, point_key
from tasks.evaluation.results.rows import FailedRow, MeasuredRow, Outcome, Prediction, RowHeader, SweepRow, TimedRow
from tasks.evaluation.sweep.grid import VANILLA, SweepPoint
from tasks.evaluation.sweep.plan import Costs
from tasks.evaluation.sweep.point import PointEvaluator, is_vanillas_output
from tasks.evaluation.sweep.replay import Outputs, Split


@dataclass
class RowWriter:
    """Writes the rows of one sweep; a row that is in the file with all its rounds is not measured again."""

    evaluator: PointEvaluator
    rows: SweepRowFile
    task: str
    arm: str
    on_row: Callable[[SweepRow], object] = id
    """Called with each finished row."""
    costs: Costs | None = None
    """Of the parts of decoding; None in a sweep that does not plan."""
    _known: dict[tuple[str, SweepPoint], tuple[Outputs, Outcome]] = field(default_factory=dict, init=False, repr=False)
    """Of points that were decoded and have rounds left."""
    _files: dict[str, HypothesisFile] = field(default_factory=dict, init=False, repr=False)
    """By split."""

    def write_timed(
        self,
        point: SweepPoint,
        split: Split,
        why: str,
        known: tuple[Outputs, Outcome] | None = None,
        predicted: Prediction | None = None,
    ) -> SweepRow:
        """One more round of a point, and its row so far; a `FailedRow` where it cannot be measured.

        A method that runs out of memory, meets broken logits or generates other tokens while timed fails its own row, not the
        sweep. A row is reported when it has all its rounds.

        Args:
            point: The point.
            split: The examples.
            why: The reason for timing it.
            known: Its outputs and their outcome, if it was replayed; otherwise it is decoded.
            predicted: The prediction that it is timed on.
        """
        found = self._find(point, split)
        earlier = found if isinstance(found, TimedRow) else None
        if earlier is not None:
            if self.finished(earlier):
                if known is None and not self._is_kept(point, split):
                    self.keep({point: self._decoded(point, split)[0]}, split)
                return self._report(self._with_bounds(earlier, known[1] if known else None))
            why, predicted = earlier.why or why, earlier.predicted or predicted
        try:
            outputs, outcome = known or self._decoded(point, split)
            timing = self.evaluator.time(point, outputs, split, self.costs, earlier)
        except RuntimeError as error:
            return self.write_failed(point, split, f"{type(error).__name__}: {error}")
        parts = self._header(point, split), outcome, timing, self.evaluator.details(outputs, split)
        row = self.rows.append(joined(TimedRow, *parts, why=why, predicted=predicted))
        if not self.finished(row):
            return row
        self._known.pop((split.name, point), None)
        return self._report(row)

    def finished(self, row: SweepRow) -> bool:
        """Whether a row needs no further round: it has all of them, or failed."""
        return not isinstance(row, TimedRow) or len(row.rounds or ()) >= self.evaluator.sweep.latency_rounds

    def is_finished(self, point: SweepPoint, split: Split) -> bool:
        """Whether the file has all rounds of a point, and its texts."""
        found = self._find(point, split)
        return isinstance(found, TimedRow) and self.finished(found) and self._is_kept(point, split)

    def write_untimed(
        self,
        point: SweepPoint,
        split: Split,
        outcome: Outcome,
        predicted: Prediction | None = None,
        same_as: Settings | None = None,
    ) -> SweepRow:
        """The row of a point that is not timed; a new row only where its values differ from those in the file."""
        found = self._find(point, split)
        row = joined(MeasuredRow, self._header(point, split), outcome, predicted=predicted, same_as=same_as)
        if isinstance(found, TimedRow):
            return self._report(self._with_bounds(found, outcome))
        if found is not None and _agrees(found, row):
            return self._report(found)
        return self._append(row)

    def write_failed(self, point: SweepPoint, split: Split, error: str) -> SweepRow:
        """The row of a point that could not be measured: its error and no number."""
        return self._append(joined(FailedRow, self._header(point, split), error=error))

    def _with_bounds(self, found: TimedRow, outcome: Outcome | None) -> TimedRow:
        """A row of the file, again where its bounds are of another grid: they depend on the points that are compared."""
        if outcome is None or outcome.difference_bounds == found.difference_bounds:
            return found
        row = self.rows.append(dataclasses.replace(found, difference_bounds=outcome.difference_bounds))
        assert isinstance(row, TimedRow)  # noqa: S101 (a row is appended as it is)
        return row

    def _decoded(self, point: SweepPoint, split: Split) -> tuple[Outputs, Outcome]:
        """The outputs of a point that was not replayed, decoded before its first round."""
        if (split.name, point) not in self._known:
            outputs = self.evaluator.vanilla(split) if point == VANILLA else self.evaluator.decoded(point, split)
            self.know(point, outputs, split)
        return self._known[split.name, point]

    def know(self, point: SweepPoint, outputs: Outputs, split: Split) -> None:
        """Take the outputs of a point that was decoded, for its rounds."""
        self._known[split.name, point] = outputs, self.evaluator.assess(outputs, split, lossless=is_vanillas_output(point))
        self.keep({point: outputs}, split)

    def keep(self, outputs: Mapping[SweepPoint, Outputs], split: Split) -> None:
        """Write the texts of points beside the rows, before anything says that the points are finished."""
        if outputs:
            texts = {_key(point): self.evaluator.texts(one) for point, one in outputs.items()}
            self._file(split).add(texts)

    def _is_kept(self, point: SweepPoint, split: Split) -> bool:
        return _key(point) in self._file(split)

    def _file(self, split: Split) -> HypothesisFile:
        if split.name not in self._files:
            path = self.rows.path.with_name(f"hypotheses-{split.name}.parquet")
            self._files[split.name] = HypothesisFile(path, self.rows.fingerprint)
        return self._files[split.name]

    def _header(self, point: SweepPoint, split: Split) -> RowHeader:
        return self.evaluator.header(point, split, self.task, self.arm)

    def _find(self, point: SweepPoint, split: Split) -> SweepRow | None:
        return self.rows.find(split.name, point.method, point.row_settings)

    def _append(self, row: SweepRow) -> SweepRow:
        return self._report(self.rows.append(row))

    def _report(self, row: SweepRow) -> SweepRow:
        self.on_row(row)
        return row


def _key(point: SweepPoint) -> tuple[str, str]:
    return point_key(point.method, point.row_settings)


def _agrees(found: SweepRow, row: MeasuredRow) -> bool:
    """Whether a row in the file holds every value of a new row."""
    new = {field.name: getattr(row, field.name) for field in dataclasses.fields(row) if field.name != "fingerprint"}
    return all(value is None or getattr(found, name, None) == value for name, value in new.items())
