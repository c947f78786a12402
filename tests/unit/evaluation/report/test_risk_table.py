"""CALM's threshold by Learn then Test in the report: chosen on validation alone, told on test, shown with what was refused."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.evaluation.report.rendered_tables import RenderedTable, rendered_tables
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.selection import hoeffding_bentkus
from tests.unit.evaluation.conftest import summary_record

Row = dict[str, Any]
Sweeps = dict[str, list[Row]]
LOSSES = {0.98: 0.0, 0.9: 0.02, 0.8: 0.045, 0.7: 0.01}


def calm(threshold: float, loss: float | None, split: str = "validation", decay: float = 0.0) -> Row:
    return {
        "task": "toy",
        "split": split,
        "method": "calm",
        "arm": "unaligned",
        "settings": {"confidence": "softmax", "threshold": threshold, "decay": decay},
        "lossless": False,
        "metric": "bleu",
        "quality": {"bleu": 59.5},
        "quality_difference_interval": [-1.0, 0.0],
        "latency_ms": [8.0, 24.0],
        "vanilla_latency_ms": [10.0, 30.0],
        "speedup": 1.25,
        "speedup_interval": [1.2, 1.3],
        "counts": {"tokens": 100},
        "examples": 400,
        "loss_share": loss,
    }


def with_calm(sweeps: Sweeps, *more: Row) -> Sweeps:
    rows = [*sweeps["unaligned"], *(calm(threshold, loss) for threshold, loss in LOSSES.items()), *more]
    return {**sweeps, "unaligned": rows}


def table_of(summary: Summary) -> RenderedTable | None:
    return next((one for one in rendered_tables(summary) if one.name == "controlled"), None)


def cells_of(summary: Summary) -> dict[str, str]:
    found = table_of(summary)
    assert found is not None and len(found.rows) == 1
    return dict(zip(found.headings, found.rows[0], strict=True))


def test_the_smallest_valid_threshold_stands_with_its_numbers_on_test_and_with_the_first_refused(sweeps: Sweeps) -> None:
    cells = cells_of(summary_record("bleu", with_calm(sweeps, calm(0.9, 0.015, "test"))))
    assert cells == {
        "sequence": "CALM, confidence softmax decay 0, unaligned sweep",
        "δ": "5.00 %",
        "p up to": "0.05",
        "valid λ": "2",
        "of": "4",
        "chosen": "confidence softmax threshold 0.9 decay 0",
        "loss, validation": "2.00 %",
        "p-value": f"{hoeffding_bentkus(0.02, 400, 0.05):.2g}",
        "first λ refused": "0.8",
        "its p-value": f"{hoeffding_bentkus(0.045, 400, 0.05):.2g}",
        "loss, test": "1.50 %",
        "result on test": "confirmed",
        "BLEU − vanilla": "-0.50 [-1.00, +0.00]",
        "speed-up": "1.25× [1.20, 1.30]",
    }


@pytest.mark.parametrize(("loss", "status"), [(0.015, "confirmed"), (0.045, "open"), (0.06, "open"), (0.2, "contradicted")])
def test_test_confirms_contradicts_or_leaves_open_and_never_chooses(sweeps: Sweeps, loss: float, status: str) -> None:
    other = calm(0.7, 0.0, "test")  # tested better, but not shown to be valid on validation
    cells = cells_of(summary_record("bleu", with_calm(sweeps, calm(0.9, loss, "test"), other)))
    assert (cells["chosen"], cells["result on test"]) == ("confidence softmax threshold 0.9 decay 0", status)


def test_without_a_row_on_test_nothing_is_told_of_it(sweeps: Sweeps) -> None:
    cells = cells_of(summary_record("bleu", with_calm(sweeps)))
    assert [cells[name] for name in ("loss, test", "result on test", "BLEU − vanilla", "speed-up")] == ["–"] * 4
    assert cells["loss, validation"] == "2.00 %"


def test_nothing_is_chosen_where_the_highest_threshold_loses_too_much(sweeps: Sweeps) -> None:
    rows = [*sweeps["unaligned"], calm(0.98, 0.2), calm(0.9, 0.0)]
    cells = cells_of(summary_record("bleu", {**sweeps, "unaligned": rows}))
    assert (cells["valid λ"], cells["chosen"], cells["first λ refused"], cells["its p-value"]) == ("0", "–", "0.98", "1")


def test_tolerance_and_level_are_those_of_the_sweep_and_sequences_share_the_level(sweeps: Sweeps) -> None:
    pairs = {"unaligned": {"risk": {"tolerance": 0.1, "level": 0.2}}}
    found = table_of(summary_record("bleu", with_calm(sweeps, calm(0.9, 0.0, decay=4.0)), pairs))
    assert found is not None
    shown = [dict(zip(found.headings, row, strict=True)) for row in found.rows]
    assert [(row["δ"], row["p up to"], row["valid λ"], row["first λ refused"]) for row in shown] == [
        ("10.00 %", "0.1", "4", "–"),
        ("10.00 %", "0.1", "1", "–"),
    ]


def test_rows_of_older_sweeps_without_losses_have_no_table(sweeps: Sweeps) -> None:
    assert table_of(summary_record("bleu", sweeps)) is None
    older = [*sweeps["unaligned"], {name: value for name, value in calm(0.9, None).items() if name != "loss_share"}]
    assert table_of(summary_record("bleu", {**sweeps, "unaligned": older})) is None
