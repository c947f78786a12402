"""Which points of a grid are worth the clock: those on or near the frontier that is predicted (of several alike, one), those
that would be chosen, and some of the rest, to see how good the predictions are.

Quality and counts are exact before anything is timed; only speed is predicted. Each timed point teaches the prediction
(`costs.Costs.learn`), so that it goes in rounds, until all that is wanted has been timed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.decoding.generation import Counts
from tasks.evaluation.frontier import TOLERANCES, Point, choose, resolution
from tasks.evaluation.sweeping.costs import Costs


@dataclass(frozen=True)
class Candidate:
    """A point that was replayed."""

    method: str
    quality: float
    by_example: Sequence[Counts]
    """Of the timed examples."""
    rule: str = ""
    """Of a method that has several: they cost the same between runs, and keep different tokens."""


class Plan:
    """What has been timed, what is predicted, and what is to be timed next."""

    def __init__(
        self,
        candidates: Mapping[int, Candidate],
        known: Sequence[Point],
        costs: Costs,
        vanilla: Candidate,
        *,
        near: float,
        sample: int,
        seed: int,
    ) -> None:
        """Begins with nothing timed.

        Args:
            candidates: By number.
            known: Baselines, measured: what is no better than one of them is not wanted.
            costs: Of the parts; it is taught as points are timed.
            vanilla: The large model alone.
            near: What would be on the frontier if it were faster by this share is near it; of points that are alike to within
                this share of speed, and to `frontier.resolution` of quality, one is timed.
            sample: Points of the rest to time.
            seed: Of the sample.
        """
        self.candidates = candidates
        self.timed: dict[int, float] = {}
        """Measured speed-ups by number."""
        self.predicted: dict[int, float] = {}
        """What was predicted of each point just before it was timed."""
        self.why: dict[int, str] = {}
        self._known = known
        self._costs = costs
        self._vanilla = vanilla
        self._near = near
        self._sample = sample
        self._chance = random.Random(seed)  # noqa: S311 (a sample, not a secret)

    @property
    def vanilla_ms(self) -> float:
        """The large model alone, in the clock of the costs."""
        return self._costs.latency(self._vanilla.method, self._vanilla.by_example)

    def speedup(self, number: int) -> float:
        """Predicted, by what is known now."""
        candidate = self.candidates[number]
        return self.vanilla_ms / self._costs.latency(candidate.method, candidate.by_example)

    def note(self, number: int, speedup: float) -> None:
        """Takes a measured speed-up, and learns from it what its method costs besides its runs."""
        method = self.candidates[number].method
        self.timed[number] = speedup
        duplicates_of = [other for other in self.timed if self.candidates[other].method == method]
        # By the ratio to vanilla, which stands when the machine slows down, and not by milliseconds.
        self._costs.learn(
            method, [(self.candidates[one].by_example, self.vanilla_ms / self.timed[one]) for one in duplicates_of]
        )

    def next(self) -> list[int]:
        """The points to be timed now, with the reason noted in `why`; none when the plan is done."""
        wanted = self._anchors() or self._promising() or self._rest()
        for number, why in wanted.items():
            self.why[number] = why
            self.predicted[number] = self.speedup(number)
        return list(wanted)

    def _open(self) -> list[int]:
        return [number for number in self.candidates if number not in self.why]

    def _anchors(self) -> dict[int, str]:
        """One point of each method that has none timed: its best by the runs alone."""
        seen = {self.candidates[number].method for number in self.why}
        points = self._points()
        found: dict[int, str] = {}
        for method in dict.fromkeys(self.candidates[number].method for number in self._open()):
            if method not in seen:
                own = [number for number in self._open() if self.candidates[number].method == method]
                good = choose([points[number] for number in own], self._vanilla.quality, TOLERANCES["one_point"])
                best = max(own, key=lambda number: self.candidates[number].quality) if good is None else own[good]
                found[best] = "anchor"
        return found

    def _points(self) -> dict[int, Point]:
        """Every candidate as far as it is known: measured, else predicted. What failed when it was timed is none."""
        return {
            number: Point(candidate.quality, self.timed.get(number) or self.speedup(number))
            for number, candidate in self.candidates.items()
            if number in self.timed or number not in self.why
        }

    def _promising(self) -> dict[int, str]:
        """What is on or near the frontier, and what each method would be chosen for."""
        points, waiting = self._points(), set(self._open())
        wanted: dict[int, str] = {}
        for own, tolerance in self._choices(points):
            index = choose([points[number] for number in own], self._vanilla.quality, tolerance)
            # What is slower than vanilla may be the fastest that a method has, and is no choice.
            if index is not None and own[index] in waiting and points[own[index]].speedup * (1 + self._near) > 1:
                wanted[own[index]] = "choice"
        represented = [points[number] for number in (*self.timed, *wanted)]
        # From the frontier inwards: what is on it speaks for what is near.
        for number in sorted(waiting - wanted.keys(), key=lambda number: points[number].speedup, reverse=True):
            if self._near_frontier(points[number], points) and not self._represented(points[number], represented):
                wanted[number] = "frontier"
                represented.append(points[number])
        return wanted

    def _choices(self, points: Mapping[int, Point]) -> Iterator[tuple[list[int], float]]:
        """Points among which one is chosen, and how much it may lose: of each method, and at no loss of each of its rules."""
        methods: dict[str, list[int]] = {}
        rules: dict[tuple[str, str], list[int]] = {}
        for number in points:
            one = self.candidates[number]
            methods.setdefault(one.method, []).append(number)
            rules.setdefault((one.method, one.rule), []).append(number)
        for own in methods.values():
            yield from ((own, tolerance) for tolerance in TOLERANCES.values())
        yield from ((own, TOLERANCES["no_loss"]) for own in rules.values())

    def _near_frontier(self, point: Point, points: Mapping[int, Point]) -> bool:
        """Whether nothing that is at least as good is faster by more than the share `near`."""
        reach = point.speedup * (1 + self._near)
        return not any(other.quality >= point.quality and other.speedup > reach for other in (*points.values(), *self._known))

    def _represented(self, point: Point, represented: Sequence[Point]) -> bool:
        """Whether one that is timed, or will be, is as good and as fast to within what a choice can tell apart."""
        quality = point.quality - resolution(point.quality, self._vanilla.quality)
        speedup = point.speedup / (1 + self._near)
        return any(other.quality >= quality and other.speedup >= speedup for other in represented)

    def _rest(self) -> dict[int, str]:
        """Some of what is left, once."""
        if "sample" in self.why.values():
            return {}
        left = self._open()
        return dict.fromkeys(self._chance.sample(left, min(self._sample, len(left))), "sample")


def prediction_error(plan: Plan) -> dict[str, dict[str, float]]:
    """How far predictions lay from what was measured next, as shares of the measured speed-up: of the sample, and of all.

    Anchors are left out: they were timed to learn what their method costs besides its runs.
    """
    errors = {
        number: abs(plan.predicted[number] / speedup - 1)
        for number, speedup in plan.timed.items()
        if number in plan.predicted and plan.why[number] != "anchor"
    }
    groups = {
        "sample": [error for number, error in errors.items() if plan.why[number] == "sample"],
        "all": list(errors.values()),
    }
    return {
        name: {"points": len(found), "mean": sum(found) / len(found), "worst": max(found)}
        for name, found in groups.items()
        if found
    }
