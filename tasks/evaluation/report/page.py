"""The report as one HTML file that needs nothing else: no network, no folder beside it.

`page.html.j2` is the template; `page.css`, `page.js` and the script that draws the charts are put into it. Everything that
comes from data is escaped: sources may hold anything.
"""

from __future__ import annotations

import base64
import functools
import gzip
import sys
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined

# The figures register themselves where they are imported.
from tasks.evaluation.report import charts, figures, figures_detail, formatting, points, recommendation, tables  # noqa: F401
from tasks.evaluation.report.charts import Figure, Spec
from tasks.evaluation.report.formatting import (
    CHOICE_NAMES,
    NOTHING,
    field_text,
    method_name,
    number_text,
    point_text,
    settings_text,
)
from tasks.evaluation.report.points import Sweeps, fastest_choice, reported, rows_of
from tasks.evaluation.report.recommendation import cost_text, outputs_sentence
from tasks.evaluation.report.tables import batch_sentence
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import (
    Measurements,
    OperatingPoint,
    ShownExample,
    TimedMeasurements,
    TimedPoint,
    TimedRow,
    WorstOutput,
)
from tasks.evaluation.results.summary import Summary
from tasks.paths import ARMS

Facts = list[tuple[str, str]]
"""Names and their texts."""
Piece = tuple[str, bool]
"""A stretch of words, and whether the other text has other words there."""
SPLITS = tables.SPLITS
PROPOSERS = {"s": "small", "l": "large", "c": "corrected"}
"""Who proposed a piece of text, as rows abbreviate it."""
OUTPUT_HEADINGS = [
    *("point", "looping", "cut off", "empty", "differ from vanilla", "equal a reference", "words / reference"),
    *("tokens / vanilla", "chrF", "p50 ms", "p95 ms", "p99 ms"),
]
POINT_COLUMNS: dict[str, Callable[[OperatingPoint], str]] = {
    "method": lambda point: method_name(point.method),
    "arm": lambda point: point.arm,
    "settings": lambda point: " = ".join(filter(None, (field_text(point, "settings"), settings_text(point.same_as or {})))),
    "quality": lambda point: field_text(point, "quality"),
    "− vanilla": lambda point: field_text(point, "quality_difference"),
    "speed-up, measured": lambda point: field_text(point, "speedup"),
    "speed-up, predicted": lambda point: field_text(point.predicted, "speedup"),
    "ms, median": lambda point: field_text(point, "latency_ms_p50"),
    "ms, 95 %": lambda point: field_text(point, "latency_ms_p95"),
    "tokens / large call": lambda point: field_text(point, "tokens_per_large_call"),
    "accepted": lambda point: number_text(point.accepted_share),
    "timed because": lambda point: point.why or ("" if point.timed else "not timed"),
}
"""Of the table of all points, whose rows are the tooltips of the charts' points too."""
_LINEAGE = {
    "host_cpu": "processor",
    "host_cores": "cores",
    "host_gpu": "GPU",
    "git_commit": "commit",
    "git_dirty": "uncommitted changes",
    "python": "Python",
    "torch": "PyTorch",
    "transformers": "Transformers",
}


def page(summary: Summary, sweeps: Sweeps, drawn: dict[str, Figure]) -> str:
    """The whole page.

    Args:
        summary: The task's results.
        sweeps: For each arm the rows that the summary was made of: single examples' times and outputs are in them.
        drawn: All figures of both.

    Returns:
        HTML, about 0.4 MB of it scripts; the same input gives the same text.
    """
    datasets = Spec()
    panels = {name: charts.page_specs(figure, datasets) for name, figure in drawn.items()}
    specs = {"config": charts.CONFIG, "datasets": datasets, "panels": panels}
    loader = PackageLoader("tasks.evaluation.report", ".")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["breakable"] = formatting.breakable
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
    modules = {"formatting": formatting, "points_of": points, "recommendation": recommendation, "tables": tables}
    return made.get_template("page.html.j2").render(
        **modules,
        page=sys.modules[__name__],
        summary=summary,
        sweeps=sweeps,
        figures=drawn,
        charts=specs,
        vega=vega_script(),
        rendered_tables=tables.rendered_tables(summary),
    )


