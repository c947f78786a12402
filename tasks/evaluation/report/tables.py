"""The report's tables as text: Table 1, the papers' other tables, and those of test sets, arms, batches, memory and methods.

`tables.yaml` has the layout of each: title, notes, and what its columns show.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

import yaml

from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.report.formatting import (
    CHOICE_NAMES,
    METRIC_NAMES,
    NOTHING,
    Mark,
    field_text,
    interval_text,
    mark_of,
    markdown_table,
    method_name,
    metric_name,
    number_text,
    settings_text,
)
from tasks.evaluation.report.paper_tables import PublishedColumn, anything_published, published, table_1_columns
from tasks.evaluation.results.codec import Source, decode
from tasks.evaluation.results.pair import BatchTiming, BatchTimings, ModelMemory
from tasks.evaluation.results.rows import Choice, ModelAlone, TimedPoint
from tasks.evaluation.results.summary import ArmPoint, Summary, TableRow
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.paths import ARMS

Cells = list[list[str]]
PURPOSES = {
    "speculative": ("speculative", "no_loss", "speculative decoding"),
    "bild_no_loss": ("bild", "no_loss", "BiLD chosen for no loss"),
    "bild_one_point": ("bild", "one_point", "BiLD chosen for at most one point"),
}
"""What the arms are compared for: method, choice, and how it stands in a sentence."""


@dataclass(frozen=True)
class RenderedTable:
    """One table as text."""

    name: str
    """Its key in `tables.yaml`."""
    title: str
    notes: list[str]
    headings: list[str]
    rows: Cells
    published: Cells = field(default_factory=list)
    """Printed in the paper for the task's data set: other models, other hardware."""


@dataclass(frozen=True)
class _Layout:
    """How a table is shown, see `tables.yaml`."""

    title: str
    notes: list[str]
    shown: dict[str, str] = field(default_factory=dict)
    """The field of a row by heading, dotted where it is a field of a mapping in the row; empty where headings are data."""
    published_notes: list[str] = field(default_factory=list)
    """Of the published rows."""


@functools.cache
def _layouts() -> dict[str, _Layout]:
    text = resources.files("tasks.evaluation.report").joinpath("tables.yaml").read_text(encoding="utf-8")
    source = Source("tables.yaml", "correct the file")
    return {name: decode(_Layout, value, source) for name, value in yaml.safe_load(text).items()}


# Table 1 of Kim et al., NeurIPS 2023.
_VANILLA_ROWS = {
    "vanilla_large": "vanilla large",
    "vanilla_small": "vanilla small",
    "vanilla_small_aligned": "vanilla small, aligned",
}
_CHOICE_ROWS = {
    **{
        f"bild_{arm}_{choice}": (f"BiLD {arm}, {name}", ("bild", arm, choice))
        for arm in ARMS
        for choice, name in CHOICE_NAMES.items()
    },
    **{f"speculative_{arm}": (f"speculative, {arm}", ("speculative", arm, "no_loss")) for arm in ARMS},
}
ROWS = (*_VANILLA_ROWS, *_CHOICE_ROWS)
"""The names of the rows that Table 1 always has."""
_ENTRY = ("quality", "quality_interval", "quality_difference_interval", "speedup", "speedup_interval", "latency_ms")
"""What a row shows of a split."""
SPLITS = (REPORTED_ON, CHOSEN_ON)
"""Each has a table of its own."""


def table_rows(summary: Summary) -> list[TableRow]:
    """A row for each model alone and each choice of BiLD and speculative decoding, and for each choice of any other method that
    is faster than vanilla; where both choices of such a method are one point, it stands once."""
    chosen = {(choice.method, choice.arm, choice.choice): (choice, point) for choice, point in summary.chosen_points()}
    models = (summary.vanilla.large, summary.vanilla.small, summary.vanilla.small_aligned)
    columns = table_1_columns(summary.dataset, summary.metric)
    rows = [_row(name, label, model, columns) for (name, label), model in zip(_VANILLA_ROWS.items(), models, strict=True)]
    for name, (label, wanted) in _CHOICE_ROWS.items():
        choice, point = chosen.get(wanted, (None, None))
        rows.append(_row(name, label, point, columns, choice))
    known, seen = {wanted[:2] for _, wanted in _CHOICE_ROWS.values()}, set[int | None]()
    for (method, arm, purpose), (choice, point) in chosen.items():
        if (method, arm) not in known and point.speedup > 1 and choice.point not in seen:
            seen.add(choice.point)
            label = f"{method.replace('_', ' ')}, {arm}, {CHOICE_NAMES[purpose]}"
            rows.append(_row(f"{method}_{arm}_{purpose}", label, point, columns, choice))
    return rows


