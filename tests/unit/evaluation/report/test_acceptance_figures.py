"""What the figures of accepted drafts and of cascades show."""

from __future__ import annotations

import dataclasses

import pytest

from tasks.evaluation.report.figures import acceptance
from tasks.evaluation.results.summary import Summary
from tests.charts import drawn, points, present


def test_rejection_is_of_the_judged_tokens(full_record: Summary) -> None:
    rejected, calls = present(acceptance.cascade_curves(full_record)).panels[:2]
    shares = [record["x"] for record in drawn(rejected, "point") if record["series"] == "speculative"]
    # Speculative decoding stops at the first token that it rejects, so 9 of 10 verified tokens stay whatever the window.
    assert shares == pytest.approx([10, 10, 10], abs=0.5)
    assert "token cascade" not in {record["series"] for record in drawn(rejected, "point")}, "it verifies nothing"
    assert {"token cascade", "speculative cascade [opt]"} <= {record["series"] for record in drawn(calls, "point")}


def test_a_curve_changes_nothing_but_alpha(full_record: Summary) -> None:
    point = points(full_record, "aligned", "speculative_cascade")[0]
    other = dataclasses.replace(point, settings={**point.settings, "draft_length": 9}, quality=50.0)
    summary = dataclasses.replace(full_record, points=[*full_record.points, other])
    marks = drawn(present(acceptance.cascade_curves(summary)).panels[1], "point")
    own = [record["curve"] for record in marks if record["series"] == "speculative cascade [chow]"]
    assert sorted(own.count(curve) for curve in set(own)) == [1, 4]


def test_shares_of_drafts_add_up_to_all_drafts(full_record: Summary) -> None:
    histogram, positions = present(acceptance.accepted_lengths(full_record)).panels
    names = {bar["series"] for bar in drawn(histogram, "bar")}
    assert names == {f"{method}, {drafter}" for method in ("BiLD", "speculative") for drafter in ("aligned", "unaligned")}
    for name in names:
        assert sum(bar["y"] for bar in drawn(histogram, "bar") if bar["series"] == name) == pytest.approx(100, abs=0.01)
    first = [mark["y"] for mark in drawn(positions, "point") if mark["series"] == "speculative, aligned"]
    assert first == pytest.approx([90] * len(first), abs=1) and len(first) > 2
