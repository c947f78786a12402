"""What the pair's folder says of the recommended point: numbers of the summary, and how much of each draft was accepted."""

from __future__ import annotations

import dataclasses

import pytest

from tasks.evaluation.report.pair_export import accepted, measured
from tasks.evaluation.results.rows import DecodingCounts
from tasks.evaluation.results.summary import Summary
from tests.finished import finished, loaded


@pytest.fixture
def summary() -> Summary:
    """Point 4 is recommended: BiLD with the aligned drafter, 59.5 points at 1.6 times vanilla's speed."""
    values, rows = finished()
    values["verdict"] = {"text": "", "changes": [], "point": 4}
    return loaded("toy", values, rows).summary


def counted(summary: Summary, *, lossless: bool) -> Summary:
    """The summary with counts in every point: 6 of 10 drafted tokens are kept."""
    counts = DecodingCounts(tokens=12, large_calls=5, drafted=10, accepted=6)
    points = [dataclasses.replace(point, counts=counts, lossless=lossless) for point in summary.points]
    return dataclasses.replace(summary, points=points)


def test_numbers_of_both_splits_stand_beside_vanillas(summary: Summary) -> None:
    found = measured(summary)
    best = summary.recommended
    assert best is not None
    assert found["metric"] == "bleu"
    assert found["validation"]["speedup"] == best.speedup
    assert found["validation"]["speedup_interval"] == list(best.speedup_interval or ())
    assert found["vanilla"]["validation"]["quality"] == summary.vanilla.large.quality
    assert (found["test"] is None) == (best.test is None)


def test_vanilla_recommended_has_no_point_to_measure(summary: Summary) -> None:
    bare = dataclasses.replace(summary, recommendation=dataclasses.replace(summary.recommendation, point=None))
    found = measured(bare)
    assert found["validation"] is None and found["vanilla"]["validation"]["quality"] == summary.vanilla.large.quality


def test_only_the_recommended_point_counts_among_lossy_ones(summary: Summary) -> None:
    [line] = accepted(counted(summary, lossless=False), "aligned")
    assert line["settings"]["fallback_threshold"] == 0.7
    assert line["accepted_share"] == pytest.approx(0.6)
    assert (line["drafted"], line["accepted"], line["split"]) == (10, 6, "validation")


def test_every_lossless_point_of_the_drafter_counts(summary: Summary) -> None:
    ours = [point for point in summary.points if point.arm == "aligned"]
    assert len(list(accepted(counted(summary, lossless=True), "aligned"))) == len(ours) > 1
    assert not list(accepted(counted(summary, lossless=True), "another"))