def _row(
    name: str,
    label: str,
    found: ModelAlone | TimedPoint | None,
    columns: Sequence[PublishedColumn],
    choice: Choice | None = None,
) -> TableRow:
    """A row as `summary.json` holds it; without numbers where nothing was measured or chosen."""
    test = None if found is None else found.test
    return {
        "row": name,
        "label": label,
        "settings": found.settings if isinstance(found, TimedPoint) else {},
        CHOSEN_ON: found and {name: getattr(found, name) for name in _ENTRY},
        REPORTED_ON: test and {name: getattr(test, name) for name in _ENTRY},
        # None for a model alone.
        "margin": choice and choice.margin,
        "test_status": choice and choice.test,
        "published": {one.dataset: one.rows[name] for one in columns if name in one.rows},
    }


def title(summary: Summary, split: str) -> str:
    """The title of the Table 1 of one split."""
    says = {
        REPORTED_ON: "on test, which played no part in the choice",
        CHOSEN_ON: "on validation, where the choices were made",
    }[split]
    return (
        f"Task {summary.task} {says}: {metric_name(summary.metric)} and speed-up over the vanilla large model [95 % intervals]"
    )


def table_cells(summary: Summary, split: str) -> tuple[list[str], Cells]:
    """The headings and the body of one of `SPLITS`; what test says of choices and what papers print stand with test."""
    metric, on_test = metric_name(summary.metric), split == REPORTED_ON
    columns = table_1_columns(summary.dataset, summary.metric) if on_test else []
    measured = summary.vanilla.large.test if on_test else summary.vanilla.large
    vanilla = None if measured is None else measured.quality
    headings = ["method", metric, f"{metric} − vanilla", "speed-up", "ms for a text", *(["result on test"] if on_test else [])]
    body = []
    for row in summary.table:
        cells = [row["label"], *_entry_cells(row[split], vanilla)]
        cells += [row_mark(row).words or NOTHING] if on_test else []
        body.append([*cells, field_text(row, "settings"), *(_printed(row, column.dataset) for column in columns)])
    return [*headings, "settings", *(f"published {column.dataset}" for column in columns)], body


def _entry_cells(entry: TableRow | None, vanilla: float | None) -> list[str]:
    """Quality, its difference from vanilla large's on the same split, speed-up, milliseconds; dashes where not measured."""
    if entry is None:
        return [NOTHING] * 4
    lost = None if vanilla is None else entry["quality"] - vanilla
    difference = number_text(lost, entry["quality_difference_interval"], sign="+")
    difference = difference.replace("-0.00", "+0.00")
    return [field_text(entry, "quality", 1), difference, field_text(entry, "speedup"), f"{entry['latency_ms']:.2f}"]


def row_mark(row: TableRow) -> Mark:
    """What test says of a row's choice; without words for a model alone, and where nothing was chosen."""
    return Mark(None, "") if row["margin"] is None or not row[CHOSEN_ON] else mark_of(row["test_status"], row["margin"])


def _printed(row: TableRow, dataset: str) -> str:
    quality, speedup = row["published"].get(dataset, (None, None))
    return number_text(quality) + (f" · {speedup:.2f}×" if speedup else "")


def notes(summary: Summary) -> list[str]:
    """How to read Table 1, what failed or is missing, how quality was computed, and where published numbers come from."""
    margins = summary.margins
    found = [
        note.format(no_loss=f"{margins.no_loss:g}", one_point=f"{margins.one_point:g}", sure=f"{margins.confidence:.0%}")
        for note in _layouts()["table_1"].notes
    ]
    best, large = summary.recommended, summary.vanilla.large.test
    if best is not None and best.test is not None and large is not None:
        own = best.test.latency_ms * best.test.speedup
        found.append(
            f"Every row is timed against its own runs of vanilla large: {own:.2f} ms in the runs of the recommended point, as "
            f"the verdict says, {large.latency_ms:.2f} ms in vanilla's own row."
        )
    if metric_of(summary.metric).name == PERPLEXITY:
        found.append("Quality is minus the perplexity, so that more is better; a point is a point of perplexity.")
    for row in summary.table:
        entry = row[REPORTED_ON] or row[CHOSEN_ON]
        if entry is None:
            found.append(f"{row['label']}: {'not measured' if row['row'] in _VANILLA_ROWS else 'no such setting was found'}.")
        elif row["row"] in _CHOICE_ROWS and entry["speedup"] < 1:
            found.append(f"{row['label']}: the fastest setting within the margin is still slower than vanilla.")
    gap = summary.frontier_gap
    if gap is None:
        found.append("Aligned against unaligned: no latency up to vanilla's at which both were measured.")
    else:
        quality = f"{gap.mean_quality_difference:+.2f}{interval_text(gap.quality_interval)} points"
        speed = f"{gap.mean_speedup_ratio:.2f}{interval_text(gap.speedup_interval)} times"
        found.append(
            f"Aligned against unaligned BiLD (validation): {quality} at equal latency on average, from {gap.latency_from:.2f} "
            f"to {gap.latency_to:.2f} of vanilla's (above over {gap.share_above:.0%} of that range, below over "
            f"{gap.share_below:.0%}); {speed} as fast at equal quality."
        )
    if summary.failed:
        count = len(summary.failed)
        found.append(f"{count} point{'s' if count > 1 else ''} failed; see `failed` in summary.json.")
    found += [one.sentence(arm) for arm in ARMS if (one := summary.pairs.of(arm).vanilla_scatter)]
    if summary.signature:
        found.append(f"{METRIC_NAMES[metric_of(summary.metric).name]}: {summary.signature}.")
    found += dict.fromkeys(f"Warning: {text}." for arm in ARMS if (text := summary.pairs.of(arm).unsupported_script))
    if summary.chrf_signature:
        found.append(f"chrF: {summary.chrf_signature}.")
    if not anything_published(summary.dataset, summary.metric):
        return [*found, "Published: no number in the papers is of this corpus and metric, so none is shown."]
    columns = table_1_columns(summary.dataset, summary.metric)
    source = [f"Published: {published().source}."] if columns else []
    return [*found, *source, *(f"Published {column.dataset}: {column.remark}." for column in columns if column.remark)]


