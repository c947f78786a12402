"""The worst outputs of chosen points: each split by itself, the difference marked word by word."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.evaluation.report.outputs import HEADINGS, side_by_side, table, worst_by_split
from tests.unit.evaluation.conftest import summary_record

Sweeps = dict[str, list[dict[str, Any]]]


def test_differences_are_marked_word_by_word() -> None:
    assert side_by_side("the cat sat here", "the dog sat") == (
        [("the", False), ("cat", True), ("sat", False), ("here", True)],
        [("the", False), ("dog", True), ("sat", False)],
    )
    assert side_by_side("a b", "a b") == ([("a b", False)], [("a b", False)])
    assert side_by_side("", "new words") == ([], [("new words", True)])


@pytest.fixture
def detailed(sweeps: Sweeps) -> Sweeps:
    """The same sweeps with one worst output in each timed row, which names the row, and with counts."""
    for rows in sweeps.values():
        for row in rows:
            if "speedup" in row:
                name = f"{row['drafter']} {row['split']} {row['method']} {row['speedup']}"
                row["worst"] = [
                    {"example": 3, "source": "s", "references": ["r", "r2"], "vanilla": "v", "output": name, "loss": 7.0}
                ]
                row["outputs"] = {"looping": 3, "cut_off": 2, "empty": 0, "exact": 1, "differs": 4}
    return sweeps


def test_the_worst_outputs_are_those_of_chosen_points_and_never_mix_splits(detailed: Sweeps) -> None:
    summary = summary_record("bleu", detailed)
    groups = dict(worst_by_split(summary))
    assert list(groups) == ["test", "validation"]
    for split, points in groups.items():
        texts = [one.output for _, worst in points for one in worst]
        assert texts and all(f" {split} " in text for text in texts)
    chosen = {index for index, point in enumerate(summary.points) if point.chosen}
    assert {one.point for one in summary.worst} <= chosen
    assert {one.point for one in summary.worst if one.split == "validation"} == chosen


def test_the_table_counts_outputs_by_split(detailed: Sweeps) -> None:
    summary = summary_record("bleu", detailed)
    for split in ("validation", "test"):
        rows = table(summary, split)
        assert rows[0][0] is None and rows[0][1][0] == "vanilla large"
        assert all(len(row) == len(HEADINGS) for _, row in rows)
        assert all(row[1].split(" of ")[0] == "3" and row[2].split(" of ")[0] == "2" for _, row in rows)
        chosen = {index for index, point in enumerate(summary.points) if point.chosen}
        assert {index for index, _ in rows} - {None} <= chosen
