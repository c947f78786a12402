"""Compare two results: what differs between them, and whether it is more than noise.

`python -m tasks.compare A B`: A and B are folders such as `results/translation`, paths of a summary.json, or
`REV:results/translation`, the result of a commit, tag or DVC experiment. Both must be measured in the same metric; changes
are those from A to B. A result of another format version is refused; one without a version is read as version 1.

The numbers are those of the two summaries. Points chosen on validation are compared on test where both results have test
numbers, because a choice is the luckiest of many points and its validation numbers flatter it.

*Noise* is the change that another sample of examples, timed once more, would cause. Every change comes with a standard error,
an interval of 1.96 standard errors to either side, and the p-value of no change, all by the normal approximation. The intervals
do not cover differences between whole runs, such as the load of the machine or the seed of the training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import JsonValue
from scipy.special import ndtri

from tasks.config import DEFAULT
from tasks.console import command_parser
from tasks.errors import InputError, stage
from tasks.evaluation.report.formatting import CHOICE_NAMES, NOTHING, aligned_columns, metric_name, number_text, settings_text
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import ModelAlone, SweepRow, TimedMeasurements, TimedPoint, TimedRow, read_rows
from tasks.evaluation.results.summary import Summary, read_summary
from tasks.evaluation.scoring.statistics import Interval, resampled_sums
from tasks.evaluation.settings import CHOSEN_ON, REPORTED_ON
from tasks.paths import ARMS

SUMMARY = "summary.json"
_FIX = "write it with this revision's tasks.report, from rows of this revision"
LEVEL = 0.05
"""The share of comparisons in which pure noise may be called more than noise."""
SAMPLES = 1000
_NORMAL = float(ndtri(0.975))
"""Standard errors on either side that hold 95 % of a normal distribution."""


# A change, and whether it is more than noise.


@dataclass(frozen=True)
class Change:
    """The change of a number: `second - first`, or `second / first` where it is a ratio."""

    value: float
    interval: Interval | None
    """95 %; None where a result has no interval, so that its error is unknown."""
    p: float | None
    """Probability of a change at least this large by chance alone."""


@dataclass(frozen=True)
class Estimate:
    """A number of one result."""

    value: float
    interval: Interval | None
    """95 %, where it was measured."""
    latencies: NDArray[np.float64] | None = None
    """Of a speed-up where its row is known, `[timed examples, 2]`: milliseconds of vanilla, and of the method."""


def difference(first: Estimate, second: Estimate) -> Change:
    """The change of a quality or a share, from the two standard errors as if the two results were independent.

    On one split they are not independent: an example that is hard for one is hard for the other. The true error is smaller, so
    this estimate is conservative.
    """
    ends = [one.interval for one in (first, second) if one.interval]
    error = math.hypot(*((high - low) / (2 * _NORMAL) for low, high in ends)) if len(ends) == 2 else None
    return _change(second.value - first.value, error)


def speedup_ratio(first: Estimate, second: Estimate, paired: bool, seed: int = 0, samples: int = SAMPLES) -> Change:
    """The change of a speed-up as a ratio; its error comes from the bootstrap over timed examples, on the logarithm.

    Args:
        first: The speed-up of the earlier result.
        second: That of the later result.
        paired: Whether both timed the same examples in the same order, so that they are resampled alike.
        seed: Of the resamples.
        samples: How many resamples; without latencies the error comes from the two intervals.
    """
    if first.latencies is not None and second.latencies is not None:
        seeds = (seed, seed if paired else seed + 1)
        sums = [
            resampled_sums(one, samples, draw) for one, draw in zip((first.latencies, second.latencies), seeds, strict=True)
        ]
        ours, theirs = (np.log(one[:, 0] / one[:, 1]) for one in sums)
        change = _change(math.log(second.value / first.value), float(np.std(theirs - ours, ddof=1)))
    else:
        change = difference(*map(_logarithm, (first, second)))
    interval = None if change.interval is None else (math.exp(change.interval[0]), math.exp(change.interval[1]))
    return Change(second.value / first.value, interval, change.p)


def _logarithm(number: Estimate) -> Estimate:
    ends = number.interval
    return Estimate(math.log(number.value), (math.log(ends[0]), math.log(ends[1])) if ends and ends[0] > 0 else None)


def _change(value: float, error: float | None) -> Change:
    """The change with the two-sided p-value; without any error, any change at all is significant."""
    if error is None:
        return Change(value, None, None)
    p = math.erfc(abs(value) / error / math.sqrt(2)) if error else float(math.isclose(value, 0, abs_tol=1e-9))
    return Change(value, (value - _NORMAL * error, value + _NORMAL * error), p)


def more_than_noise(changes: Sequence[Change]) -> list[bool]:
    """Which changes are more than noise, tested together (Holm, 1979).

    Of many numbers some leave their interval by chance. If nothing changed at all, the probability that any of them is reported
    is at most `LEVEL`; a single number is reported when its interval does not contain "no change".
    """
    ordered = sorted((change.p, index) for index, change in enumerate(changes) if change.p is not None)
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
    """What the sweeps recorded of their origin.

    Args:
        pairs: the `pair.json` of each arm's sweep.

    Returns:
        A fact that both sweeps share once, and one that they do not share under the name of each arm.
    """
    recorded, found = {arm: _facts_of(pair) for arm, pair in pairs.items()}, Facts()
    for name in dict.fromkeys(name for one in recorded.values() for name in one):
        values = {arm: one[name] for arm, one in recorded.items() if name in one}
        shared = len(set(values.values())) == 1
        found |= {name if shared else f"{name} ({arm})": value for arm, value in values.items()}
    return found


def _facts_of(pair: PairRecord) -> Facts:
    lineage = dict(pair.lineage or {})
    settings = dict(_flat(lineage.pop("settings", None) or {}))
    runtime = {} if pair.runtime is None else {"runtime": pair.runtime}
    return {**settings, **{name.removeprefix("input "): str(value) for name, value in lineage.items()}, **runtime}


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


def same_examples(first: PairRecord, second: PairRecord, split: str) -> bool:
    """Whether two sweeps are known to have timed the same examples of a split in the same order: the same data, seed and
    number of examples, by their `pair.json`."""
    sampled = _sampled_by(first, split)
    return sampled is not None and sampled == _sampled_by(second, split)


def _sampled_by(pair: PairRecord, split: str) -> list[str] | None:
    """What decides which examples are timed; None where a part of it was not recorded."""
    recorded = _facts_of(pair)
    data = next((value for name, value in recorded.items() if name.endswith(f"corpus/{split}.jsonl")), None)
    found = [data, *(recorded.get(f"sweep.{name}") for name in ("seed", "latency_examples"))]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


# Two results.


@dataclass(frozen=True)
class LoadedResult:
    """One result."""

    name: str
    """What the user called it."""
    summary: Summary
    rows: Mapping[str, Sequence[SweepRow]]
    """Of each drafter's sweep, for the latencies behind the speed-ups; empty where only the summary is available."""
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    """What `params.yaml` of the result's revision says of its task; empty for a folder, whose file may have changed since."""

    def chosen(self) -> dict[tuple[str, str, str], int | None]:
        """`{(arm, method, choice): index of the point, or None}`."""
        return {(one.arm, one.method, one.choice): one.point for one in self.summary.choices}

    def speedup(self, point: TimedPoint, split: str) -> Estimate:
        """The speed-up of a point on a split, with its latencies where there are rows."""
        shown, wanted = on_split(point, split) or point, (split, point.method, settings_text(point.settings))
        rows = [row for row in self.rows.get(point.arm, ()) if isinstance(row, TimedRow)]
        rows = [row for row in rows if (row.split, row.method, settings_text(row.settings)) == wanted]
        latencies = np.transpose([rows[-1].vanilla_latency_ms, rows[-1].latency_ms]) if rows else None
        return Estimate(shown.speedup, shown.speedup_interval, latencies)


