"""The plan of a sweep: which replayed points to time.

It times points on or near the predicted frontier (one of several similar points), points that would be chosen, and a random
sample of the rest to measure the prediction error. Quality and counts are exact before anything is timed; only speed is
predicted. Each timed point refines the cost model (`Costs.fit_overheads`), so a plan proceeds step by step until every wanted
point is timed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.decoding.generation import Counts
from tasks.evaluation.frontier import TradeOff, resolution
from tasks.evaluation.results.pair import ErrorStatistics, PredictionError
from tasks.evaluation.selection.choosing import choose, keeps_quality
from tasks.evaluation.settings import CHOICES, MarginSettings
from tasks.evaluation.sweeping.costs import Costs


@dataclass(frozen=True)
class Candidate:
    """A replayed point that may be timed."""

    method: str
    quality: float
    by_example: Sequence[Counts]
    """Counts of the timed examples."""
    lower: float | None = None
    """Corrected lower bound of its quality difference to vanilla, in points; a point without one is never chosen."""
    rule: str = ""
    """Acceptance rule of a method that has several; rules share one overhead, but keep different tokens."""


class Plan:
    """Timed points, predicted speed-ups, and the points to time next."""

    def __init__(
        self,
        candidates: Mapping[int, Candidate],
        known: Sequence[TradeOff],
        costs: Costs,
        vanilla: Candidate,
        *,
        margins: MarginSettings,
        near: float,
        sample: int,
        seed: int,
        alone: tuple[Candidate, float] | None = None,
    ) -> None:
        """Begin with nothing timed.

        Args:
            candidates: By index.
            known: Measured baselines; a point that is no better than one of them is not timed.
            costs: The cost model, which is refitted as points are timed.
            vanilla: The large model alone.
            margins: What a choice may lose.
            near: Relative margin. A point is near the frontier if it would reach it when sped up by this fraction; of points
                whose speeds differ by less than it, and whose qualities by less than `frontier.resolution`, one is timed.
            sample: Number of random points of the rest to time.
            seed: Seed of the sample.
            alone: The small model alone and its measured speed-up, from which the cost model learns as well.
        """
        self.candidates = candidates
        self.timed: dict[int, float] = {}
        """Measured speed-ups by index."""
        self.predicted: dict[int, float] = {}
        """Speed-up predicted for each point just before it was timed."""
        self.why: dict[int, str] = {}
        """Why each point was timed: `anchor`, `choice`, `frontier` or `sample`."""
        self._known = known
        self._costs = costs
        self._vanilla = vanilla
        self._margins = margins
        self._near = near
        self._sample = sample
        self._alone = alone
        self._rng = random.Random(seed)  # noqa: S311 (a sample, not a secret)
        if alone is not None:
            self._fit()

    @property
    def vanilla_ms(self) -> float:
        """Predicted latency of the large model alone."""
        return self._costs.latency(self._vanilla.method, self._vanilla.by_example)

    def speedup(self, index: int) -> float:
        """Predicted speed-up of a candidate by the current cost model."""
        candidate = self.candidates[index]
        return self.vanilla_ms / self._costs.latency(candidate.method, candidate.by_example)

    def record(self, index: int, speedup: float | None, predicted: float | None = None) -> None:
        """Record a measured speed-up, and refit the overheads; a later round replaces it.

        Args:
            index: The point.
            speedup: None for a point that failed.
            predicted: Its prediction where an interrupted sweep has made it.
        """
        self.timed.pop(index, None)
        if predicted is not None:
            self.predicted[index] = predicted
        if speedup is not None:
            self.timed[index] = speedup
        self._fit()

    def predict(self, index: int) -> float:
        """Predict a point's speed-up just before it is timed, from all that was timed until then."""
        self.predicted[index] = self.speedup(index)
        return self.predicted[index]

    def _fit(self) -> None:
        timed = [(self.candidates[index], speedup) for index, speedup in self.timed.items()]
        timed += [] if self._alone is None else [self._alone]
        # The ratio to vanilla is fitted instead of milliseconds, since it stands when the machine slows down.
        self._costs.fit_overheads([(one.method, one.by_example, self.vanilla_ms / speedup) for one, speedup in timed])

    def next(self) -> list[int]:
        """The points to time now, with their reasons in `why`; empty when the plan is done."""
        wanted = self._anchors() or self._promising() or self._rest()
        for index, why in wanted.items():
            self.why[index] = why
            self.predicted[index] = self.speedup(index)
        return list(wanted)

    def _open(self) -> list[int]:
        return [index for index in self.candidates if index not in self.why]

    def _anchors(self) -> dict[int, str]:
        """For each method without a timed point, its best point by the cost of model runs alone."""
        seen = {self.candidates[index].method for index in self.why}
        points = self._points()
        found: dict[int, str] = {}
        for method in dict.fromkeys(self.candidates[index].method for index in self._open()):
            if method not in seen:
                own = [index for index in self._open() if self.candidates[index].method == method]
                good = self._choose(own, points, "one_point")
                best = max(own, key=lambda index: self.candidates[index].quality) if good is None else good
                found[best] = "anchor"
        return found

    def _points(self) -> dict[int, TradeOff]:
        """Quality and measured or predicted speed-up of every candidate; points that failed when timed are left out."""
        return {
            index: TradeOff(candidate.quality, self.timed.get(index) or self.speedup(index))
            for index, candidate in self.candidates.items()
            if index in self.timed or index not in self.why
        }

    def _promising(self) -> dict[int, str]:
        """Points on or near the frontier, and points that would be chosen."""
        points, waiting = self._points(), set(self._open())
        wanted: dict[int, str] = {}
        for own, choice in self._choices(points):
            index = self._choose(own, points, choice)
            # The fastest point of a method may be slower than vanilla, and then it is no choice worth timing.
            if index is not None and index in waiting and points[index].speedup * (1 + self._near) > 1:
                wanted[index] = "choice"
        represented = [points[index] for index in (*self.timed, *wanted)]
        # From the frontier inwards, so that points on the frontier represent those near it.
        for index in sorted(waiting - wanted.keys(), key=lambda index: points[index].speedup, reverse=True):
            if self._near_frontier(points[index], points) and not self._represented(points[index], represented):
                wanted[index] = "frontier"
                represented.append(points[index])
        return wanted

    def _choose(self, own: Sequence[int], points: Mapping[int, TradeOff], choice: str) -> int | None:
        """The one of these candidates that would be chosen, with measured or predicted speeds."""
        margin = self._margins.of(choice)
        kept = [keeps_quality(self.candidates[index].lower, margin) for index in own]
        position = choose([points[index] for index in own], kept)
        return None if position is None else own[position]

    def _choices(self, points: Mapping[int, TradeOff]) -> Iterator[tuple[list[int], str]]:
        """Indices to choose among and the choice: every choice for each method, no loss for each rule of a method."""
        methods: dict[str, list[int]] = {}
        rules: dict[tuple[str, str], list[int]] = {}
        for index in points:
            one = self.candidates[index]
            methods.setdefault(one.method, []).append(index)
            rules.setdefault((one.method, one.rule), []).append(index)
        for own in methods.values():
            yield from ((own, choice) for choice in CHOICES)
        yield from ((own, "no_loss") for own in rules.values())

    def _near_frontier(self, point: TradeOff, points: Mapping[int, TradeOff]) -> bool:
        """Whether no point of at least this quality is faster by more than the margin `near`."""
        reach = point.speedup * (1 + self._near)
        return not any(other.quality >= point.quality and other.speedup > reach for other in (*points.values(), *self._known))

    def _represented(self, point: TradeOff, represented: Sequence[TradeOff]) -> bool:
        """Whether a timed point has the same quality and speed within the resolution of a choice."""
        quality = point.quality - resolution(point.quality, self._vanilla.quality)
        speedup = point.speedup / (1 + self._near)
        return any(other.quality >= quality and other.speedup >= speedup for other in represented)

    def _rest(self) -> dict[int, str]:
        """A random sample of the remaining points, drawn once."""
        if "sample" in self.why.values():
            return {}
        left = self._open()
        return dict.fromkeys(self._rng.sample(left, min(self._sample, len(left))), "sample")


def prediction_error(plan: Plan) -> PredictionError:
    """Relative errors of the predicted speed-ups by the reason for timing; None for no such point."""
    errors = {index: plan.predicted[index] / speedup - 1 for index, speedup in plan.timed.items() if index in plan.predicted}
    sample = [error for index, error in errors.items() if plan.why[index] == "sample"]
    frontier = [error for index, error in errors.items() if plan.why[index] not in ("anchor", "sample")]
    return PredictionError(sample=_statistics(sample), frontier=_statistics(frontier), all=_statistics(list(errors.values())))


def _statistics(errors: Sequence[float]) -> ErrorStatistics | None:
    if not errors:
        return None
    sizes = [abs(error) for error in errors]
    return ErrorStatistics(points=len(errors), mean=sum(sizes) / len(sizes), worst=max(sizes), bias=sum(errors) / len(errors))
