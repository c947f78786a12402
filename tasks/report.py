"""Stage `report`: the rows of both sweeps as summary, tables, figures, metrics and the recommendation.

`python -m tasks.report --task translation`
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tasks.errors import InputError, stage
from tasks.evaluation.frontier import BASELINES
from tasks.evaluation.record import record_report
from tasks.evaluation.report.arms import Swept
from tasks.evaluation.report.figures import all_figures
from tasks.evaluation.report.figures.figure import Figure, save
from tasks.evaluation.report.formatting import settings_text
from tasks.evaluation.report.page import page
from tasks.evaluation.report.pair_export import export_pair
from tasks.evaluation.report.points import sweep_command
from tasks.evaluation.report.recommendation import as_lines
from tasks.evaluation.report.registered_pair import registered_pair
from tasks.evaluation.report.rendered_tables import tables_markdown
from tasks.evaluation.report.summary import summarize
from tasks.evaluation.report.table import as_markdown, as_text
from tasks.evaluation.report.test_sets import Arms, flat_test_metrics, test_sets_text
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.pair import PairRecord, read_pair
from tasks.evaluation.results.rows import SweepRow, TimedMeasurements, read_rows
from tasks.evaluation.results.summary import ALL_METHODS, STEM, Summary, split_at, summary_json, temperature_of
from tasks.evaluation.settings import MarginSettings
from tasks.files import atomic_path
from tasks.locks import host_lock
from tasks.models.settings import TextSettings
from tasks.paths import ARMS, TaskPaths

_TERMINAL = 120
"""Characters in a line of the recommendation."""
_CSV = ("relative_latency", "speedup", "quality", "arm", "method", "settings")

FrontierRow = tuple[float, float, float, str, str, str]
"""The values of `_CSV`."""
Maker = Callable[[Path], object]
"""Writes one file under the path that it is given."""


def read_rows_of(paths: TaskPaths, metric: str, arm: str, seed: int | None = None, test: str = "") -> list[SweepRow]:
    """The rows of one sweep: of a drafter's first seed, or of another seed; where `test` names the split of a further test
    set, its rows alone.

    Raises:
        InputError: a sweep has no rows, a row is damaged, or it was measured by another metric than the task's.
    """
    path, fix = paths.rows(arm, seed, test), f"make it by: {sweep_command(paths.task, arm)}"
    rows = read_rows(path, f"remove the file and {fix}")
    if not rows:
        raise InputError(f"{path} is missing or holds no rows; {fix}")
    for number, row in enumerate(rows, start=1):
        if row.metric != metric:
            raise InputError(f"{path}, row {number} chooses by {row.metric}, but the task's metric is {metric}; {fix}")
    return rows


def read_pair_of(paths: TaskPaths, arm: str, seed: int | None = None) -> PairRecord | None:
    """What a sweep recorded of its two models (pair.json beside its rows), or None where there is no such file.

    Raises:
        InputError: the file is damaged.
    """
    return read_pair(paths.sweep(arm, seed) / "pair.json", f"make it by: {sweep_command(paths.task, arm)}")


def read_arms(paths: TaskPaths, metric: str, seeds: Sequence[int]) -> dict[tuple[str, int], Swept]:
    """The current rows of every sweep and what it recorded, by drafter and seed.

    Raises:
        InputError: see `read_rows_of` and `read_pair_of`; or two sweeps chose their points by different margins.
    """
    found: dict[tuple[str, int], Swept] = {}
    margins: dict[MarginSettings, Path] = {}
    for arm in ARMS:
        for seed in seeds:
            other = None if seed == seeds[0] else seed
            pair = read_pair_of(paths, arm, other)
            if pair is not None and pair.seed not in (None, seed):
                fix = f"make it by: {sweep_command(paths.task, arm)}"
                raise InputError(f"{paths.sweep(arm, other)} is of seed {pair.seed}, but params.yaml asks for {seed}; {fix}")
            if pair is not None and pair.margins is not None:
                margins.setdefault(pair.margins, paths.sweep(arm, other))
            if len(margins) > 1:
                fix = f"sweep both arms with those of params.yaml: {sweep_command(paths.task, arm)}"
                raise InputError(f"{' and '.join(map(str, margins.values()))} chose their points by different margins; {fix}")
            found[arm, seed] = current_rows(read_rows_of(paths, metric, arm, other), pair), pair
    return found


def read_further(paths: TaskPaths, metric: str, seeds: Sequence[int], arms: Arms, names: Sequence[str]) -> dict[str, Arms]:
    """For the name of each test set but the main one, which is the first, the current rows that every sweep has of it.

    Raises:
        InputError: see `read_rows_of`.
    """
    found: dict[str, Arms] = {}
    for name in names[1:]:
        of_set: dict[tuple[str, int], Swept] = {}
        for (arm, seed), (_, pair) in arms.items():
            rows = read_rows_of(paths, metric, arm, None if seed == seeds[0] else seed, f"test.{name}")
            of_set[arm, seed] = current_rows(rows, pair), pair
        found[name] = of_set
    return found


def read_temperatures(paths: TaskPaths, metric: str, arms: Arms, seed: int) -> dict[tuple[str, float], list[SweepRow]]:
    """The current rows of each main sweep at the further temperatures that it has, by drafter and temperature, ascending.

    Raises:
        InputError: see `read_rows_of`.
    """
    found: dict[tuple[str, float], list[SweepRow]] = {}
    for arm in ARMS:
        stems = [file.stem.partition("-")[2] for file in paths.sweep(arm).glob(f"rows-{STEM}*.jsonl")]
        for name in sorted(stems, key=temperature_of):
            rows = read_rows_of(paths, metric, arm, None, name)
            found[arm, temperature_of(name)] = current_rows(rows, arms[arm, seed][1])
    return found


def current_rows(rows: Sequence[SweepRow], pair: PairRecord | None) -> list[SweepRow]:
    """The rows of the baselines and of the grid that was swept last, without those measured for an earlier grid."""
    if pair is None or pair.grid is None:
        return list(rows)
    nothing: Settings = {}
    named = [(name, nothing) for name in BASELINES] + [(point.method, point.settings) for point in pair.grid]
    return [row for row in rows if (row.method, row.settings) in named]


def flat_metrics(summary: Summary) -> dict[str, float]:
    """Numbers under flat names: Table 1 on both splits, the frontiers, what alignment gives, the recommended point."""
    metrics: dict[str, float | None] = {}
    for row in summary.table:
        for split, entry in (("validation", row.validation), ("test", row.test)):
            for name in ("quality", "speedup"):
                metrics[f"{row.row}_{split}_{name}"] = getattr(entry, name, None)
    for name in ("mean_quality_difference", "share_above", "mean_speedup_ratio"):
        metrics[f"frontier_{name}"] = getattr(summary.frontier.gap, name, None)
    for effect in summary.arms.effects:
        metrics[f"alignment_{effect.purpose}"] = effect.mean
        if effect.interval is not None:
            metrics[f"alignment_{effect.purpose}_low"], metrics[f"alignment_{effect.purpose}_high"] = effect.interval
    point = summary.recommended
    for split, measured in (("validation", point), ("test", point and point.test)):
        for name in ("quality_difference", "speedup"):
            metrics[f"recommended_{split}_{name}"] = getattr(measured, name, None)
    return {**{name: value for name, value in metrics.items() if value is not None}, **flat_test_metrics(summary)}


def frontier_rows(summary: Summary) -> Iterator[FrontierRow]:
    """The models alone and the frontier of each method with each drafter on validation, in the columns of `_CSV`."""

    def row(measured: TimedMeasurements, arm: str, method: str, settings: Settings) -> FrontierRow:
        return measured.relative_latency, measured.speedup, measured.quality, arm, method, settings_text(settings)

    yield row(summary.vanilla.large, "", "vanilla_large", {})
    for arm, model in summary.vanilla.small_models():
        yield row(model, arm, "vanilla_small", {})
    for front in summary.pareto:
        if front.method != ALL_METHODS:
            for point in map(summary.timed_point, front.points):
                yield row(point, point.arm, point.method, point.settings)


def frontier_csv(summary: Summary) -> str:
    """The rows of the frontier, for DVC's plots."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([_CSV, *frontier_rows(summary)])
    return file.getvalue()


