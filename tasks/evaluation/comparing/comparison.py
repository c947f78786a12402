"""Two results of one metric side by side: what they were made from, their numbers, and which changes are more than noise.

The numbers are those of the two summaries. Points chosen on validation are compared on test where both results have test
numbers, because a choice is the luckiest of many points and its validation numbers flatter it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasks.errors import InputError
from tasks.evaluation.changes import Change, difference, error_of, frontier_changes, more_than_noise, speedup_ratio
from tasks.evaluation.comparing.loaded import LoadedResult, alike, on_split, point_key, same_timed
from tasks.evaluation.comparing.provenance import Difference, Facts, differing, facts, with_params
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.report.formatting import CHOICE_NAMES, metric_name, settings_text
from tasks.evaluation.results.rows import OperatingPoint, TimedMeasurements, TimedPoint
from tasks.evaluation.statistics import Interval
from tasks.paths import ARMS


@dataclass(frozen=True)
class Number:
    """One number in both results, and its change."""

    name: str
    split: str
    unit: str
    """The change is a difference of `points` or of a `share`, or a ratio (`×`)."""
    first: float | None
    second: float | None
    first_interval: Interval | None
    second_interval: Interval | None
    change: Change
    paired: bool = False
    """Whether both were measured on examples known to be the same, and resampled alike."""
    settings: tuple[str, str] | None = None
    """The settings behind the two, where they differ."""
    more_than_noise: bool = False


@dataclass(frozen=True)
class PointCounts:
    """How many points of a method stand in one result alone."""

    arm: str
    method: str
    only_first: int
    only_second: int


@dataclass(frozen=True)
class Comparison:
    """Everything that differs between two results."""

    first: str
    """The user's name of the first result."""
    second: str
    metric: str
    differing: dict[str, list[Difference]]
    """What the results were made from, by section."""
    points: list[PointCounts]
    numbers: list[Number]
    unmatched: list[str]
    """A sentence for each choice that only one result has."""
    more_than_noise: list[str]
    """Names of the numbers that changed by more than noise."""


def compare(first: LoadedResult, second: LoadedResult, seed: int = 0) -> Comparison:
    """Compares two results.

    Args:
        first: the earlier one, A.
        second: the later one, B; differences are B - A, ratios B / A.
        seed: of the resamples.

    Raises:
        InputError: the two are not measured in the same metric.
    """
    metrics = [one.summary.metric for one in (first, second)]
    if metrics[0] != metrics[1]:
        raise InputError(
            f"{first.name} is measured in {metrics[0]} and {second.name} in {metrics[1]}; compare results of one metric"
        )
    numbers = list(_numbers(first, second, seed))
    found = more_than_noise([number.change for number in numbers])
    numbers = [dataclasses.replace(number, more_than_noise=more) for number, more in zip(numbers, found, strict=True)]
    return Comparison(
        first=first.name,
        second=second.name,
        metric=metrics[0],
        differing=differing(*_facts(first, second)),
        points=_point_counts(first.summary.points, second.summary.points),
        numbers=numbers,
        unmatched=list(_unmatched(first, second)),
        more_than_noise=[number.name for number in numbers if number.more_than_noise],
    )


def _facts(first: LoadedResult, second: LoadedResult) -> Iterator[Facts]:
    """What either was made from; the settings of trainings only where they are known of both."""
    for one in (first, second):
        found = facts({name: one.summary.pairs.of(name) for name in ARMS})
        yield with_params(found, one.params) if first.params and second.params else found


def _numbers(first: LoadedResult, second: LoadedResult, seed: int) -> Iterator[Number]:
    for split in (CHOSEN_ON, REPORTED_ON):
        for key, label in {"large": "large", "small": "small", "small_aligned": "small, aligned"}.items():
            ours, theirs = (on_split(getattr(one.summary.vanilla, key), split) for one in (first, second))
            if ours and theirs:
                yield _quality(f"vanilla {label}", split, ours, theirs, first.summary.metric)
    for arm in ARMS:
        yield from _acceptance(first, second, arm)
    for label, before, after in _choices(first, second):
        split = REPORTED_ON if before.test and after.test else CHOSEN_ON
        yield from _point(label, split, (first, before), (second, after), seed)
    for arm in ARMS:
        yield from _frontiers(first, second, arm, seed)


def _quality(name: str, split: str, ours: TimedMeasurements, theirs: TimedMeasurements, metric: str) -> Number:
    first, second = ours.quality_interval, theirs.quality_interval
    change = difference(ours.quality, theirs.quality, error_of(first), error_of(second))
    return Number(f"{name}: {metric_name(metric)}", split, "points", ours.quality, theirs.quality, first, second, change)


