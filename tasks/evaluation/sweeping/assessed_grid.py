"""A replayed grid with the quality of its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.decoding.generation import Counts
from tasks.decoding.settings import ORACLES
from tasks.evaluation.results.rows import Outcome
from tasks.evaluation.sweeping.grid import SweepPoint
from tasks.evaluation.sweeping.outputs import Split
from tasks.evaluation.sweeping.planning import Candidate
from tasks.evaluation.sweeping.replaying import ReplayedGrid


@dataclass
class AssessedGrid:
    """A replayed grid with the quality of its points, by the index of a point in it."""

    points: Sequence[SweepPoint]
    replayed: ReplayedGrid
    outcomes: dict[int, Outcome]
    """Of the replayed points."""
    duplicate_of: dict[int, int]
    """Points that behave like an earlier one, and the index of that one."""

    def candidates(self, metric: str, split: Split) -> dict[int, Candidate]:
        """Points that may be timed: one of each behaviour, and no oracle, since only an oracle's outputs matter."""
        return {
            index: self._candidate(index, self.outcomes[index].quality[metric], outputs.timed(split))
            for index, outputs in self.replayed.outputs.items()
            if index not in self.duplicate_of and self.points[index].method not in ORACLES
        }

    def _candidate(self, index: int, quality: float, by_example: Sequence[Counts]) -> Candidate:
        point, bounds = self.points[index], self.outcomes[index].difference_bounds
        lower = None if bounds is None else bounds.lower
        return Candidate(point.method, quality, by_example, lower, getattr(point.settings, "rule", ""))

    def not_replayed(self) -> list[SweepPoint]:
        """Points that have to be decoded."""
        done = self.replayed.outputs.keys() | self.replayed.errors.keys()
        return [point for index, point in enumerate(self.points) if index not in done]
