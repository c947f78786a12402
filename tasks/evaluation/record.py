"""Runs in MLflow: one for each report, and one for each sweep with a child run for each timed point and a table of all points.

Names are chosen so that a scatter of quality against latency, parallel coordinates over thresholds, and a table grouped by arm
need no preparation. Predictions have names of their own: a point that was not timed has no `speedup`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from tasks import tracking
from tasks.evaluation.results.codec import encode, joined
from tasks.evaluation.results.pair import AcceptanceRate, PairRecord
from tasks.evaluation.results.rows import MeasuredRow, Measurements, SweepRow, TimedRow, numbers_of
from tasks.lineage import datasets, lineage
from tasks.paths import TaskPaths
from tasks.tracking.recorder import Values

_TAGS = ("method", "lossless", "split", "how", "why", "error")
_COSTS = ("encode_small_ms", "encode_large_ms", "small_step_ms", "cost_ratio")
_PLAN = ("points", "replayed", "distinct", "timed", "replay_seconds", "timing_seconds")
_COLOR_TAG = "mlflow.runColor"
_COLORS = {"aligned": "#0072B2", "unaligned": "#D55E00"}
"""Run colours in MLflow, the same as in the report: its charts cannot group points without averaging them."""
_FLUSH_SECONDS = 60.0
_MOST_BYTES = 20_000_000
"""Larger files of outputs stay on disk alone."""
_COLUMNS = (
    *("quality", "quality_difference_interval_low", "quality_difference_interval_high", "speedup", "predicted_speedup"),
    *("latency_ms_p50", "latency_ms_p95", "large_calls_per_token", "acceptance_rate"),
)
"""Numbers in the table of points."""
_COMPARED = "## Aligned against unaligned"
_VIEW = "aligned-against-unaligned"
"""Name of a view of the experiment's runs: quality against relative latency of all timed points on validation."""
_ADDRESS = f"#/experiments/{{experiment}}/runs?viewStateShareKey={_VIEW}&compareRunsMode=CHART"
_FIGURE = "Both arms in one figure: *Artifacts*, `report/pareto.png`; the numbers of its frontiers: `frontier.json`."


class SweepRecord(tracking.Recorder):
    """The run of a sweep, written point by point; a context manager that ends the run when the sweep ends.

    Args:
        paths: of the task, whose name is the experiment.
        arm: unaligned or aligned.
        runtime: what the large model runs on, described.
        settings: of the sweep, for the run's params.
        inputs: the files that the sweep reads, for lineage.
        seed: of the drafter's training, where it is not the first; its sweep is a run of its own.
    """

    def __init__(
        self, paths: TaskPaths, arm: str, runtime: str, settings: Values, inputs: Sequence[Path | str], seed: int | None = None
    ) -> None:
        self._table = dict[str, dict[str, object]]()
        self._tags = {"kind": "sweep", "stage": "sweep", "arm": arm, "runtime": runtime, _COLOR_TAG: _COLORS[arm]}
        self._arm, self._pair = arm, PairRecord()
        super().__init__(
            paths.task,
            f"sweep {arm}" + ("" if seed is None else f" seed {seed}"),
            tags={**self._tags, **lineage(inputs=inputs)},
            params={**settings, "arm": arm},
            flush_seconds=_FLUSH_SECONDS,
        )
        self.log_inputs(datasets(inputs, "sweep"))

    def pair(self, pair: PairRecord) -> None:
        """Records what is known of the two models by now on this run and on the points that follow."""
        self._pair = pair
        self.log_metrics(pair_metrics(pair))

    def point(self, row: SweepRow) -> None:
        """Records a finished point: one that was timed, will not be timed, or failed."""
        settings = row.settings
        shown = [f"{name}={value}" for name, value in settings.items() if (name, value) != ("drafter", "small")]
        measured, timed = isinstance(row, MeasuredRow), isinstance(row, TimedRow)
        tags = {name: getattr(row, name, None) for name in _TAGS}
        name = " ".join([row.method, self._arm, *shown, row.split])
        numbers = {**point_metrics(row), **acceptance_metrics(row, self._pair)} if isinstance(row, MeasuredRow) else {}
        described = {**tags, "settings": " ".join(shown), "timed": timed}
        self._table[name] = {"arm": self._arm, **described, **{metric: numbers.get(metric) for metric in _COLUMNS}}
        if measured and not timed:
            return
        self.child(
            name,
            tags={**self._tags, "kind": "point", "timed": timed, **tags},
            params={**settings, "arm": self._arm, "method": row.method},
            metrics=numbers,
            status="FINISHED" if measured else "FAILED",
        )

    def keep(self, files: Sequence[Path]) -> None:
        """Attaches files to the run, and the table of its points."""
        for file in files:
            self.log_artifact(file)
        if self._table:
            rows = list(self._table.values())
            self.log_table("points", {name: [row[name] for row in rows] for name in rows[0]})