def _acceptance(first: LoadedResult, second: LoadedResult, arm: str) -> Iterator[Number]:
    """The acceptance rate of speculative decoding with each drafter, at the same temperature."""
    for kind in ("greedy", "sampled"):
        ours, theirs = (one.summary.pairs.of(arm).acceptance_rate(sampled=kind == "sampled") for one in (first, second))
        if ours and theirs and ours.temperature == theirs.temperature:
            change = difference(ours.rate, theirs.rate, error_of(ours.interval), error_of(theirs.interval))
            name = f"{arm}: acceptance rate, {kind}"
            yield Number(name, CHOSEN_ON, "share", ours.rate, theirs.rate, ours.interval, theirs.interval, change)


def _choices(first: LoadedResult, second: LoadedResult) -> Iterator[tuple[str, TimedPoint, TimedPoint]]:
    """The points chosen in both, each pair of points once: both choices may be one point."""
    chosen = [first.chosen(), second.chosen()]
    together: dict[tuple[str, str, int, int], list[str]] = {}
    for (arm, method, choice), index in chosen[0].items():
        other = chosen[1].get((arm, method, choice))
        if index is not None and other is not None:
            together.setdefault((arm, method, index, other), []).append(CHOICE_NAMES[choice])
    for (arm, method, index, other), names in together.items():
        points = first.summary.timed_point(index), second.summary.timed_point(other)
        yield f"{method} {arm}, {' and '.join(names)}", *points


def _point(
    label: str, split: str, ours: tuple[LoadedResult, TimedPoint], theirs: tuple[LoadedResult, TimedPoint], seed: int
) -> Iterator[Number]:
    """Quality, quality beside the own vanilla, and speed-up of one chosen point."""
    (first, before), (second, after) = ours, theirs
    shown = [settings_text(one.settings) for one in (before, after)]
    settings = None if shown[0] == shown[1] else (shown[0], shown[1])
    entries = [on_split(one, split) or one for one in (before, after)]
    metric = first.summary.metric
    yield dataclasses.replace(_quality(label, split, entries[0], entries[1], metric), settings=settings)
    bases = [on_split(one.summary.vanilla.large, split) for one in (first, second)]
    losses = [one.quality - base.quality for one, base in zip(entries, bases, strict=True) if base is not None]
    ends = [one.quality_difference_interval for one in entries]
    if len(losses) == len(entries) and all(ends):
        change = difference(losses[0], losses[1], error_of(ends[0]), error_of(ends[1]))
        name = f"{label}: {metric_name(metric)} minus vanilla's"
        yield Number(name, split, "points", losses[0], losses[1], ends[0], ends[1], change, settings=settings)
    found = [first.measured(before, split), second.measured(after, split)]
    paired = same_timed(first, second, before.arm, split) and alike(found)
    ratio = speedup_ratio(found[0], found[1], paired, seed)
    if ratio is not None:
        ends = [one.speedup_interval for one in entries]
        speeds = found[0].speedup, found[1].speedup
        yield Number(f"{label}: speed-up", split, "×", *speeds, ends[0], ends[1], ratio, paired, settings)


def _frontiers(first: LoadedResult, second: LoadedResult, arm: str, seed: int) -> Iterator[Number]:
    """How far B's frontier of all methods lies above A's, on validation, each beside its own vanilla."""
    curves = [first.curve(arm), second.curve(arm)]
    paired = same_timed(first, second, arm, CHOSEN_ON) and alike([*curves[0].points, *curves[1].points])
    changes = frontier_changes(curves[0], curves[1], paired, seed)
    if changes is None:
        return
    names = ("quality minus vanilla's at equal latency", "speed-up at equal quality minus vanilla's")
    for name, unit, change in zip(names, ("points", "×"), changes, strict=True):
        yield Number(f"{arm} frontier: {name}", CHOSEN_ON, unit, None, None, None, None, change, paired)


def _point_counts(first: Sequence[OperatingPoint], second: Sequence[OperatingPoint]) -> list[PointCounts]:
    """For each drafter and method, how many points stand in one result alone."""
    ours, theirs = ({point_key(point) for point in points} for points in (first, second))
    counts = [Counter(key[:2] for key in points) for points in (ours - theirs, theirs - ours)]
    return [PointCounts(*key, counts[0][key], counts[1][key]) for key in sorted(counts[0] | counts[1])]


def _unmatched(first: LoadedResult, second: LoadedResult) -> Iterator[str]:
    """What is chosen in one result and not in the other."""
    chosen = [first.chosen(), second.chosen()]
    for arm, method, choice in dict.fromkeys([*chosen[0], *chosen[1]]):
        points = [one.get((arm, method, choice)) for one in chosen]
        if (points[0] is None) != (points[1] is None):
            yield f"{method} {arm}, {CHOICE_NAMES[choice]}: only {'A' if points[1] is None else 'B'} has such a point"