def makers(summary: Summary, sweeps: Mapping[str, Sequence[SweepRow]]) -> list[tuple[str, Maker]]:
    """Every file of the report by its name in the folder of results, and what writes it."""
    texts = {
        "summary.json": summary_json(summary),
        "metrics.json": json.dumps(flat_metrics(summary), indent=2, allow_nan=False) + "\n",
        "table.md": _verdict_and_tables(summary),
        "frontier.csv": frontier_csv(summary),
        "report.html": page(summary, sweeps),
    }
    found: list[tuple[str, Maker]] = [(name, _text(text)) for name, text in texts.items()]
    for name, figure in all_figures(summary, sweeps).items():
        folder = "" if name == "pareto" else "figures/"
        found += [(f"{folder}{name}{suffix}", _figure(figure)) for suffix in (".png", ".svg")]
    return found


def _verdict_and_tables(summary: Summary) -> str:
    """The text of `table.md`: the verdict first."""
    verdict = f"# Task {summary.task}: the verdict\n\n{as_lines(summary)}"
    return "\n".join([verdict, as_markdown(summary), tables_markdown(summary)])


def _text(text: str) -> Maker:
    return lambda path: path.write_text(text, encoding="utf-8")


def _figure(figure: Figure) -> Maker:
    return lambda path: save(figure, path)