# The tables that no paper has.
def rendered_tables(summary: Summary) -> list[RenderedTable]:
    """Every table below Table 1 that has a measured row, those of no paper first."""
    metric = metric_name(summary.metric)
    found = [table for make in (_test_sets, _arms, _batches, _memory, _over_bild) if (table := make(summary)).rows]
    for name, rows in summary.tables.items():
        layout = _layouts()[name]
        own, printed = (
            [[field_text(row, shown) for shown in layout.shown.values()] for row in rows if row["source"] == source]
            for source in ("measured", "published")
        )
        if own:
            headings = [heading.replace("METRIC", metric) for heading in layout.shown]
            texts = layout.notes + (layout.published_notes if printed else [])
            found.append(RenderedTable(name, layout.title, texts, headings, own, printed))
    return found


def _rendered(name: str, headings: Sequence[str], rows: Cells, *further: str) -> RenderedTable:
    layout = _layouts()[name]
    return RenderedTable(name, layout.title, [*layout.notes, *further], [*headings], rows)


def _test_sets(summary: Summary) -> RenderedTable:
    """The models alone and every choice that a set measured."""
    metric, body = metric_name(summary.metric), Cells()
    for one in summary.test_sets:
        [vanilla] = [row[REPORTED_ON] and row[REPORTED_ON]["quality"] for row in one.table if row["row"] == "vanilla_large"]
        for row in one.table:
            if row[REPORTED_ON] is not None:
                words = row_mark(row).words or NOTHING
                body.append(
                    [one.name, row["label"], *_entry_cells(row[REPORTED_ON], vanilla), words, field_text(row, "settings")]
                )
    headings = ["test set", "method", metric, f"{metric} − vanilla", "speed-up", "ms for a text", "result on the set"]
    further = ["Texts: " + ", ".join(f"{one.name} {one.examples or 'none'}" for one in summary.test_sets) + "."]
    for one in summary.test_sets:
        effects = [f"{PURPOSES[effect.purpose][2]} {effect.mean:.2f}{interval_text(effect.interval)}" for effect in one.effects]
        if effects:
            further.append(f"{one.name}, times as fast with aligned as with unaligned drafters: {'; '.join(effects)}.")
    return _rendered("test_sets", [*headings, "settings"], body, *further)


def _arms(summary: Summary) -> RenderedTable:
    """A row for each drafter, with its points on test, and a row for each effect of alignment."""
    rows = []
    for result in summary.arms.results:
        training, points = result.training, {point.purpose: point for point in result.points}
        taken = ["", ""] if training is None else [str(training.steps), f"{training.target_tokens:,}"]
        rows.append([result.arm, str(result.seed), *taken, *(_point_cell(points.get(purpose)) for purpose in PURPOSES)])
    if summary.arms.effects:
        effects = {one.purpose: f"{one.mean:.2f}{interval_text(one.interval)}: {one.finding}" for one in summary.arms.effects}
        rows.append(["aligned over unaligned", "all", "", "", *(effects.get(purpose, "") for purpose in PURPOSES)])
    return _rendered("arms", ["arm", "seed", "steps", "target tokens", *(words for _, _, words in PURPOSES.values())], rows)


