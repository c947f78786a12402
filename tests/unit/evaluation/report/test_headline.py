"""The first line of the verdict: gain, interval, processor, milliseconds, cost and the lossless alternative, of one split."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tasks.evaluation.report.deployment import configuration, explained
from tasks.evaluation.report.table import as_markdown
from tests.unit.evaluation.conftest import summarized, summary_record

Sweeps = dict[str, list[dict[str, Any]]]
PAIRS: dict[str, Any] = {name: {"seed": 2, "lineage": {"host_cpu": "a small CPU"}} for name in ("unaligned", "aligned")}


def on_test(sweeps: Sweeps, **values: Any) -> Sweeps:
    """The same sweeps with these values of aligned BiLD, the fastest choice, on test."""
    (row,) = [row for row in sweeps["aligned"] if (row["split"], row["method"]) == ("test", "bild")]
    row.update(values)
    return sweeps


@pytest.mark.parametrize(
    ("interval", "cost"),
    [
        ([-0.41, 0.02], "costs 0.60 BLEU (95 % interval: from a loss of 0.41 to a gain of 0.02)"),
        ([-0.92, -0.25], "costs 0.60 BLEU (95 % interval: from a loss of 0.92 to a loss of 0.25)"),
        ([-0.12, 0.38], "costs 0.60 BLEU (95 % interval: from a loss of 0.12 to a gain of 0.38)"),
        (None, "its BLEU differs by -0.60, and how far that is noise was not measured"),
    ],
)
def test_the_line_gives_speed_cost_processor_and_the_lossless_alternative(
    sweeps: Sweeps, interval: list[float] | None, cost: str
) -> None:
    found = summarized("bleu", on_test(sweeps, quality_difference_interval=interval), PAIRS)["verdict"]["headline"]
    # Aligned BiLD on test is 1.55 times as fast as vanilla's mean of 20 ms; speculative decoding 1.45 times.
    assert found == (
        "1.55× as fast on this processor, a small CPU (95 % interval 1.50× to 1.60×): 12.9 ms for a text instead of the large "
        f"model's 20.0 ms; {cost}; lossless alternative 1.45×. Measured on the test split, "
        "which played no part in the choice."
    )


def test_a_gain_is_called_one(sweeps: Sweeps) -> None:
    found = summarized("bleu", on_test(sweeps, quality={"bleu": 60.3}, quality_difference_interval=[-0.12, 0.72]), PAIRS)
    assert "; gains 0.30 BLEU (95 % interval: from a loss of 0.12 to a gain of 0.72); " in found["verdict"]["headline"]


def test_a_perplexity_that_rises_is_a_cost(sweeps: Sweeps) -> None:
    for row in (row for rows in sweeps.values() for row in rows):
        if "quality" in row:
            row.update(metric="perplexity", quality={"perplexity": 90.0 - row["quality"]["bleu"]}, outputs=None)
    found = summarized("perplexity", on_test(sweeps, quality_difference_interval=[-0.41, 0.02]), PAIRS)
    cost = "; costs 0.60 points of perplexity (95 % interval: from a loss of 0.41 to a gain of 0.02); "
    assert cost in found["verdict"]["headline"]
    large = found["vanilla"]["large"]
    assert large["quality"] == -large["qualities"]["perplexity"] < 0
    notes = as_markdown(summary_record("perplexity", sweeps, PAIRS))
    assert "a point is one of perplexity, of which less is better: quality is minus it" in notes
    assert "trained on the large model's outputs" not in notes


def test_a_metric_without_a_unit_is_counted_in_points(sweeps: Sweeps) -> None:
    for row in (row for rows in sweeps.values() for row in rows):
        if "quality" in row:
            row.update(metric="exact_match", quality={"exact_match": row["quality"]["bleu"]})
    found = summarized("exact_match", on_test(sweeps, quality_difference_interval=[-0.41, 0.02]), PAIRS)
    assert (
        "; costs 0.60 points of exact match (95 % interval: from a loss of 0.41 to a gain of 0.02); "
        in found["verdict"]["headline"]
    )


def test_a_point_without_test_says_that_its_numbers_chose_it(sweeps: Sweeps) -> None:
    sweeps["aligned"] = [row for row in sweeps["aligned"] if row["split"] == "validation" or row["method"] != "bild"]
    assert summarized("bleu", sweeps)["verdict"]["headline"].endswith(
        "lossless alternative 1.45×. Measured on validation, which chose it: test did not measure it."
    )


def test_a_lossless_point_costs_nothing(sweeps: Sweeps) -> None:
    for row in sweeps["aligned"]:
        if row["method"] == "speculative":
            row.update(speedup=1.9, speedup_interval=[1.8, 2.0])
    found = summarized("bleu", sweeps, PAIRS)["verdict"]["headline"]
    assert (
        "costs nothing: the output is the large model's own. Measured on the test split" in found and "alternative" not in found
    )


def test_vanilla_stays_in_words(sweeps: Sweeps) -> None:
    alone = {arm: [row for row in rows if row["method"] == "vanilla_large"] for arm, rows in sweeps.items()}
    found = summarized("bleu", alone, PAIRS)["verdict"]["headline"]
    assert found == (
        "Stay with the large model alone: nothing is faster and as good for certain on this processor, a small CPU "
        "(20.0 ms for a text)."
    )


def test_the_configuration_names_both_models_and_explains_every_setting(sweeps: Sweeps) -> None:
    summary = summary_record("bleu", sweeps, PAIRS)
    point = summary.recommended
    assert point is not None
    assert configuration(summary, point) == [
        "large_model: models/toy/large",
        "small_model: models/toy/aligned/2",
        "method: bild",
        "fallback_threshold: 0.7",
        "rollback_threshold: 2.0",
    ]
    assert configuration(summary, None) == ["large_model: models/toy/large", "method: vanilla_large"]
    written, copied = (dataclasses.replace(point, settings={"drafter": drafter}) for drafter in ("retokenized", "copy"))
    assert "small_model: models/toy/aligned/2" in configuration(summary, written)
    assert not [line for line in configuration(summary, copied) if line.startswith("small_model")]
    method, arm, fallback, rollback = explained(point)
    assert method.startswith("BiLD: ") and "trained on what the large model writes" in arm
    assert "a probability above 70%, and hands over to the large model when it is less sure" in fallback
    assert "a probability below 13.5% (e^−2)" in rollback