def write(files: Sequence[tuple[str, Maker]], folder: Path) -> list[Path]:
    """Writes every file of the report, each under a temporary name first; gives their paths."""
    written = []
    for name, make in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as partial:
            make(partial)
        written.append(path)
    return written


def main() -> None:
    """Reads `params.yaml` and the rows; writes the report, records it, and prints Table 1 and the recommendation."""
    from tasks.config import load, task_parser

    arguments = task_parser(__doc__).parse_args()
    params = load(arguments.params)
    task, paths = params.task(arguments.task), TaskPaths(arguments.task)
    # Neither the computation nor the upload of the record may disturb a timing.
    with host_lock():
        dataset = params.published(arguments.task)
        names, corpus = list(task.corpus.test_sets), task.corpus.described
        summary = make_report(task.metric, task.text, paths, task.seeds, dataset, names, corpus)
    print(as_text(summary))
    if summary.test_sets:
        print(test_sets_text(summary))
    print(as_lines(summary, width=_TERMINAL))


def make_report(
    metric: str,
    text: TextSettings,
    paths: TaskPaths,
    seeds: Sequence[int],
    dataset: str,
    test_names: Sequence[str] = (),
    corpus: str = "",
) -> Summary:
    """Summarise the sweeps of a task, write every file of the report and the recommended pair, and record all in MLflow."""
    arms = read_arms(paths, metric, seeds)
    sweeps = {arm: arms[arm, seeds[0]][0] for arm in ARMS}
    pairs = {arm: arms[arm, seeds[0]][1] for arm in ARMS}
    further = read_further(paths, metric, seeds, arms, test_names)
    temperatures = read_temperatures(paths, metric, arms, seeds[0])
    summary = summarize(paths.task, metric, sweeps, pairs, arms, dataset, test_names, further, corpus, temperatures)
    files = write(makers(summary, sweeps), paths.results)
    inputs = [paths.rows(arm, seed) for arm in ARMS for seed in (None, *seeds[1:])]
    inputs += [paths.rows(arm, None, f"test.{name}") for arm in ARMS for name in test_names[1:]]
    inputs += [paths.rows(arm, None, split_at(temperature)) for arm, temperature in temperatures]
    pair = registered_pair(export_pair(summary, text, paths, seeds[0]))
    frontier = dict(zip(_CSV, map(list, zip(*frontier_rows(summary), strict=True)), strict=True))
    record_report(paths, metric, flat_metrics(summary), files, inputs, pair, as_lines(summary), frontier)
    return summary


if __name__ == "__main__":
    with stage():
        main()
