"""Compare two results: what differs between them, and whether it is more than noise.

`python -m tasks.compare A B`: A and B are folders such as `results/translation`, paths of a summary.json, or
`REV:results/translation`, the result of a commit, tag or DVC experiment. Both must be measured in the same metric; changes
are those from A to B. A result of another format version is refused; one without a version is read as version 1.

Qualities and acceptance rates are those of the two summaries. Points chosen on validation are compared on test where both
results have test numbers, because a choice is the luckiest of many points and its validation numbers flatter it.

Speed is compared by counts. The two results were timed in different processes, at other times or on other machines, and no
interval covers what that does to a clock. So the large calls, checked positions and drafter steps of a chosen point on every
text of test are turned into time by one cost model for both, which sees no faster processor or runtime. The speed-ups are
shown, each by its own clock, and not compared. `--early-exits FILE` draws the early exits of both in one figure, also each by
its own clock: BiLD and CALM take models that were trained otherwise, and so two tasks (docs/papers.md).

*Noise* is the change that another sample of texts would cause. Every change comes with a standard error, an interval of 1.96
standard errors to either side, and the p-value of no change, all by the normal approximation. The intervals do not cover
differences between whole runs, such as the seed of the training.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from tasks.console import add_json, aligned_columns, answer, command_parser, log
from tasks.decoding.method import LOOK_UPS
from tasks.errors import InputError, check_picture, stage
from tasks.evaluation.effect import milliseconds
from tasks.evaluation.report.formatting import CHOICE_NAMES, NOTHING, metric_name, number_text, settings_text
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.files import read_hypotheses
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import ModelAlone, TimedMeasurements, TimedPoint
from tasks.evaluation.results.summary import CostModel, Summary, read_summary
from tasks.evaluation.scoring.metrics import Floats
from tasks.evaluation.scoring.statistics import NORMAL, Interval, resampled_sums
from tasks.evaluation.settings import CHOSEN_ON, REPORTED_ON
from tasks.paths import ARMS, TaskPaths

_FIX = "write it with this revision's tasks.report, from rows of this revision"
LEVEL = 0.05
"""The share of comparisons in which pure noise may be called more than noise."""
SAMPLES = 1000


# A change, and whether it is more than noise.


@dataclass(frozen=True)
class Estimate:
    """A number of one result."""

    value: float
    interval: Interval | None = None
    """95 %, where it was measured."""


@dataclass(frozen=True)
class Change:
    """The change of a number: `second - first`, or `first / second` of times."""

    value: float
    interval: Interval | None
    """95 %; None where a result has no interval, so that its error is unknown."""
    p: float | None
    """Probability of a change at least this large by chance alone."""


def difference(first: Estimate, second: Estimate) -> Change:
    """The change of a quality or a share, from the two standard errors as if the two results were independent.

    On one split they are not independent: an example that is hard for one is hard for the other. The true error is smaller, so
    this estimate is conservative.
    """
    ends = [one.interval for one in (first, second) if one.interval]
    error = math.hypot(*((high - low) / (2 * NORMAL) for low, high in ends)) if len(ends) == 2 else None
    return _change(second.value - first.value, error)


def ratio_of_times(first: Floats, second: Floats, paired: bool, seed: int = 0, samples: int = SAMPLES) -> Change:
    """How many times as fast the second is; its error comes from the bootstrap over texts, on the logarithm.

    Args:
        first: Time of each text in the earlier result, `[texts]`.
        second: The same in the later one, of as many texts where they are paired.
        paired: Whether both decode the same texts in the same order, so that they are resampled alike.
        seed: Of the resamples.
        samples: How many resamples.
    """
    ratio = float(first.mean() / second.mean())
    seeds = (seed, seed if paired else seed + 1)
    logs = [np.log(resampled_sums(one[:, None], samples, draw)) for one, draw in zip((first, second), seeds, strict=True)]
    change = _change(math.log(ratio), float(np.std(logs[0] - logs[1], ddof=1)))
    interval = None if change.interval is None else (math.exp(change.interval[0]), math.exp(change.interval[1]))
    return Change(ratio, interval, change.p)


def _change(value: float, error: float | None) -> Change:
    """The change with the two-sided p-value; without any error, any change at all is significant."""
    if error is None:
        return Change(value, None, None)
    p = math.erfc(abs(value) / error / math.sqrt(2)) if error else float(math.isclose(value, 0, abs_tol=1e-9))
    return Change(value, (value - NORMAL * error, value + NORMAL * error), p)


def more_than_noise(changes: Sequence[Change | None]) -> list[bool]:
    """Which changes are more than noise, tested together (Holm, 1979).

    Of many numbers some leave their interval by chance. If nothing changed at all, the probability that any of them is reported
    is at most `LEVEL`; a single number is reported when its interval does not contain "no change".
    """
    ordered = sorted((change.p, index) for index, change in enumerate(changes) if change and change.p is not None)
    found = [False] * len(changes)
    for rank, (p, index) in enumerate(ordered):
        if p > LEVEL / (len(ordered) - rank):
            break
        found[index] = True
    return found


# What a result was made from.

NOT_RECORDED = "not recorded"

Facts = dict[str, str]
"""What a result was made from by name: settings, hashes of data, commit, hardware and versions."""
Difference = tuple[str, str, str]
"""A name, and its value in either result."""


def facts(pairs: Mapping[str, PairRecord]) -> Facts:
    """What the sweeps of both arms recorded of their origin; one stage ran them, so that they differ in their inputs alone."""
    found = Facts()
    for pair in pairs.values():
        lineage = dict(pair.lineage or {})
        found |= dict(_flat(lineage.pop("settings", None) or {}))
        found |= {name.removeprefix("input "): str(value) for name, value in lineage.items()}
        found |= {} if pair.runtime is None else {"runtime": pair.runtime}
    return found


def _flat(value: JsonValue, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and their values. Each entry of a list of mappings, a grid, is a name of its own: entries have no order."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        entries = Counter(json.dumps(item, sort_keys=True, ensure_ascii=False) for item in value)
        yield from ((f"{prefix} {entry}", "there" if times == 1 else f"{times} times") for entry, times in entries.items())
    elif prefix:
        yield prefix, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def differing(first: Facts, second: Facts) -> list[Difference]:
    """What differs between the origins of two results, in the order of the first one's record."""
    both = [(name, first.get(name, NOT_RECORDED), second.get(name, NOT_RECORDED)) for name in dict.fromkeys([*first, *second])]
    return [row for row in both if row[1] != row[2]]