def uploaded_hypotheses(folder: Path) -> list[Path]:
    """The files of a sweep's outputs that are attached to its run: those of at most `_MOST_BYTES`."""
    return [file for file in sorted(folder.glob("hypotheses-*.parquet")) if file.stat().st_size <= _MOST_BYTES]


def record_report(
    paths: TaskPaths,
    metric: str,
    metrics: Mapping[str, float],
    files: Sequence[Path],
    inputs: Sequence[Path | str],
    pair: tracking.RegisteredModel | None,
    verdict: str,
    frontier: Mapping[str, Sequence[object]],
    alignment: Sequence[str] = (),
) -> None:
    """Records the report as a run with its numbers and files.

    Args:
        paths: of the task, whose name is the experiment.
        metric: the quality metric.
        metrics: the report's numbers under flat names.
        files: the files that it wrote.
        inputs: the files that it reads, for lineage.
        pair: the recommended pair, which becomes a version of a registered model.
        verdict: in Markdown, of the description of the run.
        frontier: its columns, a table in the run.
        alignment: sentences on what alignment gives, with which the descriptions of the run and of the experiment begin.
    """
    tags = {"kind": "report", "stage": "report", "metric": metric, **lineage(inputs=inputs)}
    with tracking.Recorder(paths.task, "report", tags, {}, flush_seconds=_FLUSH_SECONDS) as report:
        report.log_metrics(metrics)
        report.log_inputs(datasets(inputs, "report"))
        for file in files:
            report.log_artifact(file, folder="report")
        compared = "\n".join([_COMPARED, "", *(f"- {sentence}" for sentence in alignment), "", ""]) if alignment else ""
        if compared:
            view = resources.files("tasks.evaluation").joinpath("compared_arms.json").read_text(encoding="utf-8")
            report.describe_experiment(f"{compared}[Both arms in one chart]({_ADDRESS})\n\n{_FIGURE}", {_VIEW: view})
        report.describe(f"{compared}{verdict}\n\n{_FIGURE}")
        report.log_table("frontier", frontier)
        if pair is not None:
            report.log_model(pair)


def point_metrics(row: MeasuredRow) -> dict[str, float]:
    """The measurements of a row under flat names; predictions as `predicted_speedup` and `predicted_latency_ms`."""
    found = encode(joined(Measurements, row, **numbers_of(row)))
    flat = {**found.pop("qualities"), **{f"count_{name}": value for name, value in found.pop("counts").items()}}
    for name in ("predicted", "difference_bounds"):
        flat |= {f"{name}_{part}": value for part, value in (found.pop(name) or {}).items()}
    for name in [name for name in found if name.endswith("_interval") and found[name]]:
        flat[f"{name}_low"], flat[f"{name}_high"] = found[name]
    if isinstance(row, TimedRow):
        flat["relative_latency"] = 1 / row.speedup
    return {name: float(value) for name, value in {**found, **flat}.items() if isinstance(value, int | float)}


def pair_metrics(pair: PairRecord) -> dict[str, float]:
    """What a sweep recorded of its two models and of itself, under flat names."""
    error = None if pair.plan is None else pair.plan.prediction_error
    found: dict[str, float | None] = {
        **{name: getattr(pair.costs, name, None) for name in _COSTS},
        **{name: getattr(pair.plan, name, None) for name in _PLAN},
        "prediction_error_mean": None if error is None else error.mean,
        "prediction_error_worst": None if error is None else error.worst,
        **_rate("acceptance_rate", pair.acceptance_rate()),
        **_rate("acceptance_rate_sampled", pair.acceptance_rate(sampled=True)),
    }
    return {name: value for name, value in found.items() if value is not None}


def acceptance_metrics(row: MeasuredRow, pair: PairRecord) -> dict[str, float]:
    """E Σ min(p, q) of what drafts, greedy or sampled like the row; empty where nothing does, or where it was not measured."""
    if not (row.counts.small_steps or row.counts.drafted):
        return {}
    sampled = row.sampling is not None and row.sampling.temperature > 0
    return _rate("acceptance_rate", pair.acceptance_rate(sampled=sampled, drafter=row.drafter))


def _rate(name: str, measured: AcceptanceRate | None) -> dict[str, float]:
    if measured is None:
        return {}
    low, high = measured.interval
    return {name: measured.rate, f"{name}_low": low, f"{name}_high": high}