def _point_cell(point: ArmPoint | None) -> str:
    if point is None:
        return "not swept"
    if point.settings is None:
        return "none: vanilla"
    speed = f"{point.speedup:.2f}×{interval_text(point.speedup_interval)}"
    quality = f"{point.quality_difference:+.2f}{interval_text(point.quality_difference_interval, '+')}"
    mark = mark_of(point.test, point.margin)
    warning = f", {mark.words}" if mark.kind == "contradicted" else ""
    return f"{speed}, {quality} ({settings_text(point.settings)}){warning}"


def timings_of(summary: Summary) -> dict[str, BatchTimings]:
    """By arm what its sweep measured by batch size; sweeps that measured nothing are left out."""
    found = ((arm, summary.pairs.of(arm).batches) for arm in ARMS)
    return {arm: timings for arm, timings in found if timings is not None and timings.vanilla}


def batch_sentence(timings: BatchTimings) -> str:
    """From which batch size on drafting no longer pays."""
    if timings.error:
        return f"not measured: {timings.error}"
    if not timings.points:
        return "nothing was chosen that drafts"
    stops, fact = timings.stops_paying(), "faster in every round than vanilla at the same batch size"
    if stops is None:
        return f"drafting still pays at batch {timings.sizes[-1]}, the largest measured: a chosen point is {fact}"
    if stops == timings.sizes[0]:
        return f"drafting does not pay at any batch size: no chosen point is {fact}"
    return f"drafting stops paying at batch {stops}: from there on no chosen point is {fact}"


def _batches(summary: Summary) -> RenderedTable:
    """Vanilla's throughput, then each point's speed-up, by batch size."""
    found, rows = timings_of(summary), Cells()
    sizes = sorted({size for timings in found.values() for size in timings.sizes})

    def add(name: str, cells: Mapping[int, str]) -> None:
        rows.append([name, *(cells.get(size, NOTHING) for size in sizes)])

    def speed(one: BatchTiming) -> str:
        return f"{one.speedup:.2f}× ({min(one.rounds):.2f} to {max(one.rounds):.2f})"

    for arm, timings in found.items():
        own = {one.batch_size: f"{one.throughput:.2f}× of batch 1" for one in timings.vanilla}
        add(f"vanilla large, throughput ({arm} sweep)", own)
        for point in timings.by_point():
            name = f"{method_name(point[0].method)} {settings_text(point[0].settings)}, {arm}"
            add(name, {one.batch_size: speed(one) for one in point})
    headings = ["point", *(f"batch {size}" for size in sizes)]
    return _rendered("batches", headings, rows, *(f"{arm}: {batch_sentence(timings)}." for arm, timings in found.items()))


def _memory(summary: Summary) -> RenderedTable:
    """The megabytes of each model, and of its caches for one text of maximal length."""
    models: dict[str, ModelMemory] = {}
    for arm in ARMS:
        if memory := summary.pairs.of(arm).memory:
            # The large model is the same in both sweeps.
            models |= {"large": memory.large, f"small, {arm}": memory.small}
    rows = [[name, f"{one.weights / 1e6:.2f} MB", f"{one.cache / 1e6:.2f} MB"] for name, one in models.items()]
    shared = [arm for arm in ARMS if (one := summary.pairs.of(arm).sizes) is not None and one.shared_parameters]
    text = f"The encoder that the large and the small model share ({', '.join(shared)}) is counted with the large one."
    return _rendered("memory", ["model", "weights", "caches of one text"], rows, *([text] if shared else []))


def _over_bild(summary: Summary) -> RenderedTable:
    """Every method against BiLD, both chosen alike."""
    shown = _layouts()["over_bild"].shown
    rows = []
    for one in summary.over_bild:
        texts = {heading: field_text(one, path) for heading, path in shown.items()}
        texts |= {"chosen for": CHOICE_NAMES[one["choice"]], "method": method_name(one["method"])}
        texts["over BiLD"] += "" if one["split"] == REPORTED_ON else f", on {one['split']}"
        texts["settings"] = "none: vanilla" if one["settings"] is None else texts["settings"]
        rows.append(list(texts.values()))
    return _rendered("over_bild", list(shown), rows)


def tables_markdown(summary: Summary) -> str:
    """Table 1 of both splits with its notes, then every other table, as Markdown; published rows in tables of their own."""
    lines: list[str] = []
    for split in SPLITS:
        lines += [f"## {title(summary, split)}", "", *markdown_table(*table_cells(summary, split)), ""]
    lines += [*(f"- {note}" for note in notes(summary)), ""]
    for table in rendered_tables(summary):
        lines += [f"## {table.title}", "", *markdown_table(table.headings, table.rows), ""]
        if table.published:
            printed = "As published for this data set: other models, other hardware."
            lines += [printed, "", *markdown_table(table.headings, table.published), ""]
        lines += [*(f"- {note}" for note in table.notes), ""]
    return "\n".join(lines)
