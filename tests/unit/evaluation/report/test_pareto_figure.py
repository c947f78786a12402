"""What the Pareto figure shows."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tasks.evaluation.report.figures.pareto import everything, pareto
from tasks.evaluation.results.rows import TimedPoint, UntimedPoint
from tasks.evaluation.results.summary import Summary
from tests.charts import channels, drawn, layers
from tests.unit.evaluation.conftest import summary_record

Sweeps = dict[str, list[dict[str, Any]]]


def test_the_pareto_figure_names_what_is_chosen(sweeps: Sweeps) -> None:
    figure = pareto(summary_record("bleu", sweeps))
    close = figure.panels[0]
    letters = {record["name"]: (record["x"], record["y"]) for record in drawn(close, "text") if "name" in record}
    places = {"A": (1 / 1.6, 59.9), "B": (1 / 1.3, 60.0), "C": (1 / 1.5, 59.2)}
    assert letters == {letter: pytest.approx(place, rel=1e-5) for letter, place in places.items()}
    key = close.to_dict()["title"]["subtitle"]
    assert key == [
        "A  1.60× BiLD, aligned: no loss, ≤ 1 point, recommended",
        "B  1.30× speculative, unaligned: no loss",
        "C  1.50× BiLD, unaligned: ≤ 1 point",
    ]
    assert figure.title == "toy: BLEU against latency, within 2 points of vanilla large"
    alone = everything(summary_record("bleu", sweeps)).panels[0]
    assert {record["text"] for record in drawn(alone, "text") if "text" in record} == {"vanilla large", "small 4.0×"}


def test_lettered_points_on_test_stand_apart_joined_to_validation_and_say_what_is_contradicted(sweeps: Sweeps) -> None:
    (row,) = [row for row in sweeps["aligned"] if (row["split"], row["method"]) == ("test", "bild")]
    for upper, name in ((-0.2, "A"), (-1.2, "A contradicted")):
        row["difference_bounds"] = {"lower": -1.9, "upper": upper, "compared": 1}
        panels = pareto(summary_record("bleu", sweeps)).panels
        record = drawn(panels[1], "point", filled=True)[0]
        assert record["name"] == name and record["where"] == "on test"
        assert (record["x"], record["y"]) == pytest.approx((1 / 1.55, -0.6), abs=1e-5)
        assert (record["from_x"], record["from_y"]) == pytest.approx((1 / 1.6, -0.1), abs=1e-5)
        assert {one["where"] for one in drawn(panels[1], "point", filled=False)} == {"on validation"}
        on_validation, on_test = (panel.to_dict()["title"]["subtitle"] for panel in panels)
        assert ("contradicted" in on_validation[0], "contradicted" in on_test[0]) == (name != "A", name != "A")
        assert on_test[1] == "B  not measured on test"


def test_a_legend_names_few_methods_and_oracles_are_left_out(full_record: Summary) -> None:
    points = [
        dataclasses.replace(point, method=f"method_{place % 9}") if place % 2 and point.method != "bild_oracle" else point
        for place, point in enumerate(full_record.points)
    ]
    for figure in (pareto, everything):
        panel = figure(dataclasses.replace(full_record, points=points), predicted=True).panels[0]
        [names] = {tuple(channel["scale"]["domain"]) for channel in channels(panel, "shape") if channel.get("scale")}
        assert len(names) == 6 and names[0] == "BiLD" and names[-1] == "other methods"
        assert "bild oracle" not in names


def test_frontiers_are_steps_through_the_points_of_all_methods(sweeps: Sweeps) -> None:
    panel = everything(summary_record("bleu", sweeps)).panels[0]
    steps = [record for record in drawn(panel, "line", interpolate="step-after") if record["series"] == "aligned"]
    # The last corner is speculative decoding, which beats BiLD's best quality there.
    corners = [(1 / 2.1, 58.9), (1 / 1.6, 59.9), (1 / 1.5, 60.0), (1.0, 60.0)]
    assert [value for step in steps for value in (step["x"], step["y"])] == pytest.approx(
        [value for corner in corners for value in corner], rel=1e-5
    )


def test_intervals_of_a_speedup_lie_on_the_axis_of_latency(sweeps: Sweeps) -> None:
    close = pareto(summary_record("bleu", sweeps)).panels[0]
    chosen = next(record for record in drawn(close, "rule") if record.get("name") == "A")
    assert (chosen["left"], chosen["right"]) == pytest.approx((1 / 1.65, 1 / 1.55), rel=1e-5)
    order = [layer["mark"]["type"] for layer, _ in layers(close)]
    assert order.index("rule") < order.index("point"), "intervals lie under the points"
    scales = [channel["scale"] for channel in channels(close, "y") if "scale" in channel]
    assert {scale["domain"][0] for scale in scales} == {58.0}, "two points below vanilla"


def test_points_that_were_not_timed_are_hollow_and_on_the_page_alone(full_record: Summary) -> None:
    for predicted in (False, True):
        panel = everything(full_record, predicted=predicted).panels[0]
        marked = drawn(panel, "point")
        shown = {index for record in marked if (index := record.get("point")) is not None}
        hollow = {record["point"] for record in drawn(panel, "point", filled=False)}
        untimed_points = {
            index
            for index, point in enumerate(full_record.points)
            if isinstance(point, UntimedPoint) and point.method != "bild_oracle"
        }
        timed_points = {index for index, point in enumerate(full_record.points) if isinstance(point, TimedPoint)}
        assert hollow == (untimed_points if predicted else set())
        assert shown - hollow == timed_points
        rims = [record for record in marked if record.get("state") == "chosen"]
        assert len(rims) == sum(point.chosen is not None for point in full_record.points)