# Two results.


@dataclass(frozen=True)
class LoadedResult:
    """One result."""

    name: str
    """What the user called it."""
    summary: Summary
    work: Mapping[tuple[str, str, str], NDArray[np.int32]] = field(default_factory=dict)
    """Counts of the points on each text of test, `[texts, 3]`, by `point_name`; empty where only the summary is available."""

    def work_of(self, point: TimedPoint) -> NDArray[np.int32] | None:
        """The counts of a point on each text of test, if there are any."""
        return self.work.get(point_name(point.arm, point.method, point.settings))

    def texts(self, arm: str) -> str:
        """The hash of the texts of test that an arm's sweep decoded; empty where it was not recorded."""
        return self.summary.pairs[arm].origin(f"input {TaskPaths(self.summary.task).split(REPORTED_ON)}")


def point_name(arm: str, method: str, settings: Settings) -> tuple[str, str, str]:
    """A point to the six digits that a summary keeps."""
    return arm, method, settings_text(settings)


def load_result(path: Path, name: str) -> LoadedResult:
    """Reads the results of a task in a folder, or a summary alone; `name` is what the user calls it.

    Raises:
        InputError: there is no summary, or it is damaged or of another version.
    """
    summary = path / "summary.json" if path.is_dir() else path
    if not summary.is_file():
        raise InputError(f"{name}: no {summary.name} there; write it by: python -m tasks.report --task NAME")
    work: dict[tuple[str, str, str], NDArray[np.int32]] = {}
    for arm in ARMS:
        outputs = summary.parent / "sweep" / arm / f"hypotheses-{REPORTED_ON}.parquet"
        try:
            kept = read_hypotheses(outputs) if outputs.is_file() else {}
        except InputError as error:  # everything but the speed is compared all the same
            log.warning("%s: %s", name, error)
        else:
            work |= {point_name(arm, method, json.loads(settings)): one.work for (method, settings), one in kept.items()}
    return LoadedResult(name, read_summary(summary, f"{name}: {summary.name}", _FIX), work)


