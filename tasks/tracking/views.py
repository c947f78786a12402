"""Saved views of an experiment: what its page in MLflow shows under *Views*, without anything to set up.

MLflow keeps a saved view as a tag of the experiment: JSON with a name, times, and the state of its page (3.17). An older MLflow
does not look at these tags. The names that the charts read are those that the stages record.
"""

from __future__ import annotations

import json
from typing import Any

_PREFIX = "mlflow.sharedViewState."
_POINTS = "tags.kind = 'point' and tags.timed = 'True' and tags.split = '{split}' and tags.method != 'vanilla_small'"
Chart = dict[str, Any]


def view_tags(now: int) -> dict[str, str]:
    """Tags of an experiment that has these views; `now` in milliseconds since the epoch.

    `…/#/experiments/ID/runs?viewStateShareKey=points&compareRunsMode=CHART` opens the first, and so on by key.
    """
    scatter = _chart("scatter", "SCATTER", xaxis=_metric("speedup"), yaxis=_metric("quality"))
    thresholds = ["drafter", "fallback_threshold", "rollback_threshold"]
    parallel = _chart(
        "parallel", "PARALLEL", selectedParams=thresholds, selectedMetrics=["speedup", "quality"], showAllRuns=False
    )
    # Nested runs hide under their parents unless the page is sorted by something else than time.
    by_speed = {"orderByKey": "metrics.`speedup`", "orderByAsc": False}
    columns = [
        *(f"params.`{name}`" for name in ("drafter", "method", "fallback_threshold", "rollback_threshold")),
        *(f"metrics.`{name}`" for name in ("speedup", "quality", "acceptance_rate", "large_calls_per_token")),
        "tags.`why`",
    ]
    views = {
        "points": (
            "Speed-up × quality (validation)",
            _state(_POINTS.format(split="validation"), [scatter, parallel], by_speed, columns),
        ),
        "test": ("Speed-up × quality (test)", _state(_POINTS.format(split="test"), [scatter], by_speed, columns)),
        "training": (
            "Training curves",
            _state(
                "tags.kind = 'training'",
                [_curve(name) for name in ("loss", "validation_loss", "acceptance_rate", "acceptance_greedy")],
                {},
                ["params.`optimizer`", "params.`steps`", "metrics.`validation_loss`", "metrics.`acceptance_rate`"],
            ),
        ),
    }
    return {
        f"{_PREFIX}{key}": json.dumps({"name": name, "createdAt": now, "updatedAt": now, "state": json.dumps(state)})
        for key, (name, state) in views.items()
    }


def _state(shown: str, charts: list[Chart], order: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    """A page of the runs that the filter `shown` finds, all of them visible, with the charts side by side."""
    section = {
        "uuid": "charts",
        "name": "Charts",
        "display": True,
        "isReordered": False,
        "deleted": False,
        "isGenerated": False,
    }
    return {
        "searchFilter": shown,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        **order,
        "runsHiddenMode": "SHOWALL",
        "selectedColumns": columns,
        "compareRunCharts": charts,
        "compareRunSections": [{**section, "columns": 2, "cardHeight": 480}],
    }


def _chart(key: str, kind: str, **more: Any) -> Chart:
    common = {"uuid": key, "metricSectionId": "charts", "deleted": False, "isGenerated": False, "runsCountToCompare": 500}
    return {"type": kind, **common, **more}


def _curve(metric: str) -> Chart:
    """A line as it was recorded: MLflow smooths curves unless it is told not to."""
    unsmoothed = {"useGlobalLineSmoothing": False, "lineSmoothness": 0}
    return _chart(metric, "LINE", metricKey=metric, selectedMetricKeys=[metric], xAxisKey="step", **unsmoothed)


def _metric(name: str) -> dict[str, str]:
    return {"key": name, "type": "METRIC"}
