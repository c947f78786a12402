"""What a sweep and a report leave in MLflow: a run a sweep with a child a point, and a run a report.

Names are chosen so that a scatter of speed-up against quality, parallel coordinates over thresholds, and a table grouped by
drafter work without preparation. What was only predicted has names of its own: a point that was not timed has no `speedup`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tasks import tracking
from tasks.evaluation.measurements import Row, point_metrics
from tasks.lineage import lineage
from tasks.paths import DRAFTERS, TaskPaths

_TAGS = ("method", "lossless", "split", "how", "why", "error")
_COSTS = ("encode_small_ms", "encode_large_ms", "small_step_ms", "cost_ratio")
_PLAN = ("points", "replayed", "distinct", "timed", "replay_seconds", "timing_seconds")
_COLOR_TAG = "mlflow.runColor"
_COLORS = {"aligned": "#0072B2", "unaligned": "#D55E00"}
"""What MLflow draws a run in, as the report's figures do: its charts cannot group points without averaging them."""
_FLUSH_SECONDS = 60.0


class SweepRecord:
    """The run of a sweep, written point by point; a context manager that ends it as the sweep ends.

    Args:
        paths: of the task, which is the experiment.
        drafter: unaligned or aligned.
        runtime: what the large model runs on, in words.
        settings: the sweep's own, params of the run.
        inputs: the files that it reads, for lineage.
    """

    def __init__(
        self, paths: TaskPaths, drafter: str, runtime: str, settings: Mapping[str, Any], inputs: Sequence[Path | str]
    ) -> None:
        self._tags = {"kind": "sweep", "stage": "sweep", "drafter": drafter, "runtime": runtime, _COLOR_TAG: _COLORS[drafter]}
        self._drafter = drafter
        self._pair: Mapping[str, Any] = {}
        self._run = tracking.Recorder(
            paths.task,
            f"sweep {drafter}",
            tags={**self._tags, **lineage(inputs=inputs)},
            params={**settings, "drafter": drafter},
            flush_seconds=_FLUSH_SECONDS,
        )
        key = _key_file(paths, drafter)
        key.parent.mkdir(parents=True, exist_ok=True)
        key.write_text(json.dumps({"run": self._run.key}) + "\n", encoding="utf-8")

    def pair(self, pair: Mapping[str, Any]) -> None:
        """Notes what is known of the two models (`pair.json`, or the part that is known by now) on this run and its points."""
        self._pair = pair
        self._run.log_metrics(pair_metrics(pair))

    def point(self, row: Row) -> None:
        """Notes a finished point: one that was timed, will not be timed, or failed."""
        settings, failed = row["settings"], "error" in row
        told = [f"{name}={value}" for name, value in settings.items() if (name, value) != ("drafter", "small")]
        words = [row["method"], self._drafter, *told, row["split"]]
        self._run.child(
            " ".join(words),
            tags={**self._tags, "kind": "point", "timed": "speedup" in row, **{name: row.get(name) for name in _TAGS}},
            # What proposes tokens (a setting of many methods) gives its name to the aligned or unaligned model.
            params={**settings, "proposer": settings.get("drafter"), "drafter": self._drafter, "method": row["method"]},
            metrics={} if failed else {**point_metrics(row), **acceptance_metrics(row, self._pair)},
            status="FAILED" if failed else "FINISHED",
        )

    def keep(self, files: Sequence[Path]) -> None:
        """Keeps files beside the run's numbers."""
        for file in files:
            self._run.log_artifact(file)

    def __enter__(self) -> Self:
        self._run.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._run.__exit__(kind, error, traceback)


def record_report(
    paths: TaskPaths, metric: str, metrics: Mapping[str, float], files: Sequence[Path], inputs: Sequence[Path | str]
) -> None:
    """A run of the report's own with its numbers and files; the files lie with the runs of the sweeps as well.

    Args:
        metric: what quality is measured by.
        metrics: the report's numbers under flat names.
        files: what it wrote.
        inputs: the files that it reads, for lineage.
    """
    tags = {"kind": "report", "stage": "report", "metric": metric, **lineage(inputs=inputs)}
    with tracking.Recorder(paths.task, "report", tags, {}, flush_seconds=_FLUSH_SECONDS) as report:
        report.log_metrics(metrics)
        for file in files:
            report.log_artifact(file, folder="report", also_in=_sweeps(paths))


def pair_metrics(pair: Mapping[str, Any]) -> dict[str, float]:
    """What a sweep found out about its two models and about itself (`pair.json`), under flat names."""
    plan = pair.get("plan") or {}
    errors = (plan.get("prediction_error") or {}).get("sample") or {}
    found = {
        **{name: (pair.get("costs") or {}).get(name) for name in _COSTS},
        **{name: plan.get(name) for name in _PLAN},
        "prediction_error_mean": errors.get("mean"),
        "prediction_error_worst": errors.get("worst"),
        **_rate("acceptance_rate", _acceptance(pair, "greedy")),
        **_rate("acceptance_rate_sampled", _acceptance(pair, "sampled")),
    }
    return {name: value for name, value in found.items() if value is not None}


def acceptance_metrics(row: Row, pair: Mapping[str, Any]) -> dict[str, float]:
    """E Σ min(p, q) of the two models, greedy or sampled as the row is; nothing where something else proposes the tokens."""
    if row["settings"].get("drafter", "small") != "small" or not row["counts"]["small_steps"]:
        return {}
    sampled = row.get("sampling", {}).get("temperature", 0.0) > 0
    return _rate("acceptance_rate", _acceptance(pair, "sampled" if sampled else "greedy"))


def _acceptance(pair: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return (pair.get("acceptance") or {}).get(kind) or {}


def _rate(name: str, measured: Mapping[str, Any]) -> dict[str, float]:
    if measured.get("rate") is None:
        return {}
    low, high = measured.get("interval") or (None, None)
    named = {name: measured["rate"], f"{name}_low": low, f"{name}_high": high}
    return {key: float(value) for key, value in named.items() if value is not None}


def _sweeps(paths: TaskPaths) -> list[str]:
    """The keys of the sweeps' runs, of those that noted theirs."""
    files = [_key_file(paths, drafter) for drafter in DRAFTERS]
    return [json.loads(file.read_text(encoding="utf-8"))["run"] for file in files if file.is_file()]


def _key_file(paths: TaskPaths, drafter: str) -> Path:
    """Where a sweep notes the key of its run, for the report to add to."""
    return paths.rows(drafter).with_name("run.json")
