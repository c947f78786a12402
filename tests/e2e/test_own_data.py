"""A data set of the hub is swept after a few changed lines of params.yaml; `test_tutorial.py` sweeps a table of one's own."""

import json
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
def test_own_data_is_swept_after_a_few_changed_lines(tmp_path: Path) -> None:
    data, corpus = tmp_path / "data", generate(SIZES, seed=3, variation=0.8)
    data.mkdir()
    lines = {"  translation: ": f"  translation: {data}"} | write_data_set(corpus, data)
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
