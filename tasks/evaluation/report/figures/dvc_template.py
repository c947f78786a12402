"""The template by which `dvc plots show` and `dvc plots diff` draw frontier.csv, one column for each revision.

`python -m tasks.evaluation.report.figures.dvc_template` writes it to `.dvc/plots/frontier.json`, where DVC looks for it.
"""

from __future__ import annotations

import json
from pathlib import Path

import altair as alt

from tasks.evaluation.report.figures.series import DRAFTER_SERIES, PADDED
from tasks.evaluation.report.figures.theme import CONFIG, INK

PATH = Path(".dvc/plots/frontier.json")
_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
"""Of the Vega-Lite that DVC's page loads."""
_COLORS = {"": INK, **{one.name: one.color for one in DRAFTER_SERIES}}
"""By drafter; the large model alone has none."""


def frontier_template() -> str:
    """A Vega-Lite specification with the anchors that DVC fills: data, title, axes."""
    chart = alt.Chart(alt.NamedData("frontier"), title="<DVC_METRIC_TITLE>", width=360, height=320)
    alone = alt.Legend(labelExpr="datum.label || 'none (large model alone)'")
    marks = chart.mark_point(filled=True, size=60, opacity=0.9).encode(
        x=alt.X("<DVC_METRIC_X>:Q", title="latency relative to vanilla large (= 1)", scale=PADDED),
        y=alt.Y("<DVC_METRIC_Y>:Q", title="<DVC_METRIC_Y_LABEL> (points)", scale=PADDED),
        color=alt.Color("arm:N", scale=alt.Scale(domain=list(_COLORS), range=list(_COLORS.values())), legend=alone),
        shape="method:N",
        column=alt.Column("rev:N", title=None),
        tooltip=["method:N", "arm:N", "settings:N", "quality:Q", "speedup:Q"],
    )
    config = {**CONFIG, "legend": {**CONFIG["legend"], "columns": 4}}
    spec = {**marks.to_dict(), "$schema": _SCHEMA, "config": config, "data": {"values": "<DVC_METRIC_DATA>"}}
    return json.dumps(spec, indent=2) + "\n"


if __name__ == "__main__":
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(frontier_template(), encoding="utf-8")
    print(f"wrote {PATH}")
