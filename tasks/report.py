"""Stage `report`: the rows of both sweeps as summary, tables, figures, metrics and the recommendation.

`python -m tasks.report --task translation`
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.console import aligned_columns
from tasks.corpora.example import read_jsonl
from tasks.errors import InputError, stage
from tasks.evaluation.record import record_report
from tasks.evaluation.report.charts import save
from tasks.evaluation.report.export import export_pair, registered_pair
from tasks.evaluation.report.formatting import settings_text
from tasks.evaluation.report.page import all_figures, page
from tasks.evaluation.report.recommendation import as_lines
from tasks.evaluation.report.summarize import Seeds, Swept, summarize
from tasks.evaluation.report.tables import alignment_sentences, rendered_tables, tables_markdown
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.files import STEM, read_hypotheses, split_at
from tasks.evaluation.results.pair import PairRecord, read_pair
from tasks.evaluation.results.rows import SweepRow, TimedMeasurements, read_rows
from tasks.evaluation.results.summary import ALL_METHODS, BILD_FRONTIERS, Summary, Sweeps, summary_json, sweep_command
from tasks.evaluation.selection import BASELINES
from tasks.evaluation.settings import CHOSEN_ON, REPORTED_ON, Experiment
from tasks.files import atomic_path
from tasks.locks import folder_lock, host_lock
from tasks.models.settings import read_training_record
from tasks.paths import ARMS, PROVENANCE, TaskPaths

if TYPE_CHECKING:
    from tasks.config import Task

_TERMINAL = 120
"""Characters in a line of the recommendation."""
COLUMNS = (
    *("recommended_test_speedup", "recommended_test_quality_difference"),
    *("alignment_counted_ratio", "alignment_counted_ratio_low", "alignment_counted_ratio_high"),
    *("bild_aligned_no_loss_test_speedup", "bild_unaligned_no_loss_test_speedup", "speculative_aligned_test_speedup"),
)
"""The metrics that DVC sets side by side, few enough for a screen; MLflow has all, and `summary.json` everything."""
_QUOTED = {"speculative": "lossless", "bild_no_loss": "bild_no_loss"}
"""Purposes of `report.tables.PURPOSES` that `result.json` quotes, by their names there."""
_CSV = ("relative_latency", "speedup", "quality", "arm", "method", "settings")

FrontierRow = tuple[float, float, float, str, str, str]
"""The values of `_CSV`."""
Writer = Callable[[Path], object]
"""Writes one file under the path that it is given."""


def read_rows_of(paths: TaskPaths, metric: str, arm: str, seed: int | None = None, test: str = "") -> list[SweepRow]:
    """The rows of one sweep: of an arm's first seed, or of another seed; where `test` names the split of a further test set,
    its rows alone.

    Raises:
        InputError: a sweep has no rows, a row is damaged, or it was measured by another metric than the task's.
    """
    path, fix = paths.rows(arm, seed, test), f"make it by: {sweep_command(paths.task)}"
    rows = read_rows(path, f"remove the file and {fix}")
    if not rows:
        raise InputError(f"{path} is missing or holds no rows; {fix}")
    for number, row in enumerate(rows, start=1):
        if row.metric != metric:
            raise InputError(f"{path}, row {number} chooses by {row.metric}, but the task's metric is {metric}; {fix}")
    return rows


def read_seeds(paths: TaskPaths, metric: str, seeds: Sequence[int]) -> dict[tuple[str, int], Swept]:
    """The current rows of every sweep and what it recorded of its pair, by arm and seed.

    Raises:
        InputError: see `read_rows_of` and `read_pair`; or a sweep is of another seed.
    """
    found: dict[tuple[str, int], Swept] = {}
    for arm in ARMS:
        for seed in seeds:
            other = None if seed == seeds[0] else seed
            rows = read_rows_of(paths, metric, arm, other)
            folder, fix = paths.sweep(arm, other), f"make it by: {sweep_command(paths.task)}"
            pair = read_pair(folder / "pair.json", fix)
            if pair.seed not in (None, seed):
                raise InputError(f"{folder} is of seed {pair.seed}, but params.yaml asks for {seed}; {fix}")
            found[arm, seed] = current_rows(rows, pair), pair
    return found


def current_rows(rows: Sequence[SweepRow], pair: PairRecord) -> list[SweepRow]:
    """The rows of the baselines and of the grid that was swept last, in this order, without those of an earlier grid.

    A sweep writes a row once it is measured, in an order that is drawn for its timings.
    """
    if pair.grid is None:
        return list(rows)
    nothing: Settings = {}
    named = [(name, nothing) for name in BASELINES] + [(point.method, point.settings) for point in pair.grid]
    kept = [row for row in rows if (row.method, row.settings) in named]
    return sorted(kept, key=lambda row: named.index((row.method, row.settings)))


def flat_metrics(summary: Summary) -> dict[str, float]:
    """Numbers under flat names: Table 1 on both splits and on further test sets (`bild_aligned_no_loss_test.NAME_speedup`), the
    what alignment gives, the recommended point."""
    metrics: dict[str, float | None] = {}
    further = [(row, one.split, row["test"]) for one in summary.test_sets if one.split != REPORTED_ON for row in one.table]
    own = [(row, split, row[split]) for row in summary.table for split in ("validation", "test")]
    for row, split, entry in (*own, *further):
        for name in ("quality", "speedup"):
            metrics[f"{row['row']}_{split}_{name}"] = entry and entry[name]
    known = summary.alignment
    for effect in () if known is None else filter(None, (known.counted, *known.choices)):
        name = "alignment_counted_ratio" if effect.purpose == BILD_FRONTIERS else f"alignment_{effect.purpose}"
        metrics[name] = effect.ratio
        if effect.interval is not None:
            metrics[f"{name}_low"], metrics[f"{name}_high"] = effect.interval
    point = summary.recommended
    for split, measured in (("validation", point), ("test", point and point.test)):
        for name in ("quality_difference", "speedup"):
            metrics[f"recommended_{split}_{name}"] = getattr(measured, name, None)
    return {name: value for name, value in metrics.items() if value is not None}


def frontier_rows(summary: Summary) -> Iterator[FrontierRow]:
    """The models alone and the frontier of each method with each arm on validation, in the columns of `_CSV`."""

    def row(measured: TimedMeasurements, arm: str, method: str, settings: Settings) -> FrontierRow:
        return measured.relative_latency, measured.speedup, measured.quality, arm, method, settings_text(settings)

    yield row(summary.vanilla.large, "", "vanilla_large", {})
    yield from (row(model, arm, "vanilla_small", {}) for arm, model in summary.vanilla.small_models())
    for front in summary.pareto:
        if front.method != ALL_METHODS:
            for point in map(summary.timed_point, front.points):
                yield row(point, point.arm, point.method, point.settings)


def frontier_csv(summary: Summary) -> str:
    """The rows of the frontier, for DVC's plots."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([_CSV, *frontier_rows(summary)])
    return file.getvalue()