def open_result(text: str) -> LoadedResult:
    """Reads a result from disk, or from a revision of this repository.

    Raises:
        InputError: there is no such result.
    """
    if Path(text).exists():
        return load_result(Path(text), text)
    revision, colon, path = text.partition(":")
    if not (colon and revision and path):
        raise InputError(f"{text}: no such file or folder; give a folder of results, a summary.json or REV:results/TASK")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / Path(path).name
        _fetch(revision, path, copy)
        return load_result(copy, text)


def _fetch(revision: str, path: str, copy: Path) -> None:
    """Copies a path of a revision: what git holds from git, what DVC holds from its cache or its remote."""
    try:
        from dvc.api import DVCFileSystem
        from dvc.exceptions import DvcException
    except ImportError:
        raise InputError(f"{revision}:{path} needs dvc, which is not installed; give a folder instead") from None
    try:
        DVCFileSystem(url=".", rev=revision).get(path, str(copy), recursive=True)
    except FileNotFoundError as error:
        raise InputError(f"{revision}:{path} is not there, or neither DVC's cache nor a remote holds it: {error}") from None
    except (DvcException, OSError) as error:
        raise InputError(f"{revision}:{path} cannot be read: {error}") from None


# The comparison.


@dataclass(frozen=True)
class Number:
    """One number in both results, and its change."""

    name: str
    split: str
    unit: Literal["points", "share", "ms", "×"]
    """Of milliseconds the change is a ratio, else a difference."""
    first: Estimate
    second: Estimate
    change: Change | None
    """None for speed-ups, which two clocks measured."""
    uncounted: str = ""
    """Of a speed-up: why the speed was not compared by counts; empty where it was."""
    paired: bool = False
    """Of milliseconds: whether both are of texts known to be the same, and resampled alike."""
    more_than_noise: bool = False


@dataclass(frozen=True)
class Comparison:
    """Everything that differs between two results."""

    first: str
    """The user's name of the first result."""
    second: str
    task: str
    """Of the second result."""
    metric: str
    costs: CostModel | None
    """What turns the counts of both into time: of the first result, or of the second where the first has none."""
    differing: list[Difference]
    """What the results were made from, as far as it differs."""
    numbers: list[Number]
    choices: list[str]
    """A line for each choice that only one result has, or that took other settings."""
    more_than_noise: list[str]
    """Names of the numbers that changed by more than noise."""


def compare(first: LoadedResult, second: LoadedResult, seed: int = 0) -> Comparison:
    """Compares two results.

    Args:
        first: the earlier one, A.
        second: the later one, B; differences are B - A, ratios of times A / B.
        seed: of the resamples.

    Raises:
        InputError: the two are not measured in the same metric.
    """
    metrics = [one.summary.metric for one in (first, second)]
    if metrics[0] != metrics[1]:
        fix = "compare results of one metric"
        raise InputError(f"{first.name} is measured in {metrics[0]} and {second.name} in {metrics[1]}; {fix}")
    costs = next((known.costs for one in (first, second) if (known := one.summary.alignment) is not None), None)
    chosen, choices = _choices(first, second)
    numbers = list(_of_models(first, second))
    for label, (before, after) in chosen.items():
        numbers += _of_choice(label, (first, before), (second, after), costs, seed)
        shown = settings_text(before.settings), settings_text(after.settings)
        choices += [f"{label}: {' -> '.join(shown)}"] if shown[0] != shown[1] else []
    found = more_than_noise([number.change for number in numbers])
    numbers = [dataclasses.replace(number, more_than_noise=more) for number, more in zip(numbers, found, strict=True)]
    return Comparison(
        first=first.name,
        second=second.name,
        task=second.summary.task,
        metric=metrics[0],
        costs=costs,
        differing=differing(facts(first.summary.pairs), facts(second.summary.pairs)),
        numbers=numbers,
        choices=choices,
        more_than_noise=[number.name for number in numbers if number.more_than_noise],
    )


