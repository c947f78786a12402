"""Every method beside BiLD: pairs of choices on one split, vanilla where nothing keeps the quality, each number in its cell."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.evaluation.report.beside_bild import HEADINGS
from tasks.evaluation.report.rendered_tables import rendered_tables
from tasks.evaluation.results.summary import OverBild
from tests.unit.evaluation.conftest import summary_record

Sweeps = dict[str, list[dict[str, Any]]]


def rows_of(sweeps: Sweeps) -> dict[tuple[str, str, str], OverBild]:
    return {(row.method, row.arm, row.choice): row for row in summary_record("bleu", sweeps).over_bild}


def test_both_choices_are_compared_on_test_with_one_drafter(sweeps: Sweeps) -> None:
    row = rows_of(sweeps)["speculative", "aligned", "no_loss"]
    assert (row.split, row.speedup) == ("test", 1.45)
    assert row.over_bild == pytest.approx(1.45 / 1.55, rel=1e-5)
    assert row.settings == {"draft_length": 3} and row.bild_settings == {"fallback_threshold": 0.7, "rollback_threshold": 2.0}
    assert row.quality_difference == 0.0
    low, high = row.over_bild_interval or (0.0, 0.0)
    assert low == pytest.approx(row.over_bild) == high  # every text gains alike in these sweeps


def test_a_choice_without_a_row_on_test_is_compared_on_validation(sweeps: Sweeps) -> None:
    row = rows_of(sweeps)["speculative", "unaligned", "no_loss"]
    assert row.split == "validation"
    assert row.over_bild == pytest.approx(1.3 / 1.2, rel=1e-5)


def test_vanilla_takes_the_place_of_what_does_not_keep_the_quality(sweeps: Sweeps) -> None:
    for row in sweeps["aligned"]:
        if row["method"] == "speculative":
            row["quality"]["bleu"] = 50.0
    poor = rows_of(sweeps)["speculative", "aligned", "no_loss"]
    assert (poor.settings, poor.speedup, poor.quality_difference) == (None, 1.0, None)
    assert poor.over_bild == pytest.approx(1 / 1.55, rel=1e-5) and poor.over_bild_interval is not None
    for row in sweeps["aligned"]:
        if row["method"] == "bild":
            row["quality"]["bleu"] = 50.0
    neither = rows_of(sweeps)["speculative", "aligned", "no_loss"]
    assert (neither.over_bild, neither.over_bild_interval, neither.bild_settings) == (1.0, None, None)


def test_where_bild_was_not_swept_nothing_stands_beside_it(sweeps: Sweeps) -> None:
    sweeps["aligned"] = [row for row in sweeps["aligned"] if row["method"] != "bild"]
    assert {arm for _, arm, _ in rows_of(sweeps)} == {"unaligned"}


def test_the_table_has_each_number_in_its_cell_and_the_fastest_first(sweeps: Sweeps) -> None:
    fast = next(row for row in sweeps["aligned"] if row["method"] == "speculative" and row["split"] == "test")
    margin = {"settings": {"draft_length": 5, "margin": 0.1}, "latency_ms": [5.0, 15.0], "speedup": 2.0}
    sweeps["aligned"] += [
        {**fast, **margin, "method": "speculative_margin", "split": split} for split in ("validation", "test")
    ]
    [table] = [one for one in rendered_tables(summary_record("bleu", sweeps)) if one.name == "beside_bild"]
    assert table.headings == HEADINGS
    aligned = [row for row in table.rows if row[:2] == ["no loss", "aligned"]]
    assert [row[2] for row in aligned] == ["speculative margin", "speculative"]
    assert aligned[0][3:] == ["1.29× [1.29, 1.29]", "2.00× [1.40, 1.50]", "+0.00", "γ 5 margin 0.1"]
    assert any(row[3].endswith(", on validation") for row in table.rows if row[1] == "unaligned")
