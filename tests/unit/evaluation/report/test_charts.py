from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go
import pytest

from tasks.evaluation.report.charts import panel_spec, panel_specs
from tasks.evaluation.report.figures import described_charts
from tasks.evaluation.report.figures.explored import pareto_chart
from tasks.evaluation.report.figures.series import Bars, Heat, Panel, Rule, Spots
from tasks.evaluation.report.summary import summarize

Row = dict[str, Any]
Sweeps = dict[str, list[Row]]


def test_plotly_knows_every_field(full_summary: Row, full_sweeps: Sweeps) -> None:
    charts = [pareto_chart(full_summary), *described_charts(full_summary, full_sweeps).values()]
    specs = [spec for chart in charts for spec in panel_specs(chart)]
    assert len(specs) == sum(len(chart.panels) for chart in charts) > len(charts)
    for spec in specs:
        go.Figure(data=spec["data"], layout=spec["layout"])  # raises for a field or a value that plotly does not have
        json.dumps(spec, allow_nan=False)


def test_intervals_become_lengths_on_both_sides() -> None:
    spots = Spots("a", [1.0, 2.0], [5.0, 6.0], "red", x_intervals=[(0.5, 1.25), None], y_intervals=[None, (4.0, 9.0)])
    (trace,) = panel_spec(Panel("", "x", "y", [spots]))["data"]
    assert (trace["error_x"]["arrayminus"], trace["error_x"]["array"]) == ([0.5, 0.0], [0.25, 0.0])
    assert (trace["error_y"]["arrayminus"], trace["error_y"]["array"]) == ([0.0, 2.0], [0.0, 3.0])


def test_texts_are_escaped_and_broken_into_lines() -> None:
    spots = Spots("<b>", [1.0], [1.0], "red", ["<i>\nsecond & third"])
    spec = panel_spec(Panel("a < b", "<x>", "y", [spots], rules=[Rule("<rule>", y=1.0)]))
    (trace,) = spec["data"]
    assert trace["text"] == ["&lt;i&gt;<br>second &amp; third"] and trace["name"] == "&lt;b&gt;"
    assert spec["layout"]["title"]["text"] == "a &lt; b" and spec["layout"]["xaxis"]["title"]["text"] == "&lt;x&gt;"
    assert spec["layout"]["annotations"][0]["text"] == "&lt;rule&gt;"


def test_a_map_is_even_about_its_middle() -> None:
    heat = Heat(["0.1", "∞"], ["1"], [[-3.0, 1.0]], [["a", "b"]], middle=0.0, marked=[[False, True]], signed=True)
    spec = panel_spec(Panel("", "x", "y", heat=heat))
    (trace,) = spec["data"]
    assert (trace["zmin"], trace["zmax"]) == (-3.0, 3.0)
    assert trace["text"] == [["−3.00", "<b>[+1.00]</b>"]]
    assert spec["layout"]["xaxis"]["ticktext"] == ["0.1", "∞"]


def test_lying_bars_begin_at_the_top() -> None:
    bars = [Bars("a", [1.0, 2.0], "red"), Bars("b", [3.0, None], "blue", hatched=True)]
    spec = panel_spec(Panel("", "", "ms", bars=bars, categories=["first", "second"], stacked=True))
    assert [trace["x"] for trace in spec["data"]] == [[1.0, 2.0], [3.0, None]]
    assert spec["layout"]["yaxis"]["autorange"] == "reversed" and spec["layout"]["barmode"] == "relative"
    assert spec["layout"]["xaxis"]["title"]["text"] == "ms"


def test_the_page_shows_what_was_only_predicted_as_such(full_summary: Row) -> None:
    (panel,) = pareto_chart(full_summary).panels
    shown = [(spots, text) for spots in panel.spots for text in spots.texts]
    untimed = [point for point in full_summary["points"] if not point["timed"]]
    hollow = [text for spots, text in shown if spots.hollow]
    assert len(hollow) == len(untimed) > 0
    assert all("(predicted, not timed)" in text for text in hollow)
    assert not any("predicted" in text for spots, text in shown if not spots.hollow)
    rims = sum(len(spots.x) for spots in panel.spots if spots.rim)
    assert rims == sum(point["chosen"] is not None for point in full_summary["points"])


def test_each_name_stands_once_in_the_legend(full_summary: Row) -> None:
    (spec,) = panel_specs(pareto_chart(full_summary))
    names = [trace["name"] for trace in spec["data"] if trace["showlegend"]]
    assert len(names) == len(set(names))
    groups = {trace["legendgroup"] for trace in spec["data"]}
    assert groups == set(names), "every mark is shown and hidden by a name of the legend"


def test_intervals_of_a_speedup_stand_on_the_axis_of_latency(sweeps: Sweeps) -> None:
    summary = summarize("toy", "bleu", sweeps)
    (panel,) = pareto_chart(summary).panels
    (chosen,) = [spots for spots in panel.spots if spots.name == "BiLD, aligned" and spots.rim]
    assert chosen.x_intervals[0] == pytest.approx((1 / 1.65, 1 / 1.55))
    near, everything = panel.windows.values()
    assert near[1][0] == 58.0 and everything[1][0] < 42.0
