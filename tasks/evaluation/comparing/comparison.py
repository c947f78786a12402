"""Two results of one metric, side by side: what they were made from, their numbers, and which changes are more than noise.

The numbers are those of the two summaries. What was chosen on validation is compared on test where both results hold it there,
for a choice is the luckiest of many points and its validation numbers flatter it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.errors import InputError
from tasks.evaluation.changes import Change, difference, error_of, frontier_changes, more_than_noise, speedup_ratio
from tasks.evaluation.comparing.provenance import differing, facts
from tasks.evaluation.comparing.results import Entry, Result, alike, on_split, same_timed
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.report.table import CHOICE_WORDS, METRIC_NAMES, settings_text
from tasks.paths import DRAFTERS


@dataclass(frozen=True)
class Number:
    """One number in both results, and its change."""

    name: str
    split: str
    unit: str
    """The change is a difference of `points` or of a `share`, or a ratio (`×`)."""
    first: float | None
    second: float | None
    first_interval: Sequence[float] | None
    second_interval: Sequence[float] | None
    change: Change
    paired: bool = False
    """Whether both were measured on examples known to be the same, and resampled alike."""
    settings: tuple[str, str] | None = None
    """The settings behind the two, where they differ."""
    more_than_noise: bool = False


def compare(first: Result, second: Result, seed: int = 0) -> dict[str, Any]:
    """Everything that differs between two results, as plain JSON values.

    Args:
        first: what came before, A.
        second: what came after, B; differences are B - A, ratios B / A.
        seed: of the resamples.

    Raises:
        InputError: the two are not measured in the same metric.
    """
    metrics = [one.summary["metric"] for one in (first, second)]
    if metrics[0] != metrics[1]:
        raise InputError(
            f"{first.name} is measured in {metrics[0]} and {second.name} in {metrics[1]}; compare results of one metric"
        )
    numbers = list(_numbers(first, second, seed))
    found = more_than_noise([number.change for number in numbers])
    numbers = [dataclasses.replace(number, more_than_noise=more) for number, more in zip(numbers, found, strict=True)]
    return {
        "first": first.name,
        "second": second.name,
        "metric": metrics[0],
        "differing": differing(*(facts({drafter: one.pair(drafter) for drafter in DRAFTERS}) for one in (first, second))),
        "points": _point_differences(first.summary["points"], second.summary["points"]),
        "numbers": [dataclasses.asdict(number) for number in numbers],
        "unmatched": list(_unmatched(first, second)),
        "more_than_noise": [number.name for number in numbers if number.more_than_noise],
    }


def _numbers(first: Result, second: Result, seed: int) -> Iterator[Number]:
    for split in (CHOSEN_ON, REPORTED_ON):
        for key, label in {"large": "large", "small": "small", "small_aligned": "small, aligned"}.items():
            ours, theirs = (on_split(one.summary["vanilla"].get(key), split) for one in (first, second))
            if ours and theirs:
                yield _quality(f"vanilla {label}", split, ours, theirs, first.summary["metric"])
    for drafter in DRAFTERS:
        yield from _acceptance(first, second, drafter)
    for label, ours, theirs in _choices(first, second):
        split = REPORTED_ON if ours["test"] and theirs["test"] else CHOSEN_ON
        yield from _point(label, split, (first, ours), (second, theirs), seed)
    for drafter in DRAFTERS:
        yield from _frontiers(first, second, drafter, seed)


def _quality(name: str, split: str, ours: Entry, theirs: Entry, metric: str) -> Number:
    intervals = [one.get("quality_interval") for one in (ours, theirs)]
    change = difference(ours["quality"], theirs["quality"], error_of(intervals[0]), error_of(intervals[1]))
    name = f"{name}: {METRIC_NAMES[metric]}"
    return Number(name, split, "points", ours["quality"], theirs["quality"], intervals[0], intervals[1], change)


def _acceptance(first: Result, second: Result, drafter: str) -> Iterator[Number]:
    """The acceptance rate of speculative decoding with each drafter, at the same temperature."""
    rates = [((one.pair(drafter) or {}).get("acceptance") or {}) for one in (first, second)]
    for kind in ("greedy", "sampled"):
        ours, theirs = (one.get(kind) for one in rates)
        if ours and theirs and ours.get("temperature") == theirs.get("temperature"):
            intervals = [one.get("interval") for one in (ours, theirs)]
            change = difference(ours["rate"], theirs["rate"], error_of(intervals[0]), error_of(intervals[1]))
            name = f"{drafter}: acceptance rate, {kind}"
            yield Number(name, CHOSEN_ON, "share", ours["rate"], theirs["rate"], intervals[0], intervals[1], change)


def _choices(first: Result, second: Result) -> Iterator[tuple[str, Entry, Entry]]:
    """The points chosen in both, each pair of points once: both choices may be one point."""
    chosen = [first.chosen(), second.chosen()]
    together: dict[tuple[str, str, int, int], list[str]] = {}
    for (drafter, method, choice), place in chosen[0].items():
        other = chosen[1].get((drafter, method, choice))
        if place is not None and other is not None:
            together.setdefault((drafter, method, place, other), []).append(CHOICE_WORDS[choice])
    for (drafter, method, place, other), words in together.items():
        yield f"{method} {drafter}, {' and '.join(words)}", first.summary["points"][place], second.summary["points"][other]


def _point(label: str, split: str, ours: tuple[Result, Entry], theirs: tuple[Result, Entry], seed: int) -> Iterator[Number]:
    """Quality, quality beside the own vanilla, and speed-up of one chosen point."""
    (first, before), (second, after) = ours, theirs
    shown = [settings_text(one["settings"]) for one in (before, after)]
    settings = None if shown[0] == shown[1] else (shown[0], shown[1])
    entries = [on_split(one, split) or one for one in (before, after)]
    metric = first.summary["metric"]
    yield dataclasses.replace(_quality(label, split, entries[0], entries[1], metric), settings=settings)
    bases = [one.vanilla(split) for one in (first, second)]
    ends = [one.get("quality_difference_interval") for one in entries]
    losses = [one["quality"] - base["quality"] for one, base in zip(entries, bases, strict=True) if base is not None]
    if len(losses) == len(entries) and all(ends):
        change = difference(losses[0], losses[1], error_of(ends[0]), error_of(ends[1]))
        name = f"{label}: {METRIC_NAMES[metric]} minus vanilla's"
        yield Number(name, split, "points", losses[0], losses[1], ends[0], ends[1], change, settings=settings)
    found = [first.measured(before, split), second.measured(after, split)]
    paired = same_timed(first, second, before["drafter"], split) and alike(found)
    ratio = speedup_ratio(found[0], found[1], paired, seed)
    if ratio is not None:
        speeds = [one.speedup for one in found]
        ends = [one.get("speedup_interval") for one in entries]
        name = f"{label}: speed-up"
        yield Number(name, split, "×", speeds[0], speeds[1], ends[0], ends[1], ratio, paired, settings)


def _frontiers(first: Result, second: Result, drafter: str, seed: int) -> Iterator[Number]:
    """How far B's frontier of all methods lies above A's, on validation, each beside its own vanilla."""
    curves = [first.curve(drafter), second.curve(drafter)]
    if curves[0] is None or curves[1] is None:
        return
    paired = same_timed(first, second, drafter, CHOSEN_ON) and alike([*curves[0].points, *curves[1].points])
    changes = frontier_changes(curves[0], curves[1], paired, seed)
    if changes is None:
        return
    words = ("quality minus vanilla's at equal latency", "speed-up at equal quality minus vanilla's")
    for name, unit, change in zip(words, ("points", "×"), changes, strict=True):
        yield Number(f"{drafter} frontier: {name}", CHOSEN_ON, unit, None, None, None, None, change, paired)


def _point_differences(first: Sequence[Entry], second: Sequence[Entry]) -> list[dict[str, Any]]:
    """For each drafter and method, how many points stand in one result alone."""
    ours, theirs = (
        {(one["drafter"], one["method"], settings_text(one["settings"])) for one in points} for points in (first, second)
    )
    counts = [Counter(key[:2] for key in points) for points in (ours - theirs, theirs - ours)]
    return [
        {"drafter": key[0], "method": key[1], "only_first": counts[0][key], "only_second": counts[1][key]}
        for key in sorted(counts[0] | counts[1])
    ]


def _unmatched(first: Result, second: Result) -> Iterator[str]:
    """What is chosen in one result and not in the other."""
    chosen = [first.chosen(), second.chosen()]
    for drafter, method, choice in dict.fromkeys([*chosen[0], *chosen[1]]):
        places = [one.get((drafter, method, choice)) for one in chosen]
        if (places[0] is None) != (places[1] is None):
            yield f"{method} {drafter}, {CHOICE_WORDS[choice]}: only {'A' if places[1] is None else 'B'} has such a point"
