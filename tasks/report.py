"""Stage `report`: the rows of both sweeps as summary, table, figure and metrics.

`python -m tasks.report --task translation`
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks import tracking
from tasks.errors import InputError, stage
from tasks.evaluation import figures
from tasks.evaluation.frontier import Point, frontier
from tasks.evaluation.rows import Row, read_rows
from tasks.evaluation.summary import summarize, sweep_command
from tasks.evaluation.table import as_markdown, as_text, settings_text, table_rows
from tasks.paths import DRAFTERS, TaskPaths

_NAMED = ("split", "method", "settings", "metric")
_MEASURED = ("quality", "speedup", "latency_ms", "counts", "lossless")
_CSV = ("relative_latency", "speedup", "quality", "drafter", "method", "settings")


def read_sweeps(paths: TaskPaths, metric: str) -> dict[str, list[Row]]:
    """The rows of each drafter's sweep.

    Raises:
        InputError: a sweep has no rows, a row lacks a field, or it was measured by another metric than the task's.
    """
    sweeps = {}
    for drafter in DRAFTERS:
        path, mend = paths.rows(drafter), f"make it by: {sweep_command(paths.task, drafter)}"
        rows = read_rows(path)
        if not rows:
            raise InputError(f"{path} is missing or holds no rows; {mend}")
        for number, row in enumerate(rows, start=1):
            lacking = [name for name in (*_NAMED, *(() if "error" in row else _MEASURED)) if name not in row]
            if lacking:
                raise InputError(f"{path}, row {number} lacks {lacking[0]!r}; remove the file and {mend}")
            if row["metric"] != metric:
                raise InputError(f"{path}, row {number} chooses by {row['metric']}, but the task's metric is {metric}; {mend}")
        sweeps[drafter] = rows
    return sweeps


def flat_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Quality and speed-up of each row of the table on both splits, and the frontiers' gap, under flat names."""
    metrics = {}
    for row in summary["table"]:
        for split in ("validation", "test"):
            for name in ("quality", "speedup"):
                metrics[f"{row['row']}_{split}_{name}"] = None if row[split] is None else row[split][name]
    gap = summary["frontier"]["gap"] or {}
    for name in ("mean_quality_difference", "share_above", "mean_speedup_ratio"):
        metrics[f"frontier_{name}"] = gap.get(name)
    return {name: value for name, value in metrics.items() if value is not None}


def frontier_csv(summary: Mapping[str, Any]) -> str:
    """The models alone and the frontier of each method with each drafter on validation, for DVC's plots."""
    names = {
        "large": ("vanilla_large", ""),
        "small": ("vanilla_small", "unaligned"),
        "small_aligned": ("vanilla_small", "aligned"),
    }
    found = [
        {**summary["vanilla"][name], "method": method, "drafter": drafter, "settings": {}}
        for name, (method, drafter) in names.items()
        if summary["vanilla"][name] is not None
    ]
    for method, drafter in dict.fromkeys((point["method"], point["drafter"]) for point in summary["points"]):
        own = [point for point in summary["points"] if (point["method"], point["drafter"]) == (method, drafter)]
        found += [own[place] for place in frontier([Point(point["quality"], point["speedup"]) for point in own])]
    file = io.StringIO()
    writer = csv.DictWriter(file, _CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**point, "settings": settings_text(point["settings"])} for point in found)
    return file.getvalue()


def write(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes every file of the report, each under a temporary name first; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "summary.json": _json(summary),
        "metrics.json": _json(flat_metrics(summary)),
        "table.md": as_markdown(summary),
        "frontier.csv": frontier_csv(summary),
    }
    written = []
    for name, text in texts.items():
        partial = folder / f".partial.{name}"
        partial.write_text(text, encoding="utf-8")
        written.append(partial.replace(folder / name))
    figure = figures.pareto_figure(summary)
    for name in ("pareto.png", "pareto.svg"):
        partial = folder / f".partial.{name}"
        figures.save(figure, partial)
        written.append(partial.replace(folder / name))
    return written


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def record(task: str, summary: Mapping[str, Any], files: Sequence[Path], inputs: Sequence[str]) -> None:
    """One MLflow run that holds the report: its numbers as metrics, its files as artifacts."""
    tags = {"kind": "report", "stage": "report", "metric": summary["metric"], **tracking.lineage(inputs=inputs)}
    with tracking.Recorder(task, "report", tags=tags) as run:
        run.log_metrics(flat_metrics(summary))
        for file in files:
            run.log_artifact(file, folder="report")


def main() -> None:
    """Reads `params.yaml` and the rows; writes the report, records it, and prints the table."""
    from tasks.config import load, task_parser

    arguments = task_parser(__doc__).parse_args()
    task, paths = load(arguments.params).task(arguments.task), TaskPaths(arguments.task)
    summary = summarize(paths.task, task.metric, read_sweeps(paths, task.metric))
    summary["table"] = table_rows(summary)
    files = write(summary, paths.results)
    record(paths.task, summary, files, [str(paths.rows(drafter)) for drafter in DRAFTERS])
    print(as_text(summary))


if __name__ == "__main__":
    with stage():
        main()