def _of_models(first: LoadedResult, second: LoadedResult) -> Iterator[Number]:
    """Qualities of the models alone, and acceptance rates."""
    metric = metric_name(first.summary.metric)
    for split in (CHOSEN_ON, REPORTED_ON):
        for key, label in {"large": "large", "small": "small", "small_aligned": "small, aligned"}.items():
            models = [_on_split(getattr(one.summary.vanilla, key), split) for one in (first, second)]
            found = [_quality(one) for one in models if one is not None]
            if len(found) == 2:
                yield _difference(f"vanilla {label}: {metric}", split, found)
    for arm in ARMS:
        for kind in ("greedy", "sampled"):
            rates = [one.summary.pairs[arm].acceptance_rate(sampled=kind == "sampled") for one in (first, second)]
            found = [Estimate(one.rate, one.interval) for one in rates if one is not None]
            if len(found) == 2 and len({one.temperature for one in rates if one is not None}) == 1:
                yield _difference(f"{arm}: acceptance rate, {kind}", CHOSEN_ON, found, "share")


def _on_split(measured: ModelAlone | None, split: str) -> TimedMeasurements | None:
    return measured if measured is None or split == CHOSEN_ON else measured.test


def _quality(measured: TimedMeasurements) -> Estimate:
    return Estimate(measured.quality, measured.quality_interval)


def _difference(name: str, split: str, both: Sequence[Estimate], unit: Literal["points", "share"] = "points") -> Number:
    first, second = both
    return Number(name, split, unit, first, second, difference(first, second))


def _choices(first: LoadedResult, second: LoadedResult) -> tuple[dict[str, tuple[TimedPoint, TimedPoint]], list[str]]:
    """The points chosen in both by their label, once where both choices are one point; a line for each choice of only one."""
    chosen = [{(one.arm, one.method, one.choice): one.point for one in loaded.summary.choices} for loaded in (first, second)]
    together, single = dict[tuple[str, str, int, int], list[str]](), list[str]()
    for arm, method, choice in dict.fromkeys([*chosen[0], *chosen[1]]):
        ours, theirs = (one.get((arm, method, choice)) for one in chosen)
        if ours is not None and theirs is not None:
            together.setdefault((arm, method, ours, theirs), []).append(CHOICE_NAMES[choice])
        elif ours is not None or theirs is not None:
            single.append(f"{method} {arm}, {CHOICE_NAMES[choice]}: only {'A' if theirs is None else 'B'} has such a point")
    points = {
        f"{method} {arm}, {' and '.join(names)}": (first.summary.timed_point(ours), second.summary.timed_point(theirs))
        for (arm, method, ours, theirs), names in together.items()
    }
    return points, single


_Side = tuple[LoadedResult, TimedPoint]
"""A result, and its point of a choice."""


