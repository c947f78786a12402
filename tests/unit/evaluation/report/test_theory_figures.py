"""The figures of theory hold the theorems' lines and the measured marks; the trace holds every token."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tasks.decoding.methods.speculative import best_draft_length, expected_operations, expected_speedup, expected_tokens
from tasks.evaluation.report.figures import theory
from tasks.evaluation.report.figures.trace import token_trace
from tasks.evaluation.results.rows import ShownExample, SweepRow, TimedRow
from tasks.evaluation.results.summary import Summary
from tests.charts import drawn, points, present


def lines(panel: Any) -> dict[str, dict[float, float]]:
    found: dict[str, dict[float, float]] = {}
    for record in drawn(panel, "line"):
        found.setdefault(record["series"], {})[record["x"]] = record["y"]
    return found


def test_tokens_stand_on_the_lines_of_equation_1(full_record: Summary) -> None:
    (panel,) = present(theory.tokens_by_acceptance(full_record)).panels
    drawn_lines = lines(panel)
    assert set(drawn_lines) == {"γ 3", "γ 5", "γ 7", "oracle for γ"}
    assert drawn_lines["γ 5"][0.8] == pytest.approx(expected_tokens(0.8, 5), abs=1e-3)
    assert drawn_lines["oracle for γ"][0.8] == pytest.approx(5) and max(drawn_lines["oracle for γ"].values()) <= 8
    marks = [mark for mark in drawn(panel, "point") if mark["source"] == "small, aligned"]
    own = points(full_record, "aligned", "speculative")
    assert [mark["y"] for mark in marks] == [point.tokens_per_large_call for point in own]
    rate = full_record.pairs.of("aligned").acceptance_rate()
    assert rate is not None and {mark["x"] for mark in marks} == {rate.rate}
    assert not any("point" in record for record in drawn(panel, "line")), "theory is no measured point"


def test_the_best_window_is_that_of_the_fastest_measured_point(full_record: Summary) -> None:
    (panel,) = present(theory.best_windows(full_record)).panels
    assert lines(panel)["c 0.1"][0.8] == best_draft_length(0.8, 0.1, 16)
    fastest = max(points(full_record, "unaligned", "speculative"), key=lambda point: point.speedup or 0)
    mark = next(mark for mark in drawn(panel, "point") if mark["name"].startswith("small, unaligned"))
    assert mark["y"] == fastest.settings["draft_length"]
    assert len(drawn(panel, "text")) == 2, "each mark has its name once"
    one_length = [point for point in full_record.points if point.settings.get("draft_length") != 3]
    one_length = [point for point in one_length if point.settings.get("draft_length") != 7]
    assert theory.best_windows(dataclasses.replace(full_record, points=one_length)) is None


def test_speed_and_operations_are_drawn_at_the_drafters_own_costs(full_record: Summary) -> None:
    figure = present(theory.speed_and_operations(full_record))
    assert len(figure.panels) == 4, "speed and operations of either small model"
    speed, operations = figure.panels[:2]
    pair = full_record.pairs.of("unaligned")
    assert pair.cost_ratio is not None and pair.sizes is not None and pair.sizes.decoder_ratio is not None
    assert lines(speed)["γ 5"][0.8] == pytest.approx(expected_speedup(0.8, 5, pair.cost_ratio), abs=1e-3)
    assert lines(operations)["γ 5"][0.8] == pytest.approx(expected_operations(0.8, 5, pair.sizes.decoder_ratio), abs=1e-3)
    own = points(full_record, "unaligned", "speculative")
    assert [mark["y"] for mark in drawn(speed, "point")] == [point.speedup for point in own]
    counts = own[0].counts
    positions = sum(width * runs for width, runs in (counts.verified or {}).items())
    expected = (positions + pair.sizes.decoder_ratio * counts.small_steps) / counts.tokens
    assert drawn(operations, "point")[0]["y"] == pytest.approx(expected)


def test_without_an_acceptance_rate_there_is_no_theory(full_record: Summary) -> None:
    alone = [point for point in full_record.points if point.method != "speculative"]
    summary = dataclasses.replace(full_record, points=alone)
    assert theory.tokens_by_acceptance(summary) is theory.best_windows(summary) is theory.speed_and_operations(summary) is None


def test_the_trace_shows_every_token(full_record: Summary, full_rows: dict[str, list[SweepRow]]) -> None:
    assert token_trace(full_record, full_rows) is None, "older rows do not tell who proposed which token"
    example = ShownExample(source="a", references=["b"], vanilla="c", pieces=[("c", "s")], proposers="sslsc")
    told = {
        arm: [dataclasses.replace(row, shown=[example]) if isinstance(row, TimedRow) else row for row in rows]
        for arm, rows in full_rows.items()
    }
    figure = present(token_trace(full_record, told))
    bars = drawn(figure.panels[0], "bar")
    assert [(bar["x"], bar["series"].split(",")[-1].strip()) for bar in bars] == [
        (0, "drafted and kept"),
        (1, "drafted and kept"),
        (2, "after a draft"),
        (3, "drafted and kept"),
        (4, "in place of a drafted token"),
    ]
    assert [mark["text"] for mark in drawn(figure.panels[0], "text")] == ["2 of 5"]
