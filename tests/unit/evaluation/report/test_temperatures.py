"""Further temperatures: points beside vanilla at their own, and a figure with panels for each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tasks.errors import InputError
from tasks.evaluation.report.figures.temperatures import by_temperature
from tasks.evaluation.report.temperatures import temperature_points
from tasks.evaluation.results.rows import SweepRow
from tasks.evaluation.results.summary import Summary, split_at, temperature_of
from tests.charts import drawn, present
from tests.unit.evaluation.conftest import records

Row = dict[str, Any]


def at(rows: list[Row], temperature: float, shift: float) -> list[SweepRow]:
    """The rows of validation as a further temperature would have them, all qualities `shift` points higher."""
    found = []
    for row in rows:
        if row["split"] == "validation" and "error" not in row:
            quality = {name: value + shift for name, value in row["quality"].items()}
            sampling = {**row["sampling"], "temperature": temperature}
            bounds = {"lower": 0.0, "upper": 1.0, "compared": 1}  # by which validation would choose any of them
            found.append(
                {"difference_bounds": bounds, **row, "split": split_at(temperature), "quality": quality, "sampling": sampling}
            )
    return records(found)


@pytest.fixture(scope="module")
def warmed(full_sweeps: dict[str, list[Row]], full_record: Summary) -> Summary:
    rows = {("unaligned", degree): at(full_sweeps["unaligned"], degree, -10 * degree) for degree in (1.0, 0.5)}
    return dataclasses.replace(full_record, temperatures=temperature_points("translation", rows, {}))


def test_the_name_of_a_split_says_its_temperature() -> None:
    assert (split_at(0.5), split_at(1.0), split_at(0)) == ("validation.T0.5", "validation.T1", "validation.T0")
    assert [temperature_of(split_at(degree)) for degree in (0.5, 1.0, 0.05)] == [0.5, 1.0, 0.05]


def test_differences_are_from_vanilla_at_the_same_temperature_and_nothing_is_chosen(
    warmed: Summary, full_record: Summary
) -> None:
    by_degree = {one.temperature: one for one in warmed.temperatures}
    own = [point for point in full_record.points if point.arm == "unaligned"]
    for degree, swept in by_degree.items():
        assert swept.arm == "unaligned" and len(swept.points) == len(own)
        assert swept.vanilla_quality == pytest.approx(full_record.vanilla.large.quality - 10 * degree)
        for point, like in zip(swept.points, own, strict=True):
            assert point.quality == pytest.approx(like.quality - 10 * degree, abs=1e-4)
            assert point.quality_difference == pytest.approx(like.quality_difference, abs=1e-4)
            assert point.chosen is None and point.test is None
            assert point.sampling is not None and point.sampling.temperature == degree
    assert any(point.chosen for point in own), "the main sweep does choose"


def test_rows_of_another_split_are_left_out_and_vanilla_is_needed(full_sweeps: dict[str, list[Row]]) -> None:
    rows = at(full_sweeps["unaligned"], 0.5, 0.0)
    [alone] = temperature_points("toy", {("unaligned", 0.5): [*rows, *at(full_sweeps["unaligned"], 1.0, 5.0)]}, {})
    assert len(alone.points) == len(rows) - 2
    without = [row for row in rows if row.method != "vanilla_large"]
    with pytest.raises(InputError, match="no measured vanilla_large row"):
        temperature_points("toy", {("unaligned", 0.5): without}, {})


def test_each_temperature_has_its_panels_with_its_own_vanilla(warmed: Summary, full_record: Summary) -> None:
    assert by_temperature(full_record) is None, "one temperature alone"
    figure = present(by_temperature(warmed))
    titles = [panel.to_dict()["title"] for panel in figure.panels]
    # Against latency and against calls; only one arm was swept at further temperatures.
    assert titles == [*["aligned, T = 0"] * 2, *[f"unaligned, T = {degree}" for degree in ("0", "0.5", "1") for _ in range(2)]]
    latency, calls = figure.panels[4], figure.panels[5]
    timed, every = drawn(latency, "point"), drawn(calls, "point")
    rules = {f"speculative cascade [{rule}]" for rule in ("chow", "opt", "token_v3")}
    assert {mark["series"] for mark in every} == {"speculative", *rules}
    assert 0 < len(timed) < len(every), "latencies are never predicted here"
    large = full_record.vanilla.large.quality
    levels = [layer["encoding"]["y"]["datum"] for layer in calls.to_dict()["layer"] if layer["mark"]["type"] == "rule"]
    assert levels == pytest.approx([large - 5])
    speculative = [mark for mark in every if mark["series"] == "speculative"]
    assert [mark["y"] for mark in speculative] == pytest.approx([large - 5] * 3, abs=1e-4)
    assert speculative[0]["text"].startswith("speculative, γ 3: BLEU 88.40 (")


def test_only_rules_that_compare_are_drawn(warmed: Summary) -> None:
    bild = [dataclasses.replace(one, points=[p for p in one.points if p.method == "bild"]) for one in warmed.temperatures]
    assert by_temperature(dataclasses.replace(warmed, temperatures=bild)) is None
