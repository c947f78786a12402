"""The summary and the tables of two small sweeps, number by number as they were recorded before results became typed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from tasks.evaluation.report.rendered_tables import tables_markdown
from tasks.evaluation.report.table import as_markdown
from tasks.evaluation.results.codec import VERSION
from tasks.evaluation.results.summary import summary_json
from tests.unit.evaluation.conftest import SIZES, summary_record
from tests.unit.evaluation.report.test_recommendation import ABOUT

RECORDED = Path(__file__).with_name("recorded")
Sweeps = dict[str, list[dict[str, Any]]]


def without_later(value: Any) -> Any:
    """A JSON value without what was added later at any depth: bounds of quality differences, and losses."""
    if isinstance(value, dict):
        later = ("difference_bounds", "loss_share")
        return {name: without_later(item) for name, item in value.items() if name not in later}
    return [without_later(item) for item in value] if isinstance(value, list) else value


def test_every_number_is_the_recorded_one(sweeps: Sweeps) -> None:
    for row in (row for rows in sweeps.values() for row in rows if "error" not in row):
        row["quality_difference_interval"] = [row["quality"]["bleu"] - 60.3, row["quality"]["bleu"] - 59.8]
        row["counts"]["layers"] = 0
    sizes = {"small": {**SIZES, "decoder_parameters": 40}, "large": SIZES, "source_tokens": 5.0}
    pairs = {arm: {**ABOUT, "sizes": sizes} for arm in sweeps}
    summary = summary_record("bleu", sweeps, pairs, dataset="iwslt17-de-en")
    values = json.loads(summary_json(summary))
    recorded = json.loads((RECORDED / "summary.json").read_text(encoding="utf-8"))
    later = {"version", "definitions", "pairs", "margins", "arms", "dataset", "test_sets", "corpus", "over_bild"}
    later |= {"temperatures"}
    assert values.keys() == {*recorded, *later} and values["version"] == VERSION
    # Bounds, margins and what test says of a choice were added later.
    values = without_later(values)
    values["choices"] = [{name: choice[name] for name in recorded["choices"][0]} for choice in values["choices"]]
    values["table"] = [{name: row[name] for name in recorded["table"][0]} for row in values["table"]]
    # So were a table of acceptance rates, and what theory says of an oracle.
    values["tables"] = {
        name: [
            {key: row[key] for key in before}
            for row, before in zip(values["tables"][name], recorded["tables"][name], strict=True)
        ]
        for name in recorded["tables"]
    }
    # Texts may be reworded; the recommended point may not change.
    values["verdict"] = values["verdict"]["point"]
    assert {name: values[name] for name in recorded} == recorded
    text = as_markdown(summary) + tables_markdown(dataclasses.replace(summary, over_bild=[]))
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert tables == (RECORDED / "tables.md").read_text(encoding="utf-8").splitlines()