def _of_choice(label: str, ours: _Side, theirs: _Side, costs: CostModel | None, seed: int) -> Iterator[Number]:
    """Quality of a choice, quality beside the own vanilla, time by counts, and speed-ups."""
    points = ours[1], theirs[1]
    tests = [point.test for point in points if point.test is not None]
    split, measured = (REPORTED_ON, tests) if len(tests) == 2 else (CHOSEN_ON, points)
    metric = metric_name(ours[0].summary.metric)
    yield _difference(f"{label}: {metric}", split, [_quality(one) for one in measured])
    bases = [_on_split(one.summary.vanilla.large, split) for one, _ in (ours, theirs)]
    losses = [
        Estimate(one.quality - base.quality, one.quality_difference_interval)
        for one, base in zip(measured, bases, strict=True)
        if base is not None and one.quality_difference_interval
    ]
    if len(losses) == 2:
        yield _difference(f"{label}: {metric} minus vanilla's", split, losses)
    work = [found for one, point in (ours, theirs) if (found := one.work_of(point)) is not None]
    uncounted = _why_not(ours, theirs, costs)
    if costs is not None and not uncounted:
        times = [milliseconds(one, costs) for one in work]
        texts = [one.texts(point.arm) for one, point in (ours, theirs)]
        paired = texts[0] == texts[1] != "" and len(work[0]) == len(work[1])
        means = [Estimate(float(one.mean())) for one in times]
        change = ratio_of_times(times[0], times[1], paired, seed)
        yield Number(f"{label}: time of a text, by counts", REPORTED_ON, "ms", means[0], means[1], change, paired=paired)
    first, second = (Estimate(one.speedup, one.speedup_interval) for one in measured)
    yield Number(f"{label}: speed-up, by two clocks", split, "×", first, second, None, uncounted=uncounted)


def _why_not(ours: _Side, theirs: _Side, costs: CostModel | None) -> str:
    """Why the counts of two points are not compared; empty where they are."""
    both = {"A": ours, "B": theirs}
    lacking = [side for side, (one, point) in both.items() if one.work_of(point) is None]
    if lacking:
        return f"no counts of {REPORTED_ON} in {' and '.join(lacking)}"
    if costs is None:
        return "neither result has a cost model"
    sizes = [one.summary.pairs[point.arm].sizes for one, point in both.values()]
    if len({None if one is None else (one.small, one.large) for one in sizes}) > 1:
        return "models of other sizes have other costs"
    drafters = {point.drafter for _, point in both.values()}
    if not drafters <= {"small", *LOOK_UPS} or any(point.counts.layers for _, point in both.values()):
        return "what it runs is neither of the two whole models, and has no price"
    return ""


# For a terminal.

_HASH = 12
_SMALLEST_P = 0.001


def as_text(comparison: Comparison) -> str:
    """The comparison for a terminal; the last line is the conclusion."""
    sections = [f"A  {comparison.first}\nB  {comparison.second}"]
    if comparison.differing:
        shortened = [[name, *map(_short, values)] for name, *values in comparison.differing]
        heading = "settings, data (md5), code, hardware and versions"
        sections.append(_section(heading, aligned_columns([["", "A", "B"], *shortened])))
    if comparison.choices:
        sections.append(_section("choices", comparison.choices))
    heading = "numbers (B - A, or A / B of times; 95 %)"
    sections.append(_section(heading, [*aligned_columns(list(_table(comparison.numbers))), *_notes(comparison)]))
    return "\n\n".join([*sections, conclusion(comparison.numbers)])


def conclusion(numbers: Sequence[Number]) -> str:
    """One line: what changed by more than noise."""
    speeds = [number for number in numbers if number.change is None]
    without_interval = sum(number.change is not None and number.change.p is None for number in numbers)
    left = {
        f"of {len(numbers) - len(speeds)} numbers, without an interval": without_interval,
        f"of {len(speeds)} speeds, without counts": sum(number.uncounted != "" for number in speeds),
    }
    unjudged = [f"{count} {words}" for words, count in left.items() if count]
    rest = f" (not compared: {'; '.join(unjudged)})" if unjudged else ""
    names = [f"{number.name} ({number.split}) {_change_text(number)}" for number in numbers if number.more_than_noise]
    return (f"more than noise: {'; '.join(names)}" if names else "nothing that is more than noise") + rest