def load_result(path: Path, name: str) -> LoadedResult:
    """Reads a result.

    Args:
        path: the folder of a task's results, or a summary alone.
        name: what the user calls it.

    Raises:
        InputError: there is no summary, or a file is damaged or of another version.
    """
    summary = path / SUMMARY if path.is_dir() else path
    if not summary.is_file():
        raise InputError(f"{name}: no {summary.name} there; write it by: python -m tasks.report --task NAME")
    files = {arm: Path("sweep", arm, "rows.jsonl") for arm in ARMS}
    rows = {arm: read_rows(summary.parent / file, _FIX, f"{name}: {file}") for arm, file in files.items()}
    return LoadedResult(name, read_summary(summary, f"{name}: {summary.name}", _FIX), rows)


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
        found = load_result(copy, text)
        return dataclasses.replace(found, params=_params(revision, found.summary.task, Path(folder)))


def _params(revision: str, task: str, folder: Path) -> dict[str, JsonValue]:
    """Return what params.yaml of a revision says of a task; empty where it has no such file or task."""
    copy = folder / DEFAULT.name
    with contextlib.suppress(InputError):
        _fetch(revision, str(DEFAULT), copy)
        tasks = (yaml.safe_load(copy.read_text(encoding="utf-8")) or {}).get("tasks") or {}
        return dict(tasks.get(task) or {})
    return {}


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


