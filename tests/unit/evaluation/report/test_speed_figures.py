"""What the figures of speed show: latencies, parts of the time, operations, predictions."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tasks.evaluation.report import sections
from tasks.evaluation.report.figures import speed
from tasks.evaluation.report.figures.batches import speed_by_batch
from tasks.evaluation.report.rendered_tables import rendered_tables
from tasks.evaluation.results.summary import Summary, SweptPairs
from tests.charts import drawn, layers, present
from tests.unit.evaluation.conftest import SIZES, pair_record, records, summary_record

Sweeps = dict[str, list[dict[str, Any]]]


def test_the_share_of_faster_examples_is_counted(sweeps: Sweeps) -> None:
    chosen = next(row for row in sweeps["aligned"] if row["split"] == "test" and row["method"] == "bild")
    chosen["latency_ms"], chosen["vanilla_latency_ms"] = [5.0, 40.0, 2.0, 9.0], [10.0, 30.0, 10.0, 10.0]
    rows = {arm: records(rows) for arm, rows in sweeps.items()}
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


def test_one_very_long_interval_does_not_shrink_the_marks_of_the_prediction_figure() -> None:
    marks = [{"x": 1.0, "y": 1.1, "low": 1.0, "high": 1.2}, {"x": 2.0, "y": 2.1, "low": 0.1, "high": 50.0}]
    shown = speed._shown_speedups(marks)
    # The marks span 1.1, of which three tenths may be added on either side.
    assert [min(shown), max(shown)] == pytest.approx([0.67, 2.43])
    assert max(speed._shown_speedups(marks[:1])) == pytest.approx(1.13)


def test_the_random_sample_stands_apart(full_record: Summary) -> None:
    figure = present(speed.prediction(full_record))
    marks = [record for layer, found in layers(figure.panels[0]) if layer["mark"]["type"] == "rule" for record in found]
    sample = [mark for mark in marks if mark["kind"] == "random sample" and mark["series"] == "aligned"]
    expected = [point for point in full_record.timed_points("aligned") if point.why == "sample" and point.predicted]
    assert [mark["y"] for mark in sample] == [point.speedup for point in expected]
    assert [mark["x"] for mark in sample] == [point.predicted and point.predicted.speedup for point in expected]
    assert {mark["kind"] for mark in marks} == {"random sample", "timed by plan"}
    assert "aligned 2.1% on average and 4.6% at worst over 10 points" in figure.caption


def test_speed_by_batch_size_stands_beside_vanilla_of_the_same_size(full_record: Summary) -> None:
    summary = by_batch(full_record)
    same, alone = present(speed_by_batch(summary)).panels
    marks = drawn(same, "point")
    assert {mark["series"] for mark in marks} == {"BiLD ≤ 10, unaligned", "BiLD ≤ 10, aligned"}
    assert [mark["y"] for mark in marks] == [1.5, 0.8, 1.5, 0.8]
    assert [(mark["low"], mark["high"]) for mark in drawn(same, "rule") if mark] == [(1.4, 1.6), (0.7, 0.9)] * 2
    assert [mark["y"] for mark in drawn(alone, "point")] == pytest.approx([1.0, 1.5, 1.5, 1.2] * 2)
    assert speed_by_batch(full_record) is None


def test_the_report_says_from_which_batch_size_on_drafting_no_longer_pays(full_record: Summary) -> None:
    summary = by_batch(full_record)
    facts = dict(dict(sections.evidence(summary))["aligned"])
    assert facts["by batch size"].startswith("drafting stops paying at batch 2: ")
    assert facts["memory, large model"] == "8.40 MB of weights, 1.00 MB of caches for a text of 80 and 60 tokens"
    tables = {table.name: table for table in rendered_tables(summary)}
    assert tables["batches"].headings == ["point", "batch 1", "batch 2"]
    vanilla, point, *_ = tables["batches"].rows
    assert vanilla[1:] == ["1.00× of batch 1", "1.50× of batch 1"]
    assert point[1:] == ["1.50× (1.40 to 1.60)", "0.80× (0.70 to 0.90)"]
    assert tables["memory"].rows == [
        ["large", "8.40 MB", "1.00 MB"],
        ["small, unaligned", "1.20 MB", "0.10 MB"],
        ["small, aligned", "1.20 MB", "0.10 MB"],
    ]
    assert not {"batches", "memory"} & {table.name for table in rendered_tables(full_record)}


def test_a_shared_encoder_is_said_to_be_counted_with_the_large_model(full_record: Summary) -> None:
    summary = by_batch(full_record)
    sizes = {"large": {**SIZES, "parameters": 2_000_000}, "small": {**SIZES, "parameters": 900_000}}
    shared = pair_record({"sizes": {**sizes, "shares_encoder": True, "shared_parameters": 700_000}})
    aligned = dataclasses.replace(summary.pairs.of("aligned"), sizes=shared.sizes)
    summary = dataclasses.replace(summary, pairs=dataclasses.replace(summary.pairs, aligned=aligned))
    table = {table.name: table for table in rendered_tables(summary)}["memory"]
    assert table.notes[1:] == ["The encoder that the large and the small model share (aligned) is counted with the large one."]
    facts = {arm: dict(found) for arm, found in sections.evidence(summary)}
    assert facts["aligned"]["memory, small model"].startswith("1.20 MB of weights besides the shared encoder, ")
    assert facts["unaligned"]["memory, small model"].startswith("1.20 MB of weights, 0.10 MB of caches")


def by_batch(summary: Summary) -> Summary:
    """A summary whose sweeps were measured by batch size, and know their memory."""
    point = {"method": "bild", "settings": {"max_draft": 10}}
    speeds = ((1, [1.5, 1.4, 1.6]), (2, [0.8, 0.7, 0.9]))
    about = {
        "batches": {
            "split": "test",
            "examples": 64,
            "vanilla": [{"batch_size": size, "tokens_per_second": 9.0, "throughput": (1 + size) / 2} for size in (1, 2)],
            "points": [{**point, "batch_size": size, "speedup": own[0], "rounds": own} for size, own in speeds],
        },
        "memory": {
            "large": {"weights": 8_400_000, "cache": 1_000_000},
            "small": {"weights": 1_200_000, "cache": 100_000},
            "source_tokens": 80,
            "target_tokens": 60,
        },
    }
    pairs = SweptPairs(unaligned=pair_record({**about}), aligned=pair_record({**about}))
    return dataclasses.replace(summary, pairs=pairs)
