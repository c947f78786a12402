"""What the figures of speed show: latencies, parts of the time, operations, predictions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tasks.evaluation.report.figures import speed
from tasks.evaluation.results.summary import Summary
from tests.charts import drawn, layers, present
from tests.unit.evaluation.conftest import records, summary_record

Sweeps = dict[str, list[dict[str, Any]]]


def test_the_share_of_faster_examples_is_counted(sweeps: Sweeps) -> None:
    chosen = next(row for row in sweeps["aligned"] if row["split"] == "test" and row["method"] == "bild")
    chosen["latency_ms"], chosen["vanilla_latency_ms"] = [5.0, 40.0, 2.0, 9.0], [10.0, 30.0, 10.0, 10.0]
    rows = {drafter: records(rows) for drafter, rows in sweeps.items()}
    figure = present(speed.latency_scatter(summary_record("bleu", sweeps), rows))
    panel = figure.panels[0]
    assert panel.to_dict()["title"]["text"] == ["aligned, BiLD (test)", "75% of 4 examples faster"] and figure.square
    marks = drawn(panel, "point")
    assert [mark["x"] for mark in marks] == chosen["vanilla_latency_ms"]
    assert [mark["y"] for mark in marks] == chosen["latency_ms"] and "2.00×" in marks[0]["text"]


def test_parts_of_the_time_add_up(full_record: Summary) -> None:
    (panel,) = present(speed.time_parts(full_record)).panels
    bars, totals = drawn(panel, "bar"), [record for record in drawn(panel, "text") if "total" in record]
    assert [bar["series"] for bar in bars[:3]] == ["encoders", "small", "large"]
    order = next(layer for layer, _ in layers(panel))["encoding"]["y"]["sort"]
    assert order[:3] == ["vanilla large", "vanilla small|unaligned", "vanilla small|aligned"] and len(order) == 8
    expected = sum((full_record.vanilla.large.time_ms or {}).values())
    assert totals[0]["total"] == pytest.approx(expected)
    assert sum(bar["x"] for bar in bars if bar["y"] == "vanilla large") == pytest.approx(expected)


def test_negative_rests_of_time_lie_left_of_zero(full_record: Summary) -> None:
    times = {**(full_record.vanilla.large.time_ms or {}), "other": -1.0}
    large = dataclasses.replace(full_record.vanilla.large, time_ms=times)
    vanilla = dataclasses.replace(full_record.vanilla, large=large)
    (panel,) = present(speed.time_parts(dataclasses.replace(full_record, vanilla=vanilla))).panels
    assert next(layer for layer, _ in layers(panel))["encoding"]["x"]["stack"] == "zero"
    total = next(record for record in drawn(panel, "text") if record["y"] == "vanilla large")
    assert (total["x"] - total["total"]) == pytest.approx(1.0), "the sum stands behind the positive parts"


def test_theory_and_measurement_are_named(full_record: Summary) -> None:
    (panel,) = present(speed.operations_bars(full_record)).panels
    bars = drawn(panel, "bar")
    *theory, measured = next(layer for layer, _ in layers(panel))["encoding"]["x"]["sort"]
    assert all(name.endswith("(theory)") for name in theory) and measured == "speed-up|(measured)"
    own = [bar["y"] for bar in bars if ", aligned, " in bar["series"]]
    assert own[1] == pytest.approx(1.15 / own[2]), "bytes are operations over intensity"
    without = [dataclasses.replace(point, operations=None) for point in full_record.points]
    assert speed.operations_bars(dataclasses.replace(full_record, points=without)) is None


def test_the_random_sample_stands_apart(full_record: Summary) -> None:
    figure = present(speed.prediction(full_record))
    marks = [record for layer, found in layers(figure.panels[0]) if layer["mark"]["type"] == "rule" for record in found]
    sample = [mark for mark in marks if mark["kind"] == "random sample" and mark["series"] == "aligned"]
    expected = [point for point in full_record.timed_points("aligned") if point.why == "sample" and point.predicted]
    assert [mark["y"] for mark in sample] == [point.speedup for point in expected]
    assert [mark["x"] for mark in sample] == [point.predicted and point.predicted.speedup for point in expected]
    assert {mark["kind"] for mark in marks} == {"random sample", "timed by plan"}
    assert "aligned 2.1% on average and 4.6% at worst over 10 points" in figure.caption
