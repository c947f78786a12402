"""From points to rows: what is there stays, what is new is measured, appended and told of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tasks.evaluation.rows import Row, RowFile
from tasks.evaluation.sweeping.costs import Costs
from tasks.evaluation.sweeping.point_evaluator import PointEvaluator
from tasks.evaluation.sweeping.points import VANILLA, Outputs, Split, SweepPoint


@dataclass
class RowWriter:
    """Makes the rows of one sweep."""

    evaluator: PointEvaluator
    rows: RowFile
    labels: Row
    """The task and the drafter."""
    finished: Callable[[Row], object] = id
    """Told of each row once it is there."""
    quiet: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    """Entered while something is timed."""
    costs: Costs | None = None

    def timed(self, point: SweepPoint, split: Split, why: str, known: tuple[Outputs, Row] | None = None) -> Row:
        """The row of a point with its latencies.

        A method that runs out of memory or meets broken logits costs its own row, not the sweep.

        Args:
            point: What to time.
            split: On which examples.
            why: The reason, for the row.
            known: Its outputs and what the row says of them, where it was replayed; else it is decoded.
        """
        found = self._found(point, split)
        if found is not None and "speedup" in found:
            return self._finish(found)
        try:
            if known is None:
                outputs = self.evaluator.vanilla(split) if point == VANILLA else self.evaluator.decoded(point, split)
                known = outputs, self.evaluator.assessed(outputs, split)
            with self.quiet():
                latency = self.evaluator.timed(point, known[0], split, self.costs)
        except RuntimeError as error:
            return self.failed(point, split, f"{type(error).__name__}: {error}")
        return self._append(point, split, {"why": why, **known[1], **latency})

    def untimed(self, point: SweepPoint, split: Split, assessed: Row) -> Row:
        """The row of a point whose outputs are known and that is not worth the clock; a new one where it says other things."""
        found = self._found(point, split)
        if found is not None and ("speedup" in found or all(found.get(name) == value for name, value in assessed.items())):
            return self._finish(found)
        return self._append(point, split, assessed)

    def failed(self, point: SweepPoint, split: Split, error: str) -> Row:
        """The row of a point that could not be measured: its error and no number."""
        return self._append(point, split, {"error": error})

    def _found(self, point: SweepPoint, split: Split) -> Row | None:
        return self.rows.find(split=split.name, **point.fields())

    def _append(self, point: SweepPoint, split: Split, measured: Row) -> Row:
        return self._finish(self.rows.append({**self.labels, **self.evaluator.fields(point, split), **measured}))

    def _finish(self, row: Row) -> Row:
        self.finished(row)
        return row