def result_json(summary: Summary) -> str:
    """What a record of the run quotes: each drafter's agreement, and what its sweep chose for no loss, as measured on test."""
    machine = summary.pairs[ARMS[0]]
    found = {
        "task": summary.task,
        "metric": summary.metric,
        "processor": machine.origin("host_cpu"),
        "revision": machine.origin("git_commit"),
        "seeds": sorted({one.seed for one in summary.arms}),
    }
    drafters = list[dict[str, object]]()
    for one in summary.arms:
        row = {"arm": one.arm, "seed": one.seed, "agreement": one.agreement and one.agreement.rate}
        row["agreement_interval"] = one.agreement and one.agreement.interval
        for point in one.points:
            if name := _QUOTED.get(point.purpose):
                row |= {f"{name}_{field}": getattr(point, field) for field in ("settings", "speedup", "speedup_interval")}
                row[f"{name}_quality_difference"] = point.quality_difference
        drafters.append(row)
    return json.dumps({**found, "drafters": drafters}, indent=2, allow_nan=False) + "\n"


def writers(summary: Summary, sweeps: Sweeps) -> dict[str, Writer]:
    """Every file of the report by its name in the folder of results, and what writes it."""
    figures = all_figures(summary, sweeps)
    numbers = {name: value for name, value in flat_metrics(summary).items() if name in COLUMNS}
    verdict = f"# Task {summary.task}: the verdict\n\n{as_lines(summary)}"
    texts = {
        "summary.json": summary_json(summary),
        "result.json": result_json(summary),
        "metrics.json": json.dumps(numbers, indent=2, allow_nan=False) + "\n",
        "table.md": f"{verdict}\n{tables_markdown(summary)}",
        "frontier.csv": frontier_csv(summary),
        "report.html": page(summary, sweeps, figures),
    }
    found: dict[str, Writer] = {name: partial(Path.write_text, data=text, encoding="utf-8") for name, text in texts.items()}
    for name, figure in figures.items():
        folder = "" if name == "pareto" else "figures/"
        found |= {f"{folder}{name}{suffix}": partial(save, figure) for suffix in (".png", ".svg")}
    return found