def _table(numbers: Sequence[Number]) -> Iterator[list[str]]:
    yield ["", "split", "A", "B", "change", "p", ""]
    for number in numbers:
        p = None if number.change is None else number.change.p
        unit = {"ms": " ms", "×": "×"}.get(number.unit, "")
        yield [
            number.name,
            number.split,
            *(number_text(one.value, one.interval, unit=unit) for one in (number.first, number.second)),
            _change_text(number),
            NOTHING if p is None else f"< {_SMALLEST_P}" if p < _SMALLEST_P else f"{p:.3f}",
            "more than noise" if number.more_than_noise else "",
        ]


def _change_text(number: Number) -> str:
    if number.change is None:
        return "not compared"
    if number.unit == "ms":
        return f"{number_text(number.change.value, number.change.interval, digits=3, unit='×')} as fast"
    return number_text(number.change.value, number.change.interval, sign="+")


def _notes(comparison: Comparison) -> Iterator[str]:
    """What the table leaves out: speeds without counts, and how errors were estimated."""
    numbers, costs = comparison.numbers, comparison.costs
    yield from (f"{one.name.partition(':')[0]}: speed is not judged: {one.uncounted}" for one in numbers if one.uncounted)
    timed = [number for number in numbers if number.unit == "ms"]
    if timed and costs is not None:
        prices = ", ".join(f"{name.removesuffix('_ms').replace('_', ' ')} {value:.3g}" for name, value in vars(costs).items())
        paired = f"{sum(number.paired for number in timed)} of {len(timed)} paired (known to be the same texts)"
        yield f"times by counts: in ms, for both alike, {prices}; bootstrap over texts, {paired}"
    if any(number.change is None for number in numbers):
        command = f"python -m tasks.promote --task {comparison.task}"
        yield f"speed-ups: each by the clock of its own process; {command} times two registered pairs in turn"
    yield "qualities: as of independent samples of examples, which is cautious where both results hold the same split"
    yield "more than noise: at 5 % over all numbers together (Holm)"


def _short(value: str) -> str:
    """A hash by its first characters, which are enough to distinguish two."""
    name = value.removesuffix(".dir")
    return name[:_HASH] if len(name) >= 32 and all(letter in "0123456789abcdef" for letter in name) else value


def _section(heading: str, lines: Sequence[str]) -> str:
    return "\n".join([heading, *(f"  {line}" for line in lines)])


def draw_early_exits(results: Sequence[LoadedResult], path: Path) -> None:
    """Writes the figure of the early exits of all results.

    Raises:
        InputError: no result has any.
    """
    from tasks.evaluation.report.charts import save
    from tasks.evaluation.report.figures import early_exits

    # Results of one task are told apart by what the user called them.
    tasks = {one.summary.task for one in results}
    found = early_exits({one.summary.task if len(tasks) > 1 else one.name: one.summary for one in results})
    if found is None:
        raise InputError("neither result has timed points of calm or of the drafter early_layer; sweep them")
    save(found, path)


def main() -> None:
    """Reads both results, prints the comparison, and draws the figure that was asked for."""
    parser = command_parser(__doc__)
    parser.add_argument("first", metavar="A", help="the earlier result")
    parser.add_argument("second", metavar="B", help="the later result")
    figure = "draw BiLD by early layers and CALM of both results in one figure, PNG or SVG by the name of the file"
    parser.add_argument("--early-exits", type=Path, metavar="FILE", help=figure)
    add_json(parser)
    arguments = parser.parse_args()
    check_picture("--early-exits", arguments.early_exits)
    results = open_result(arguments.first), open_result(arguments.second)
    comparison = compare(*results)
    if arguments.early_exits is not None:
        draw_early_exits(results, arguments.early_exits)
    answer(arguments, as_text(comparison), **dataclasses.asdict(comparison))


if __name__ == "__main__":
    with stage():
        main()