def all_figures(summary: Summary, sweeps: Sweeps) -> dict[str, Figure]:
    """Every figure that has data, by the name of its file; the Pareto figure first."""
    made = {name: make(summary, sweeps) for name, make in charts.FIGURES.items()}
    return {name: found for name, found in made.items() if found is not None}


@functools.cache
def vega_script() -> str:
    """Vega, Vega-Lite and Vega-Embed from the copies that vl-convert ships, as base64 of gzip: less than half as long."""
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()


def sweep_facts(summary: Summary) -> list[tuple[str, Facts]]:
    """For each sweep that recorded its models: the plan, the error of its predictions, the costs and the machine."""
    found = []
    for arm in ARMS:
        pair = summary.pairs.of(arm)
        if pair != PairRecord():
            lineage = ((words, pair.origin(name)) for name, words in _LINEAGE.items())
            facts = [*_plan(pair), *_costs(pair), ("runtime", pair.runtime or NOTHING), *lineage]
            found.append((arm, [(words, text) for words, text in facts if text]))
    return found


def _plan(pair: PairRecord) -> Iterator[tuple[str, str]]:
    if pair.plan is None:
        return
    plan, error = pair.plan, pair.plan.prediction_error
    yield "points of the grid", f"{plan.points}, {plan.distinct or plan.points} distinct"
    yield "without decoding", f"{plan.replayed or 0} replayed from cached predictions, token for token"
    yield "timed", f"{plan.timed or 0}"
    for name, words in (("sample", "random sample"), ("frontier", "frontier and choices"), ("all", "all timed")):
        found = getattr(error, name, None)
        if found and found.points:
            bias = "" if found.bias is None else f", {found.bias:+.1%} too high"
            text = f"{found.mean:.1%} on average{bias}, {found.worst:.1%} at worst, {found.points} points"
            yield f"error of the prediction, {words}", text
    if plan.replay_seconds is not None:
        yield "duration", f"{plan.replay_seconds:.0f} s to replay, {plan.timing_seconds or 0:.0f} s to time"


def _costs(pair: PairRecord) -> Iterator[tuple[str, str]]:
    for sampled, name in ((False, "greedy"), (True, "sampled")):
        rate = pair.acceptance_rate(sampled=sampled)
        if rate:
            degree = "" if rate.temperature is None else f", T = {rate.temperature:g}"
            text = f"{number_text(rate.rate, rate.interval, digits=3)}{degree}, {rate.tokens} tokens"
            yield f"acceptance rate α, {name}", text
    if pair.costs is not None:
        costs, runs = pair.costs, list((pair.costs.verify_ms or {}).items())[:6]
        yield "a small step", "" if costs.small_step_ms is None else f"{costs.small_step_ms:.3f} ms"
        yield "a run of the large model, by positions", ", ".join(f"{length}: {value:.3f} ms" for length, value in runs)
        yield "c, small step over large step", "" if costs.cost_ratio is None else f"{costs.cost_ratio:.3f}"
    if pair.batches is not None:
        yield "by batch size", batch_sentence(pair.batches)


def cost_lines(summary: Summary) -> list[str]:
    """What the recommended point may cost beyond the average: outputs that differ, loop or lose much, on one split."""
    point = summary.recommended
    if point is None:
        return []
    measured, split = reported(point)
    cost = cost_text(measured, summary.metric, lossless=point.lossless)
    lines = [f"On {split}: {cost}.", *filter(None, [outputs_sentence(summary, point)])]
    index = summary.index_of(point)
    worst = [one.worst[0].loss for one in summary.worst if (one.point, one.split) == (index, split)]
    if worst:
        lines.append(f"The worst single output on {split} loses {worst[0]:.1f} points; see the outputs below.")
    return lines


