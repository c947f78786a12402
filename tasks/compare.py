"""Compare two results: what differs between them, and whether it is more than noise.

`python -m tasks.compare A B`: A and B are folders such as `results/translation`, paths of a summary.json, or
`REV:results/translation`, the result of a commit, tag or DVC experiment. Both must be measured in the same metric; changes
are those from A to B. A result of another format version is refused; one without a version is read as version 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from pydantic import JsonValue

from tasks.config import DEFAULT
from tasks.console import command_parser
from tasks.errors import InputError, stage
from tasks.evaluation.comparison import Comparison, LoadedResult, Number, compare, load_result
from tasks.evaluation.report.formatting import NOTHING, aligned_columns, number_text
from tasks.evaluation.scoring.statistics import Interval

_HASH = 12
_SMALLEST_P = 0.001


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
    names = [f"{number.name} ({number.split}) {_change(number)}" for number in found]
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
            _change(number),
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


def _change(number: Number) -> str:
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