def on_split(measured: TimedPoint | ModelAlone | None, split: str) -> TimedMeasurements | None:
    """The measurements on that split, if there are any."""
    return measured if measured is None or split == CHOSEN_ON else measured.test


@dataclass(frozen=True)
class Number:
    """One number in both results, and its change."""

    name: str
    split: str
    unit: str
    """The change is a difference of `points` or of a `share`, or a ratio (`×`)."""
    first: float
    second: float
    first_interval: Interval | None
    second_interval: Interval | None
    change: Change
    paired: bool = False
    """Whether both were measured on examples known to be the same, and resampled alike."""
    settings: tuple[str, str] | None = None
    """The settings behind the two, where they differ."""
    more_than_noise: bool = False


@dataclass(frozen=True)
class Comparison:
    """Everything that differs between two results."""

    first: str
    """The user's name of the first result."""
    second: str
    metric: str
    differing: list[Difference]
    """What the results were made from, as far as it differs."""
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
        numbers=numbers,
        unmatched=list(_unmatched(first, second)),
        more_than_noise=[number.name for number in numbers if number.more_than_noise],
    )


def _facts(first: LoadedResult, second: LoadedResult) -> Iterator[Facts]:
    """What either was made from; the settings that a sweep does not record, of data and trainings, where known of both."""
    for one in (first, second):
        params = {name: value for name, value in one.params.items() if name != "sweep"}
        known = dict(_flat(params)) if first.params and second.params else Facts()
        yield known | facts({arm: one.summary.pairs.of(arm) for arm in ARMS})


def _numbers(first: LoadedResult, second: LoadedResult, seed: int) -> Iterator[Number]:
    metric = metric_name(first.summary.metric)
    for split in (CHOSEN_ON, REPORTED_ON):
        for key, label in {"large": "large", "small": "small", "small_aligned": "small, aligned"}.items():
            ours, theirs = (on_split(getattr(one.summary.vanilla, key), split) for one in (first, second))
            if ours and theirs:
                yield _difference(f"vanilla {label}: {metric}", split, [_quality(ours), _quality(theirs)])
    for arm in ARMS:
        for kind in ("greedy", "sampled"):
            rates = [one.summary.pairs.of(arm).acceptance_rate(sampled=kind == "sampled") for one in (first, second)]
            found = [Estimate(one.rate, one.interval) for one in rates if one is not None]
            if len(found) == 2 and len({one.temperature for one in rates if one is not None}) == 1:
                yield _difference(f"{arm}: acceptance rate, {kind}", CHOSEN_ON, found, "share")
    for label, before, after in _choices(first, second):
        split = REPORTED_ON if before.test and after.test else CHOSEN_ON
        shown = settings_text(before.settings), settings_text(after.settings)
        for number in _point(label, split, (first, before), (second, after), seed):
            yield dataclasses.replace(number, settings=None if shown[0] == shown[1] else shown)


def _difference(name: str, split: str, both: Sequence[Estimate], unit: str = "points") -> Number:
    ours, theirs = both
    change = difference(ours, theirs)
    return Number(name, split, unit, ours.value, theirs.value, ours.interval, theirs.interval, change)


def _quality(measured: TimedMeasurements) -> Estimate:
    return Estimate(measured.quality, measured.quality_interval)


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
    entries = [on_split(one, split) or one for one in (before, after)]
    metric = metric_name(first.summary.metric)
    yield _difference(f"{label}: {metric}", split, [_quality(one) for one in entries])
    bases = [on_split(one.summary.vanilla.large, split) for one in (first, second)]
    losses = [
        Estimate(one.quality - base.quality, one.quality_difference_interval)
        for one, base in zip(entries, bases, strict=True)
        if base is not None and one.quality_difference_interval
    ]
    if len(losses) == 2:
        yield _difference(f"{label}: {metric} minus vanilla's", split, losses)
    speeds = first.speedup(before, split), second.speedup(after, split)
    lengths = {None if one.latencies is None else len(one.latencies) for one in speeds}
    first_pair, second_pair = (one.summary.pairs.of(before.arm) for one in (first, second))
    paired = same_examples(first_pair, second_pair, split) and len(lengths) == 1 and None not in lengths
    number = _difference(f"{label}: speed-up", split, speeds, "×")
    yield dataclasses.replace(number, change=speedup_ratio(*speeds, paired, seed), paired=paired)