def timing(summary: Summary, sweeps: Sweeps) -> tuple[str, int]:
    """How many examples a point was timed on, from the fewest to the most where points differ, and in how many rounds."""
    counts = {point.timed_examples for point in summary.timed_points()} or {0}
    rows = [row for rows in sweeps.values() for row in rows if isinstance(row, TimedRow)]
    examples = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return examples, max((len(row.rounds or ()) or 1 for row in rows), default=1)


def examples(summary: Summary, sweeps: Sweeps) -> list[tuple[TimedPoint, str, list[ShownExample]]]:
    """Outputs of the recommended point and of each arm's fastest chosen point, with a title each; all of one split."""
    wanted = [("recommended", summary.recommended)] if summary.recommended else []
    for choice, point in filter(None, (fastest_choice(summary, arm) for arm in ARMS)):
        if point is not summary.recommended:
            wanted.append((CHOICE_NAMES[choice], point))
    for split in SPLITS:
        groups = []
        for words, point in wanted:
            rows = (row for row in rows_of(point, sweeps) if isinstance(row, TimedRow) and row.split == split)
            for shown in filter(None, (row.shown for row in rows)):
                groups.append((point, f"{point_text(point)}: {words}, on {split}", shown))
        if groups:
            return groups
    return []


def ordered_points(summary: Summary) -> list[tuple[int, OperatingPoint]]:
    """All points with their indices: the recommended one, the chosen ones, then by speed; untimed points come last."""
    best, indexed = summary.recommendation.point, enumerate(summary.points)
    return sorted(indexed, key=lambda entry: (entry[0] != best, not entry[1].chosen, -(entry[1].speedup or 0.0)))


def output_rows(summary: Summary, split: str) -> list[tuple[int | None, list[str]]]:
    """The cells by `OUTPUT_HEADINGS` of vanilla and of the chosen points on a split, each with the point's index."""
    named: list[tuple[int | None, str, Measurements]] = [(None, "vanilla large", summary.vanilla.large)]
    named += [(None, f"vanilla small, {arm}", model) for arm, model in summary.vanilla.small_models()]
    named += [(index, point_text(point), point) for index, point in enumerate(summary.points) if point.chosen]
    found = []
    for index, name, one in named:
        measured: Measurements | None = one if split == summary.split else getattr(one, "test", None)
        if measured is not None and measured.outputs is not None:
            found.append((index, _output_cells(name, measured)))
    return found


def _output_cells(name: str, measured: Measurements) -> list[str]:
    counted, count = measured.outputs, measured.examples
    counts = [str(getattr(counted, field)) for field in ("looping", "cut_off", "empty", "differs", "exact")]
    ratios = [getattr(counted, field) for field in ("length_ratio", "vanilla_length_ratio")]
    timed = isinstance(measured, TimedMeasurements)
    times = [getattr(measured, f"latency_ms_p{percent}") if timed else None for percent in (50, 95, 99)]
    shown = [f"{number} of {count}" if count else number for number in counts]
    return [name, *shown, *(number_text(value) for value in (*ratios, measured.chrf, *times))]


def worst_by_split(summary: Summary) -> list[tuple[str, list[tuple[int, list[WorstOutput]]]]]:
    """For each split, test first, the index and the worst outputs of each chosen point; splits without any are left out."""
    groups = [(split, [(one.point, one.worst) for one in summary.worst if one.split == split]) for split in SPLITS]
    return [(split, own) for split, own in groups if own]


def in_pieces(vanilla: str, output: str) -> tuple[list[Piece], list[Piece]]:
    """Vanilla's text and the point's, each in pieces by word."""
    old, new = vanilla.split(), output.split()
    left: list[Piece] = []
    right: list[Piece] = []
    for kind, i, i_end, j, j_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for side, words in ((left, old[i:i_end]), (right, new[j:j_end])):
            if words:
                side.append((" ".join(words), kind != "equal"))
    return left, right
