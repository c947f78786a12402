"""A table of one's own and a data set of the hub are swept after a few changed lines of params.yaml."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tasks.corpora.example import SPLITS, Example
from tasks.corpora.translation import generate
from tests.e2e.conftest import ROOT, make_clone, read_params, repro, smaller, write_params

MOST_LINES = 5
SIZES = {"train": 400, "validation": 12, "test": 10}

Lines = dict[str, str]
"""Lines of params.yaml, by their beginnings."""


def write_table(corpus: dict[str, list[Example]], folder: Path) -> Lines:
    """Write one table of two columns; some of its rows are held out for validation and test."""
    with (folder / "pairs.csv").open("w", encoding="utf-8", newline="") as file:
        pairs = [(example.source, example.references[0]) for split in SPLITS for example in corpus[split]]
        csv.writer(file).writerows([("source", "target"), *pairs])
    return {"      source: embedded": "      source: files", "      embedded: ": "      files: {files: {train: pairs.csv}}"}


def write_data_set(corpus: dict[str, list[Example]], folder: Path) -> Lines:
    """Write a copy of a data set with the columns of the preset `xsum`."""
    for split in SPLITS:
        rows = [{"document": example.source, "summary": example.references[0]} for example in corpus[split]]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"      source: embedded": "      source: hub", "      embedded: ": "      hub: {preset: xsum}"}


def changed(text: str, lines: Lines) -> str:
    """Replace the first line that begins with each of `lines`, as a user would: the first task is the one that runs."""
    rows = text.splitlines()
    for begin, line in lines.items():
        index = next(number for number, row in enumerate(rows) if row.startswith(begin))
        rows[index] = line
    return "\n".join(rows) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_table, write_data_set])
def test_own_data_is_swept_after_a_few_changed_lines(
    write: Callable[[dict[str, list[Example]], Path], Lines], tmp_path: Path
) -> None:
    data, corpus = tmp_path / "data", generate(SIZES, seed=3, variation=0.8)
    data.mkdir()
    lines = {"  translation: ": f"  translation: {data}"} | write(corpus, data)
    assert len(lines) <= MOST_LINES
    edited = yaml.safe_load(changed((ROOT / "params.yaml").read_text(encoding="utf-8"), lines))
    clone = make_clone(tmp_path / "project", smaller)
    params = read_params(clone)
    params["active"] = edited["active"]
    params["tasks"]["translation"]["corpus"] = edited["tasks"]["translation"]["corpus"]
    write_params(clone, params)
    repro(clone)
    summary = json.loads((clone / "results/translation/summary.json").read_text(encoding="utf-8"))
    assert not summary["failed"]
    assert {point["method"] for point in summary["points"]} == {"bild", "speculative"}
    rows = (clone / "data/translation/corpus/test.jsonl").read_text(encoding="utf-8").splitlines()
    swept = {json.loads(line)["source"].removeprefix("summarize: ") for line in rows}  # the preset's prefix
    assert swept and swept <= {example.source for split in SPLITS for example in corpus[split]}
