"""What the figures of cascades and of their variants show (Narasimhan et al., 2024, Figures 1, 3, 7 and 8)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tasks.decoding.method import SamplingSettings
from tasks.evaluation.report.figures import cascades, variants
from tasks.evaluation.results.rows import TimedPoint, UntimedPoint
from tasks.evaluation.results.summary import Summary
from tests.charts import drawn, points, present


def added(summary: Summary, method: str, *several: dict[str, Any], **changed: Any) -> Summary:
    """The summary with points of another method for each drafter, which are those of speculative decoding otherwise."""
    found: list[TimedPoint | UntimedPoint] = []
    for arm in ("unaligned", "aligned"):
        like = points(summary, arm, "speculative")[0]
        found += (dataclasses.replace(like, method=method, settings=settings, **changed) for settings in several)
    return dataclasses.replace(summary, points=[*summary.points, *found])


def test_rejection_is_of_the_judged_tokens(full_record: Summary) -> None:
    rejected, calls = present(cascades.cascade_curves(full_record)).panels[:2]
    shares = [record["x"] for record in drawn(rejected, "point") if record["series"] == "speculative"]
    # Speculative decoding stops at the first token that it rejects, so 9 of 10 verified tokens stay whatever the window.
    assert shares == pytest.approx([10, 10, 10], abs=0.5)
    assert "token cascade" not in {record["series"] for record in drawn(rejected, "point")}, "it verifies nothing"
    assert {"token cascade", "speculative cascade [opt]"} <= {record["series"] for record in drawn(calls, "point")}


def test_a_curve_changes_nothing_but_alpha(full_record: Summary) -> None:
    point = points(full_record, "aligned", "speculative_cascade")[0]
    other = dataclasses.replace(point, settings={**point.settings, "draft_length": 9}, quality=50.0)
    summary = dataclasses.replace(full_record, points=[*full_record.points, other])
    marks = drawn(present(cascades.cascade_curves(summary)).panels[1], "point")
    own = [record["curve"] for record in marks if record["series"] == "speculative cascade [chow]"]
    assert sorted(own.count(curve) for curve in set(own)) == [1, 4]


def test_the_oracle_defers_where_it_takes_the_large_model_s_token(full_record: Summary) -> None:
    like = points(full_record, "aligned", "speculative")[0].counts
    counts = dataclasses.replace(like, tokens=200, large_calls=200, rollbacks=30)
    oracle = [{"rule": "diff", "deferral_cost": cost} for cost in (0.0, 0.1)]
    summary = added(full_record, "diff_oracle", *oracle, counts=counts, large_calls_per_token=1.0)
    _unaligned, aligned = present(cascades.deferral_curves(summary)).panels
    marks = [mark for mark in drawn(aligned, "point") if "series" in mark]
    assert [mark["x"] for mark in marks if mark["series"] == "diff oracle [diff]"] == [0.15, 0.15]
    tokens = [point.large_calls_per_token for point in points(full_record, "aligned", "token_cascade")]
    assert [mark["x"] for mark in marks if mark["series"] == "token cascade"] == pytest.approx(tokens, abs=1e-5)
    # A text of speculative decoding defers once a draft.
    assert all(mark["x"] < 0.5 for mark in marks if mark["series"] == "speculative")
    ends = [mark for mark in drawn(aligned, "point", shape="square") if mark.get("text")]
    small = present_quality(summary.vanilla.small_aligned)
    assert [(mark["x"], mark["y"]) for mark in ends] == [(0.0, small), (1.0, summary.vanilla.large.quality)]
    # In the figure of calls the oracle would be a vertical line.
    assert not any(
        "oracle" in mark["series"]
        for panel in present(cascades.cascade_curves(summary)).panels
        for mark in drawn(panel, "point")
    )


def present_quality(model: Any) -> float:
    assert model is not None
    return float(model.quality)


def test_readings_of_a_method_are_curves_of_their_own(full_record: Summary) -> None:
    lossy = [{"draft_length": 5, "lossiness": 0.2, "tuned": tuned} for tuned in (False, True)]
    summary = added(full_record, "speculative_lossy", *lossy)
    found = {mark["series"] for panel in present(cascades.cascade_curves(summary)).panels for mark in drawn(panel, "point")}
    assert {"speculative lossy, β = 1", "speculative lossy, β tuned"} <= found
    copying = {"drafter": "copy", "draft_length": 5, "rule": "chow", "deferral_cost": 0.1}
    names = {
        "speculative cascade [chow], copy": added(full_record, "speculative_cascade", copying),
        "sequence cascade [sum]": added(full_record, "sequence_cascade", {"confidence": "sum", "deferral_cost": 0.1}),
    }
    assert [cascades.curve_name(found.points[-1]) for found in names.values()] == list(names)


def test_each_block_size_has_its_panel(full_record: Summary) -> None:
    assert cascades.by_block_size(full_record) is None, "all cascades have γ 5"
    shorter = [{"draft_length": 3, "rule": "chow", "deferral_cost": cost} for cost in (0.1, 0.3)]
    figure = present(cascades.by_block_size(added(full_record, "speculative_cascade", *shorter)))
    titles = [panel.to_dict()["title"] for panel in figure.panels]
    assert titles == ["aligned, γ 3", "aligned, γ 5", "unaligned, γ 3", "unaligned, γ 5"]
    short, long = (drawn(panel, "point") for panel in figure.panels[:2])
    # Speculative decoding has one point with γ 3 and one with γ 5.
    assert [mark["series"] for mark in short] == ["speculative cascade [chow]", "speculative cascade [chow]", "speculative"]
    assert sum(mark["series"] == "speculative" for mark in long) == 1


def test_bild_stands_beside_its_cascade(full_record: Summary) -> None:
    assert variants.bild_variants(full_record) is None, "without the cascade there is nothing to compare"
    stars = [{"rule": "bild", "deferral_cost": cost, "draft_length": 5} for cost in (0.5, 2.0)]
    figure = present(variants.bild_variants(added(full_record, "speculative_cascade", *stars)))
    assert len(figure.panels) == 4
    latency, calls = figure.panels[:2]
    timed, all_points = (drawn(panel, "point") for panel in (latency, calls))
    names = {mark["series"] for mark in all_points}
    assert names == {"BiLD* γ 5", *(f"BiLD α_FB {threshold} ≤ 10" for threshold in (0.5, 0.6, 0.7, 0.8, 0.9))}
    assert len(timed) < len(all_points) == 2 + 5 * 5, "latency is never predicted here"
    assert all(full_record.points[mark["point"]].timed for mark in timed if mark["point"] < len(full_record.points))


def test_lossy_residuals_are_compared_where_tokens_are_drawn(full_record: Summary) -> None:
    lossy = [{"draft_length": 5, "lossiness": lossiness, "tuned": tuned} for tuned in (False, True) for lossiness in (0.2, 0.5)]
    assert variants.lossy_variants(added(full_record, "speculative_lossy", *lossy)) is None, "greedy, both are exact"
    drawn_tokens = SamplingSettings(temperature=1.0)
    assert variants.lossy_variants(added(full_record, "speculative_lossy", lossy[0], sampling=drawn_tokens)) is None
    figure = present(variants.lossy_variants(added(full_record, "speculative_lossy", *lossy, sampling=drawn_tokens)))
    marks = drawn(figure.panels[0], "point")
    assert [mark["series"] for mark in marks] == ["speculative lossy, β = 1"] * 2 + ["speculative lossy, β tuned"] * 2