def as_text(summary: Summary) -> str:
    """Table 1 of both splits with its notes, and the table of test sets, for a terminal: columns aligned."""
    found: list[str] = []
    for table in rendered_tables(summary):
        if table.name in ("table_1", "test_sets"):
            lines = aligned_columns([table.headings, *table.rows])
            lines.insert(1, "─" * max(map(len, lines)))
            found += [table.title, "", *lines, "", *table.notes, ""]
    return "\n".join(found)


def stage_warnings(paths: TaskPaths, seeds: Sequence[int] = ()) -> list[str]:
    """What the stages before the sweep warned of, each clause once; nothing of a stage that left no record."""
    found: list[str] = []
    for file in (paths.corpus_report, paths.calibration / PROVENANCE):
        if file.is_file():
            found += json.loads(file.read_text(encoding="utf-8")).get("warnings", [])
    for folder in (paths.model("large"), paths.model("small"), *(paths.model(arm, seed) for arm in ARMS for seed in seeds)):
        record = read_training_record(folder)
        found += [] if record is None else record.warnings
    return list(dict.fromkeys(found))


def make_report(task: Task, paths: TaskPaths, experiment: Experiment) -> Summary:
    """Summarise the sweeps of a task, write every file of the report and the recommended pair, and record all in MLflow."""
    metric, seeds, corpus, test_names = task.metric, task.seeds, task.corpus, list(task.corpus.test_sets)
    swept = read_seeds(paths, metric, seeds)
    sweeps = {arm: swept[arm, seeds[0]][0] for arm in ARMS}
    inputs = [paths.rows(arm, seed) for arm in ARMS for seed in (None, *seeds[1:])]
    further: dict[str, Seeds] = {}
    for name in test_names[1:]:
        split = f"{REPORTED_ON}.{name}"
        inputs += [paths.rows(arm, None, split) for arm in ARMS]
        further[name] = {
            (arm, seed): (current_rows(read_rows_of(paths, metric, arm, None if seed == seeds[0] else seed, split), pair), pair)
            for (arm, seed), (_, pair) in swept.items()
        }
    temperatures: dict[tuple[str, float], list[SweepRow]] = {}
    for arm in ARMS:
        stems = [file.stem.partition("-")[2] for file in paths.sweep(arm).glob(f"rows-{STEM}*.jsonl")]
        for degree in sorted(float(stem.removeprefix(STEM)) for stem in stems):
            split = split_at(degree)
            inputs.append(paths.rows(arm, None, split))
            temperatures[arm, degree] = current_rows(read_rows_of(paths, metric, arm, None, split), swept[arm, seeds[0]][1])
    outputs = {
        (arm, seed, split): read_hypotheses(path)
        for arm, seed in swept
        for split in (CHOSEN_ON, REPORTED_ON, *(f"{REPORTED_ON}.{name}" for name in test_names[1:]))
        if (path := paths.sweep(arm, None if seed == seeds[0] else seed) / f"hypotheses-{split}.parquet").is_file()
    }
    known = (experiment, test_names, further, corpus.described, temperatures, outputs, read_jsonl(paths.split(CHOSEN_ON)))
    summary = summarize(paths.task, metric, swept, *known, [*filter(None, [corpus.note]), *stage_warnings(paths, seeds)])
    files = []
    for name, write in writers(summary, sweeps).items():
        files.append(paths.results / name)
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(files[-1]) as partial_file:
            write(partial_file)
    pair = registered_pair(export_pair(summary, task.text, paths, seeds[0]))
    verdict, compared = as_lines(summary), alignment_sentences(summary)
    frontier = dict(zip(_CSV, map(list, zip(*frontier_rows(summary), strict=True)), strict=True))
    record_report(paths, metric, flat_metrics(summary), files, inputs, pair, verdict, frontier, compared)
    return summary


def main() -> None:
    """Reads `params.yaml` and the rows; writes the report, records it, and prints Table 1 and the recommendation."""
    from tasks.config import load, task_parser

    arguments = task_parser(__doc__).parse_args()
    params = load(arguments.params)
    task, paths = params.task(arguments.task), TaskPaths(arguments.task)
    # Neither the computation nor the upload of the record may disturb a timing.
    with folder_lock(paths.resume("report")), host_lock():
        summary = make_report(task, paths, params.experiment(arguments.task))
    print(as_text(summary))
    print(as_lines(summary, width=_TERMINAL))
    print(f"\n{summary.recommendation.headline}\nThe whole report: {paths.results / 'report.html'}")


if __name__ == "__main__":
    with stage():
        main()
