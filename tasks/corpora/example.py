"""One example of a sequence-to-sequence corpus, and its JSONL form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import InputError

SPLITS = ("train", "validation", "test")
UNLABELLED = "unlabelled"
"""Sources without references, beside the splits: the large model writes what a drafter learns of them."""


@dataclass(frozen=True)
class Example:
    """A source text and its references; the first is the one a model trains on, and what is unlabelled has none."""

    source: str
    references: tuple[str, ...]


Corpus = dict[str, list[Example]]
"""A list of examples under each of the names in `SPLITS`, and under `UNLABELLED` where there are such."""


def write_jsonl(examples: Iterable[Example], path: Path) -> None:
    """Writes one `{"source": ..., "references": [...]}` a line, UTF-8."""
    with path.open("w", encoding="utf-8") as file:
        for example in examples:
            record = {"source": example.source, "references": list(example.references)}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def read_jsonl(path: Path) -> list[Example]:
    """Reads what `write_jsonl` wrote.

    Raises:
        InputError: the file is missing, or was not written by it.
    """
    return list(stream_jsonl(path))


def stream_jsonl(path: Path) -> Iterator[Example]:
    """The same, one example at a time."""
    try:
        # A line ends at a line feed alone: "universal" line ends would break a text at a carriage return.
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                yield _parse(line, f"{path}, line {number}")
    except FileNotFoundError:
        raise InputError(f"{path} is missing; run the stage that makes it (dvc repro)") from None


def _parse(line: str, place: str) -> Example:
    try:
        record = json.loads(line)
        return Example(record["source"], tuple(record["references"]))
    except (json.JSONDecodeError, KeyError, TypeError):
        raise InputError(f"{place}: not an example; run the stage that makes the file again") from None
