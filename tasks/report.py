"""Stage `report`: the rows of both sweeps as summary, tables, figures, metrics and the verdict.

`python -m tasks.report --task translation`
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.errors import InputError, stage
from tasks.evaluation.frontier import BASELINES
from tasks.evaluation.record import record_report
from tasks.evaluation.report import figures
from tasks.evaluation.report.curves import ALL_METHODS
from tasks.evaluation.report.page import page
from tasks.evaluation.report.points import sweep_command
from tasks.evaluation.report.rendered_tables import tables_markdown
from tasks.evaluation.report.summary import summarize
from tasks.evaluation.report.table import as_markdown, as_text, settings_text, table_rows
from tasks.evaluation.report.verdict import as_lines
from tasks.evaluation.rows import Row, read_rows
from tasks.paths import DRAFTERS, TaskPaths

_NAMED = ("split", "method", "settings", "metric")
_COUNTED = ("quality", "counts", "lossless")
_TERMINAL = 120
"""Letters a line of the verdict."""
_CSV = ("relative_latency", "speedup", "quality", "drafter", "method", "settings")

Maker = Callable[[Path], object]
"""Writes one file under the path that it is given."""


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
            lacking = [name for name in _needed(row) if name not in row]
            if lacking:
                raise InputError(f"{path}, row {number} lacks {lacking[0]!r}; remove the file and {mend}")
            if row["metric"] != metric:
                raise InputError(f"{path}, row {number} chooses by {row['metric']}, but the task's metric is {metric}; {mend}")
        sweeps[drafter] = rows
    return sweeps


def _needed(row: Row) -> Sequence[str]:
    """What a row must hold: one that failed what it was, one that was not timed what was counted, one that was the times."""
    if "error" in row:
        return _NAMED
    timed = "speedup" in row or "latency_ms" in row
    return (*_NAMED, *_COUNTED, *(("speedup", "latency_ms") if timed else ()))


def read_pairs(paths: TaskPaths) -> dict[str, dict[str, Any] | None]:
    """What each sweep found out about its two models (pair.json beside its rows), or None where there is no such file.

    Raises:
        InputError: a file is there and holds no JSON object.
    """
    pairs: dict[str, dict[str, Any] | None] = {}
    for drafter in DRAFTERS:
        path = paths.rows(drafter).with_name("pair.json")
        try:
            pairs[drafter] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        except ValueError as error:
            raise InputError(f"{path} is no JSON ({error}); make it by: {sweep_command(paths.task, drafter)}") from error
        if not isinstance(pairs[drafter], dict | None):
            raise InputError(f"{path} holds no JSON object; make it by: {sweep_command(paths.task, drafter)}")
    return pairs


def asked_for(rows: Sequence[Row], pair: Mapping[str, Any] | None) -> list[Row]:
    """The rows of the grid that was swept last, and of the baselines; what was measured for an earlier grid stands by."""
    if pair is None or "grid" not in pair:
        return list(rows)
    named = [{"method": name, "settings": {}} for name in BASELINES] + list(pair["grid"])
    return [row for row in rows if {"method": row["method"], "settings": row["settings"]} in named]


def flat_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Numbers under flat names: the table's rows on both splits, the frontiers' gap and areas, the recommended point."""
    metrics: dict[str, float | None] = {}
    for row in summary["table"]:
        for split in ("validation", "test"):
            for name in ("quality", "speedup"):
                metrics[f"{row['row']}_{split}_{name}"] = None if row[split] is None else row[split][name]
    gap = summary["frontier"]["gap"] or {}
    for name in ("mean_quality_difference", "share_above", "mean_speedup_ratio"):
        metrics[f"frontier_{name}"] = gap.get(name)
    for curve in summary["pareto"]:
        metrics[f"hypervolume_{curve['drafter']}_{curve['method']}"] = curve["hypervolume"]
    place = summary["verdict"]["point"]
    recommended = {} if place is None else summary["points"][place]
    for split, entry in (("validation", recommended), ("test", recommended.get("test") or {})):
        for name in ("quality_difference", "speedup"):
            metrics[f"recommended_{split}_{name}"] = entry.get(name)
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
    for curve in summary["pareto"]:
        if curve["method"] != ALL_METHODS:
            found += [summary["points"][place] for place in curve["points"]]
    file = io.StringIO()
    writer = csv.DictWriter(file, _CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**point, "settings": settings_text(point["settings"])} for point in found)
    return file.getvalue()


def makers(summary: Mapping[str, Any], sweeps: Mapping[str, list[Row]]) -> list[tuple[str, Maker]]:
    """Every file of the report by its name in the folder of results, and what writes it."""
    texts = {
        "summary.json": _json(summary),
        "metrics.json": _json(flat_metrics(summary)),
        "table.md": "\n".join([as_markdown(summary), tables_markdown(summary), "## Verdict", "", as_lines(summary)]),
        "frontier.csv": frontier_csv(summary),
        "report.html": page(summary, sweeps),
    }
    found: list[tuple[str, Maker]] = [(name, _text(text)) for name, text in texts.items()]
    for name, figure in figures.all_figures(summary, sweeps).items():
        folder = "" if name == "pareto" else "figures/"
        found += [(f"{folder}{name}{suffix}", _figure(figure)) for suffix in (".png", ".svg")]
    return found


def _text(text: str) -> Maker:
    return lambda path: path.write_text(text, encoding="utf-8")


def _figure(figure: Any) -> Maker:
    return lambda path: figures.save(figure, path)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def write(files: Sequence[tuple[str, Maker]], folder: Path) -> list[Path]:
    """Writes every file of the report, each under a temporary name first; gives their paths."""
    written = []
    for name, make in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".partial.{path.name}")
        make(partial)
        written.append(partial.replace(path))
    return written


def main() -> None:
    """Reads `params.yaml` and the rows; writes the report, records it, and prints the table and the verdict."""
    from tasks.config import load, task_parser

    arguments = task_parser(__doc__).parse_args()
    task, paths = load(arguments.params).task(arguments.task), TaskPaths(arguments.task)
    pairs = read_pairs(paths)
    sweeps = {drafter: asked_for(rows, pairs[drafter]) for drafter, rows in read_sweeps(paths, task.metric).items()}
    summary = summarize(paths.task, task.metric, sweeps, pairs)
    summary["table"] = table_rows(summary)
    files = write(makers(summary, sweeps), paths.results)
    record_report(paths, task.metric, flat_metrics(summary), files, [paths.rows(drafter) for drafter in DRAFTERS])
    print(as_text(summary))
    print(as_lines(summary, width=_TERMINAL))


if __name__ == "__main__":
    with stage():
        main()
