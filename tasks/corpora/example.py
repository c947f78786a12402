"""One example of a sequence-to-sequence corpus, and its JSONL format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import InputError, require_whole

SPLITS = ("train", "validation", "test")
UNLABELLED = "unlabelled"
"""The name of the sources without references, for which the large model generates the targets that drafters are trained on."""


@dataclass(frozen=True)
class Example:
    """A source text and its references. Models train on the first reference; unlabelled examples have none."""

    source: str
    references: tuple[str, ...]


Corpus = dict[str, list[Example]]
"""A list of examples for each name in `SPLITS`, for `test.NAME` of each further test set, and for `UNLABELLED` if there are
such examples."""


def write_jsonl(examples: Iterable[Example], path: Path) -> None:
    """Write one `{"source": ..., "references": [...]}` per line, in UTF-8."""
    with path.open("w", encoding="utf-8") as file:
        for example in examples:
            record = {"source": example.source, "references": list(example.references)}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def read_jsonl(path: Path) -> list[Example]:
    """Read a file that `write_jsonl` wrote.

    Raises:
        InputError: the file is missing or has another format.
    """
    return list(stream_jsonl(path))


def stream_jsonl(path: Path) -> Iterator[Example]:
    """Yield the examples of a file that `write_jsonl` wrote; see `read_jsonl`."""
    require_whole(path)
    try:
        # Lines end at line feeds only: universal newlines would split a text at a carriage return.
        with path.open(encoding="utf-8", newline="\n") as file:
            yield from (_parse(line, f"{path}, line {number}") for number, line in enumerate(file, start=1))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; run the stage that makes it (dvc repro)") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8; run the stage that makes it again (dvc repro)") from None


def _parse(line: str, location: str) -> Example:
    try:
        record = json.loads(line)
        return Example(record["source"], tuple(record["references"]))
    except (json.JSONDecodeError, KeyError, TypeError):
        raise InputError(f"{location}: not an example; run the stage that makes the file again") from None