def _unmatched(first: LoadedResult, second: LoadedResult) -> Iterator[str]:
    """What is chosen in one result and not in the other."""
    chosen = [first.chosen(), second.chosen()]
    for arm, method, choice in dict.fromkeys([*chosen[0], *chosen[1]]):
        points = [one.get((arm, method, choice)) for one in chosen]
        if (points[0] is None) != (points[1] is None):
            yield f"{method} {arm}, {CHOICE_NAMES[choice]}: only {'A' if points[1] is None else 'B'} has such a point"


# For a terminal, and for programs.

_HASH = 12
_SMALLEST_P = 0.001


def as_text(comparison: Comparison) -> str:
    """The comparison for a terminal; the last line is the conclusion."""
    sections = [f"A  {comparison.first}\nB  {comparison.second}"]
    if comparison.differing:
        shortened = [[name, *map(_short, values)] for name, *values in comparison.differing]
        heading = "settings, data (md5), code, hardware and versions"
        sections.append(_section(heading, aligned_columns([["", "A", "B"], *shortened])))
    if comparison.unmatched:
        sections.append(_section("choices", comparison.unmatched))
    heading = "numbers (B - A, or B / A of speed-ups; 95 %)"
    sections.append(_section(heading, [*aligned_columns(list(_table(comparison.numbers))), *_notes(comparison.numbers)]))
    return "\n\n".join([*sections, conclusion(comparison)])


def conclusion(comparison: Comparison) -> str:
    """One line: what changed by more than noise."""
    found = [number for number in comparison.numbers if number.more_than_noise]
    unjudged = sum(number.change.p is None for number in comparison.numbers)
    rest = f" (not compared, since they have no interval: {unjudged} of {len(comparison.numbers)} numbers)" if unjudged else ""
    if not found:
        return f"nothing that is more than noise{rest}"
    names = [f"{number.name} ({number.split}) {_change_text(number)}" for number in found]
    return f"more than noise: {'; '.join(names)}{rest}"


def _table(numbers: Sequence[Number]) -> Iterator[list[str]]:
    yield ["", "split", "A", "B", "change", "p", ""]
    for number in numbers:
        p = number.change.p
        yield [
            number.name + ("" if number.settings is None else " *"),
            number.split,
            _value(number.first, number.first_interval, number.unit),
            _value(number.second, number.second_interval, number.unit),
            _change_text(number),
            NOTHING if p is None else f"< {_SMALLEST_P}" if p < _SMALLEST_P else f"{p:.3f}",
            "more than noise" if number.more_than_noise else "",
        ]


def _notes(numbers: Sequence[Number]) -> Iterator[str]:
    """What the table leaves out: other settings behind a choice, and how the errors were estimated."""
    changed = {number.name.partition(":")[0]: number.settings for number in numbers if number.settings is not None}
    yield from (f"* {name}: {before} -> {after}" for name, (before, after) in changed.items())
    timed = [number for number in numbers if number.unit == "×"]
    if timed:
        paired = sum(number.paired for number in timed)
        yield (
            f"speed-ups: bootstrap over timed examples, {paired} of {len(timed)} paired (known to be the same examples in the "
            "same order)"
        )
    yield "qualities: as of independent samples of examples, which is cautious where both results hold the same split"
    yield f"more than noise: at 5 % over all {len(numbers)} numbers together (Holm)"


def _value(value: float | None, interval: Interval | None, unit: str) -> str:
    return "" if value is None else number_text(value, interval, unit="×" if unit == "×" else "")


def _change_text(number: Number) -> str:
    value, interval = number.change.value, number.change.interval
    return number_text(value, interval, digits=3, unit="×") if number.unit == "×" else number_text(value, interval, sign="+")


def _short(value: str) -> str:
    """A hash by its first characters, which are enough to distinguish two."""
    name = value.removesuffix(".dir")
    return name[:_HASH] if len(name) >= 32 and all(letter in "0123456789abcdef" for letter in name) else value


def _section(heading: str, lines: Sequence[str]) -> str:
    return "\n".join([heading, *(f"  {line}" for line in lines)])


def main() -> None:
    """Reads both results and prints the comparison."""
    parser = command_parser(__doc__)
    parser.add_argument("first", metavar="A", help="the earlier result")
    parser.add_argument("second", metavar="B", help="the later result")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    arguments = parser.parse_args()
    comparison = compare(open_result(arguments.first), open_result(arguments.second))
    values = dataclasses.asdict(comparison)
    print(json.dumps(values, ensure_ascii=False, indent=2) if arguments.json else as_text(comparison))


if __name__ == "__main__":
    with stage():
        main()
