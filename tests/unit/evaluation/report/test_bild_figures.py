"""What the figures of BiLD show: threshold maps, the oracle's curve, ablations."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tasks.evaluation.report.figures import bild
from tasks.evaluation.results.rows import TimedPoint, UntimedPoint
from tasks.evaluation.results.summary import Summary
from tests.charts import drawn, layers, points, present

Row = dict[str, Any]


def heat_maps(summary: Summary, arm: str) -> list[list[Row]]:
    """The cells of a drafter's two maps."""
    panels = present(bild.threshold_maps(summary)).panels
    return [drawn(panel, "rect", filled=None) for panel in panels if panel.to_dict()["title"].startswith(arm)]


def test_the_threshold_map_sets_each_point_in_its_cell(full_record: Summary) -> None:
    quality, speedup = heat_maps(full_record, "unaligned")
    assert {cell["y"] for cell in quality} == {"1", "2", "3", "5", "∞"}
    cells = {(cell["x"], cell["y"]): cell for cell in speedup}
    assert len(cells) == len(speedup) == len(quality) == 30
    for point in points(full_record, "unaligned", "bild"):
        if point.settings["max_draft"] == 12:  # of another grid
            continue
        rollback = f"{float(point.settings['rollback_threshold'] or 0):g}".replace("inf", "∞")
        cell = cells[f"{point.settings['fallback_threshold']:g}", rollback]
        assert cell["difference"] == pytest.approx(point.quality_difference)
        assert cell["measured"] is isinstance(point, TimedPoint)
        expected = point.speedup if point.speedup is not None else point.predicted and point.predicted.speedup
        assert cell["speedup"] == pytest.approx(expected)


def test_a_heat_map_is_even_about_vanilla(full_record: Summary) -> None:
    for panel in present(bild.threshold_maps(full_record)).panels:
        layer, cells = next(layers(panel))
        low, middle, high = layer["encoding"]["color"]["scale"]["domain"]
        field, middle_expected = ("speedup", 1.0) if "speed-up" in panel.to_dict()["title"] else ("difference", 0.0)
        assert middle == middle_expected and high - middle == pytest.approx(middle - low)
        assert high - middle == pytest.approx(max(abs(cell[field] - middle) for cell in cells))


def test_a_point_that_behaves_like_a_timed_one_has_its_speed(full_record: Summary) -> None:
    timed = next(point for point in points(full_record, "unaligned", "bild") if isinstance(point, TimedPoint))
    values = {field.name: getattr(timed, field.name) for field in dataclasses.fields(UntimedPoint)}
    settings = {**timed.settings, "rollback_threshold": 9.0}
    twin = UntimedPoint(**{**values, "timed": False, "speedup": None, "same_as": timed.settings, "settings": settings})
    summary = dataclasses.replace(full_record, points=[*full_record.points, twin])
    (cell,) = [cell for cell in heat_maps(summary, "unaligned")[1] if cell["y"] == "9"]
    assert (cell["speedup"], cell["measured"]) == (timed.speedup, True)


def test_the_oracle_curve_is_over_the_share_of_replaced_tokens(full_record: Summary) -> None:
    (panel,) = present(bild.oracle_curve(full_record)).panels
    marks = drawn(panel, "point")
    for arm in ("aligned", "unaligned"):
        own = points(full_record, arm, "bild_oracle")
        shares = [100 * point.counts.rollbacks / point.counts.tokens for point in own]
        assert [mark["x"] for mark in marks if mark["series"] == arm] == pytest.approx(shares, abs=1e-4)
        band = [(mark["low"], mark["high"]) for mark in drawn(panel, "area") if mark["series"] == arm]
        assert band == [pytest.approx(point.quality_interval) for point in own] and len(own) == 4


def test_a_policy_that_no_point_leaves_out_is_not_in_the_legend(full_record: Summary) -> None:
    kept = [point for point in full_record.points if point.settings.get("rollback_threshold") != "inf"]
    panels = present(bild.ablations(dataclasses.replace(full_record, points=kept))).panels
    for panel in panels:
        scales = [
            encoding["color"]["scale"]["domain"]
            for layer, _ in layers(panel)
            if "scale" in (encoding := layer["encoding"]).get("color", {})
        ]
        assert scales and all(domain == ["BiLD", "without fallback"] for domain in scales)


def test_ablations_keep_the_policies_apart(full_record: Summary) -> None:
    figure = present(bild.ablations(full_record))
    assert [panel.to_dict()["title"] for panel in figure.panels] == ["aligned", "unaligned"]
    for panel in figure.panels:
        kinds: dict[str, set[tuple[bool, bool]]] = {}
        for record in drawn(panel, "point"):
            settings = full_record.points[record["point"]].settings
            off = (settings["fallback_threshold"] == 0, settings["rollback_threshold"] == "inf")
            kinds.setdefault(record["series"], set()).add(off)
        assert kinds["BiLD"] == {(False, False)} and kinds["without rollback"] == {(False, True)}
        assert {off[0] for off in kinds["without fallback"]} == {True}
