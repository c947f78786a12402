"""Saved views of an experiment, which its page in MLflow lists under *Views*.

MLflow 3.17 keeps a saved view as a tag of the experiment: JSON with the state of the page. An older MLflow ignores these tags.
"""

from __future__ import annotations

import json

_POINTS = "tags.kind = 'point' and tags.timed = 'True' and tags.split = '{}' and tags.method != 'vanilla_small'"
_NOTE = """The aligned and the unaligned drafter side by side: *Views* (top right), *Speed-up × quality*.

Where there is no such menu: open the newest run *report* or a run *sweep*. Its description is the verdict; under *Artifacts*
stand `report/pareto.png`, the figure of both, and the tables `frontier.json` and `points.json`."""
_COLUMNS = [
    *(f"params.`{name}`" for name in ("drafter", "method", "fallback_threshold", "rollback_threshold")),
    *(f"metrics.`{name}`" for name in ("speedup", "quality", "acceptance_rate", "large_calls_per_token")),
    "tags.`why`",
]


def experiment_tags(now: int) -> dict[str, str]:
    """Return the tags of a new experiment: its views, and a description that holds where an MLflow does not show them."""
    return {
        "mlflow.experimentKind": "custom_model_development",  # the page opens on runs, not on traces of applications
        "mlflow.note.content": _NOTE,
        **view_tags(now),
    }


def view_tags(now: int) -> dict[str, str]:
    """Return the tags that give an experiment its views; `now` in milliseconds since the epoch.

    `…/#/experiments/ID/runs?viewStateShareKey=points&compareRunsMode=CHART` opens the first, and so on by key.
    """
    speedup, quality = ({"key": name, "type": "METRIC"} for name in ("speedup", "quality"))
    scatter = _chart("scatter", "SCATTER", xaxis=speedup, yaxis=quality)
    thresholds = {"selectedParams": ["drafter", "fallback_threshold", "rollback_threshold"]}
    parallel = _chart("parallel", "PARALLEL", **thresholds, selectedMetrics=["speedup", "quality"], showAllRuns=False)
    # Child runs are hidden under their parents unless the page is sorted by something other than time.
    by_speed = {"orderByKey": "metrics.`speedup`", "orderByAsc": False, "selectedColumns": _COLUMNS}
    curves = [_curve(name) for name in ("loss", "validation_loss", "acceptance_rate", "acceptance_greedy")]
    training = ["params.`optimizer`", "params.`steps`", "metrics.`validation_loss`", "metrics.`acceptance_rate`"]
    views = {
        "points": ("Speed-up × quality (validation)", _state(_POINTS.format("validation"), [scatter, parallel], **by_speed)),
        "test": ("Speed-up × quality (test)", _state(_POINTS.format("test"), [scatter], **by_speed)),
        "training": ("Training curves", _state("tags.kind = 'training'", curves, selectedColumns=training)),
    }
    return {
        f"mlflow.sharedViewState.{key}": json.dumps({"name": name, "createdAt": now, "updatedAt": now, "state": state})
        for key, (name, state) in views.items()
    }


def _state(shown: str, charts: list[dict[str, object]], **more: object) -> str:
    """Return a page of the runs that the filter `shown` finds, all of them visible, with the charts side by side."""
    flags = {"display": True, "isReordered": False, "deleted": False, "isGenerated": False}
    section = {"uuid": "charts", "name": "Charts", "columns": 2, "cardHeight": 480, **flags}
    page = {"searchFilter": shown, "startTime": "ALL", "lifecycleFilter": "Active", "runsHiddenMode": "SHOWALL"}
    return json.dumps({**page, "compareRunCharts": charts, "compareRunSections": [section], **more})


def _chart(key: str, kind: str, **more: object) -> dict[str, object]:
    common = {"uuid": key, "metricSectionId": "charts", "deleted": False, "isGenerated": False, "runsCountToCompare": 500}
    return {"type": kind, **common, **more}


def _curve(metric: str) -> dict[str, object]:
    """Return a line as it was recorded; by default MLflow smooths curves."""
    unsmoothed = {"useGlobalLineSmoothing": False, "lineSmoothness": 0}
    return _chart(metric, "LINE", metricKey=metric, selectedMetricKeys=[metric], xAxisKey="step", **unsmoothed)
