"""What the Pareto figure shows."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.evaluation.report.figures.pareto import pareto
from tasks.evaluation.results.points import TimedPoint, UntimedPoint
from tasks.evaluation.results.summary import Summary
from tests.charts import channels, drawn, layers
from tests.unit.evaluation.conftest import summary_record

Sweeps = dict[str, list[dict[str, Any]]]


def test_the_pareto_figure_names_what_is_chosen(sweeps: Sweeps) -> None:
    figure = pareto(summary_record("bleu", sweeps))
    everything, close = figure.panels
    letters = {record["letter"]: (record["x"], record["y"]) for record in drawn(close, "text") if "letter" in record}
    places = {"A": (1 / 1.6, 59.9), "B": (1 / 1.3, 60.0), "C": (1 / 1.5, 59.2)}
    assert letters == {letter: pytest.approx(place, rel=1e-5) for letter, place in places.items()}
    key = close.to_dict()["title"]["subtitle"]
    assert key == [
        "A  1.60× BiLD, aligned: no loss, ≤ 1 point",
        "B  1.30× speculative, unaligned: no loss",
        "C  1.50× BiLD, unaligned: ≤ 1 point",
    ]
    named = {record["text"] for record in drawn(everything, "text") if "text" in record}
    assert named == {"vanilla large", "small 4.0×"}
    assert figure.title == "toy: BLEU against latency (validation split, 200 examples)"


def test_frontiers_are_steps_through_the_points_of_all_methods(sweeps: Sweeps) -> None:
    everything = pareto(summary_record("bleu", sweeps)).panels[0]
    steps = [record for record in drawn(everything, "line", interpolate="step-after") if record["series"] == "aligned"]
    # The last corner is speculative decoding, which beats BiLD's best quality there.
    corners = [(1 / 2.1, 58.9), (1 / 1.6, 59.9), (1 / 1.5, 60.0), (1.0, 60.0)]
    assert [value for step in steps for value in (step["x"], step["y"])] == pytest.approx(
        [value for corner in corners for value in corner], rel=1e-5
    )


def test_intervals_of_a_speedup_lie_on_the_axis_of_latency(sweeps: Sweeps) -> None:
    close = pareto(summary_record("bleu", sweeps)).panels[1]
    chosen = next(record for record in drawn(close, "rule") if record.get("letter") == "A")
    assert (chosen["left"], chosen["right"]) == pytest.approx((1 / 1.65, 1 / 1.55), rel=1e-5)
    order = [layer["mark"]["type"] for layer, _ in layers(close)]
    assert order.index("rule") < order.index("point"), "intervals lie under the points"
    scales = [channel["scale"] for channel in channels(close, "y") if "scale" in channel]
    assert {scale["domain"][0] for scale in scales} == {58.0}, "two points below vanilla"


def test_points_that_were_not_timed_are_hollow_and_on_the_page_alone(full_record: Summary) -> None:
    for predicted in (False, True):
        everything = pareto(full_record, predicted=predicted).panels[0]
        marked = drawn(everything, "point")
        shown = {index for record in marked if (index := record.get("point")) is not None}
        hollow = {record["point"] for record in drawn(everything, "point", filled=False)}
        untimed_points = {index for index, point in enumerate(full_record.points) if isinstance(point, UntimedPoint)}
        timed_points = {index for index, point in enumerate(full_record.points) if isinstance(point, TimedPoint)}
        assert hollow == (untimed_points if predicted else set())
        assert shown - hollow == timed_points
        rims = [record for record in marked if record.get("state") == "chosen"]
        assert len(rims) == sum(point.chosen is not None for point in full_record.points)
