"""The report's tables as text: Table 1, the papers' other tables, and those of test sets, arms, batches and methods.

A row is its texts by heading. `tables.yaml` has title and notes of each table, and which field of a record a column shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tasks.console import markdown_table
from tasks.evaluation.report import formatting
from tasks.evaluation.report.formatting import CHOICE_NAMES, NOTHING, field_text, method_name, metric_name, number_text
from tasks.evaluation.report.paper_tables import anything_published, published_rows
from tasks.evaluation.results.pair import BatchTimings
from tasks.evaluation.results.rows import Choice, ModelAlone, TimedMeasurements, TimedPoint
from tasks.evaluation.results.summary import Alignment, ArmPoint, Summary, TableRow
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.settings import CHOSEN_ON, REPORTED_ON
from tasks.paths import ARMS

Cells = list[list[str]]
Texts = dict[str, str]
"""A row by heading; a heading that it lacks has a dash."""
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


def _rendered(name: str, rows: Sequence[Texts], further: Iterable[str] = (), published: Sequence[Texts] = ()) -> RenderedTable:
    layout = formatting.packaged("tables.yaml")[name]
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    cells, printed = ([[row.get(heading, NOTHING) for heading in headings] for row in found] for found in (rows, published))
    return RenderedTable(name, layout["title"], [*layout["notes"], *further], headings, cells, printed)


# Table 1 of Kim et al., NeurIPS 2023.
_CHOICE_ROWS = {
    **{
        f"bild_{arm}_{choice}": (f"BiLD {arm}, {name}", ("bild", arm, choice))
        for arm in ARMS
        for choice, name in CHOICE_NAMES.items()
    },
    **{f"speculative_{arm}": (f"speculative, {arm}", ("speculative", arm, "no_loss")) for arm in ARMS},
}
_VANILLA_ROWS = {"vanilla_large": "vanilla large", "vanilla_small": "vanilla small"}
_VANILLA_ROWS |= {"vanilla_small_aligned": "vanilla small, aligned"}
ROWS = (*_VANILLA_ROWS, *_CHOICE_ROWS)
"""The names of the rows that Table 1 always has."""
_ENTRY = ("quality", "quality_interval", "quality_difference_interval", "speedup", "speedup_interval", "latency_ms")
"""What a row shows of a split, besides the difference from vanilla's quality there."""
SPLITS = (REPORTED_ON, CHOSEN_ON)
"""Each has a table of its own."""


def table_rows(summary: Summary) -> list[TableRow]:
    """A row for each model alone and each choice of BiLD and speculative decoding, and for each choice of any other method that
    is faster than vanilla; where both choices of such a method are one point, it stands once. A row where nothing was measured
    or chosen has no numbers."""
    printed, vanilla = published_rows(summary.metric, summary.experiment)["table_1"], summary.vanilla

    def entry(found: TimedMeasurements | None, large: TimedMeasurements | None) -> TableRow | None:
        if found is None:
            return None
        difference = None if large is None else found.quality - large.quality
        return {**{name: getattr(found, name) for name in _ENTRY}, "quality_difference": difference}

    def row(name: str, label: str, found: ModelAlone | TimedPoint | None, choice: Choice | None = None) -> TableRow:
        return {
            "row": name,
            "label": label,
            "settings": found.settings if isinstance(found, TimedPoint) else {},
            CHOSEN_ON: entry(found, vanilla.large),
            REPORTED_ON: entry(found and found.test, vanilla.large.test),
            # None for a model alone.
            "margin": choice and choice.margin,
            "test_status": choice and choice.test,
            "published": {column["label"]: column["rows"][name] for column in printed if name in column["rows"]},
        }

    models = zip(_VANILLA_ROWS.items(), (vanilla.large, vanilla.small, vanilla.small_aligned), strict=True)
    rows = [row(name, label, model) for (name, label), model in models]
    chosen = {(choice.method, choice.arm, choice.choice): (point, choice) for choice, point in summary.chosen_points()}
    rows += [row(name, label, *chosen.get(wanted, (None,))) for name, (label, wanted) in _CHOICE_ROWS.items()]
    seen = set[int | None]()
    for (method, arm, purpose), (point, choice) in chosen.items():
        if method not in ("bild", "speculative") and point.speedup > 1 and choice.point not in seen:
            seen.add(choice.point)
            label = f"{method.replace('_', ' ')}, {arm}, {CHOICE_NAMES[purpose]}"
            rows.append(row(f"{method}_{arm}_{purpose}", label, point, choice))
    return rows


def _row_texts(summary: Summary, row: TableRow, split: str) -> Texts:
    """A row of Table 1 by heading: its numbers on a split, and what `test` says of its choice."""
    says = "not measured" if row["row"] in _VANILLA_ROWS else "no such setting was found"
    if row[split] or row[CHOSEN_ON]:
        says = NOTHING if row["margin"] is None else formatting.mark_of(row["test_status"], row["margin"]).words
        if row["margin"] is not None and summary.recommendation.against:
            says = "not judged: see the verdict"
    numbers = shown("table_1", row[split], metric_name(summary.metric))
    return {"method": row["label"], **numbers, "result on test": says, "settings": field_text(row, "settings")}


def _table_1(summary: Summary) -> Iterator[RenderedTable]:
    """Table 1 on test with what the papers print, then on validation."""
    on = {REPORTED_ON: "test, which played no part in the choice", CHOSEN_ON: "validation, where the choices were made"}
    for split in SPLITS:
        rows = [_row_texts(summary, row, split) for row in summary.table]
        if split == REPORTED_ON:
            for texts, row in zip(rows, summary.table, strict=True):
                texts |= {f"published {column}": _published_text(*values) for column, values in row["published"].items()}
        what = f"{metric_name(summary.metric)} and speed-up over the vanilla large model [95 % intervals]"
        table = _rendered("table_1", rows)
        further = [] if split == REPORTED_ON else notes(summary)
        yield dataclasses.replace(table, title=f"Task {summary.task} on {on[split]}: {what}", notes=further)


def _published_text(quality: float | None, speedup: float | None = None, seconds: float | None = None) -> str:
    numbers = ((quality, ""), (speedup, "×"), (seconds, " s"))
    return " · ".join(number_text(number, unit=unit) for number, unit in numbers if number is not None)


def notes(summary: Summary) -> list[str]:
    """How to read Table 1, what failed, how quality was computed, and where published numbers come from."""
    margins, best, large = summary.margins, summary.recommended, summary.vanilla.large.test
    limits = {"no_loss": f"{margins.no_loss:g}", "one_point": f"{margins.one_point:g}", "sure": f"{margins.confidence:.0%}"}
    found = [note.format(**limits) for note in formatting.packaged("tables.yaml")["table_1"]["notes"]]
    if best is not None and best.test is not None and large is not None:
        beside = f"{best.test.latency_ms * best.test.speedup:.2f} ms beside the recommended point, as the verdict says"
        own = f"{large.latency_ms:.2f} ms in its own row, from other calls of the same rounds"
        found.append(f"On test vanilla large takes {beside}, and {own}.")
    if metric_of(summary.metric).name == PERPLEXITY:
        found.append("Quality is minus the perplexity, so that more is better; a point is a point of perplexity.")
    if summary.failed:
        found.append(f"Points that failed: {len(summary.failed)}; see `failed` in summary.json.")
    found += [f"{formatting.METRIC_NAMES[metric_of(summary.metric).name]}: {summary.signature}."] if summary.signature else []
    columns = published_rows(summary.metric, summary.experiment)["table_1"]
    shown, papers = {column["paper"] for column in columns}, formatting.packaged("published.yaml")["papers"].values()
    found += [
        f"Published {one['name']}: {one['source']}; other models, other hardware." for one in papers if one["name"] in shown
    ]
    if not anything_published(summary.metric, summary.experiment):
        found.append("Published: no number in the papers is of this corpus and metric, so none is shown.")
    return [*found, *(f"Published {column['label']}: {column['remark']}." for column in columns if column["remark"])]


_FINDINGS = {"open": "it is open whether alignment helps", "helps": "alignment helps", "hurts": "alignment hurts"}


def alignment_sentences(summary: Summary) -> list[str]:
    """What alignment gives, by counts: along the frontiers first, then at each choice; none where it was not counted."""
    found, known = [], summary.alignment
    for effect in () if known is None else filter(None, (known.counted, *known.choices)):
        purpose = PURPOSES.get(effect.purpose)
        what = "BiLD at equal quality" if purpose is None else purpose[2]
        seeds = f"over {len(effect.by_seed)} seeds" if len(effect.by_seed) > 1 else "with one seed, which proves nothing"
        ratio = f"{number_text(effect.ratio, effect.interval)} times as fast with aligned as with unaligned drafters"
        each = "" if purpose is None else ", each at its cheapest proven setting"
        how = f"{seeds}{each}, by counts on {effect.texts:,} texts of {effect.split}"
        found.append(f"{what[0].upper()}{what[1:]} is {ratio} {how}: {_FINDINGS[effect.finding]}.")
        if known is not None and effect is known.counted:
            found += _clock_sentences(known)
    return found


def _clock_sentences(known: Alignment) -> list[str]:
    """What the clock says of the same ratio, and what it says of equal models."""
    found, clock, test = [], known.clock, known.null_test
    if clock is not None:
        ratio = f"{number_text(clock.ratio, clock.interval)} on {clock.texts:,} texts of {clock.split}"
        found.append(f"By the clock, over each arm's own timed settings, that ratio is {ratio}: {_FINDINGS[clock.finding]}.")
    if test is not None:
        ratio, holds = (
            number_text(test.ratio, test.interval, digits=3),
            "within" if test.interval[0] <= 1 <= test.interval[1] else "outside",
        )
        found.append(
            f"Null test of the clock: for equal work on {test.split} the unaligned small model took {ratio} times as long as "
            f"the aligned one; the expected 1 is {holds} the interval."
        )
    return found


def clock_warning(summary: Summary) -> str:
    """Why no speed-up of this report can be trusted; empty where the clock took equal models for equal."""
    test = None if summary.alignment is None else summary.alignment.null_test
    if test is None or test.finding == "equal":
        return ""
    ratio = number_text(test.ratio, test.interval, digits=3)
    said = f"two small models of one architecture differ by {ratio} on {test.split} at equal work"
    return f"The clock of this sweep cannot be trusted: {said}. Sweep again on an idle machine; the counts remain valid."


# All tables as text.
def rendered_tables(summary: Summary) -> list[RenderedTable]:
    """Table 1 on both splits, then every table that has a measured row, those of no paper first."""
    found = [*_table_1(summary)]
    found += [table for make in (_test_sets, _arms, _batches) if (table := make(summary)).rows]
    metric = metric_name(summary.metric)
    for name, rows in summary.tables.items():
        own, printed = ([shown(name, row, metric) for row in rows if row["source"] == one] for one in ("measured", "published"))
        if own:
            further = formatting.packaged("tables.yaml")[name].get("published_notes", ()) if printed else ()
            found.append(_rendered(name, own, further, printed))
    return found


def shown(table: str, record: object, metric: str = "") -> Texts:
    """A row of a table whose columns are fields of a record (`shown` in `tables.yaml`)."""
    columns: dict[str, str] = formatting.packaged("tables.yaml")[table]["shown"]
    return {heading.replace("METRIC", metric): field_text(record, path) for heading, path in columns.items()}


def _test_sets(summary: Summary) -> RenderedTable:
    """The models alone and every choice that a set measured."""
    rows, effects = list[Texts](), list[str]()
    for one in summary.test_sets:
        for row in one.table:
            if row[REPORTED_ON] is not None:
                rows.append({"test set": one.name, **_row_texts(summary, row, REPORTED_ON)})
        found = [f"{PURPOSES[effect.purpose][2]} {number_text(effect.ratio, effect.interval)}" for effect in one.effects]
        if found:
            said = "times as fast with aligned as with unaligned drafters at these choices, by counts"
            effects.append(f"{one.name}, {said}: {'; '.join(found)}.")
    counts = ", ".join(f"{one.name} {one.examples or 'none'}" for one in summary.test_sets)
    return _rendered("test_sets", rows, [f"Texts: {counts}.", *effects])


def _arms(summary: Summary) -> RenderedTable:
    """A row for each drafter, with its points on test."""
    rows = []
    for result in summary.arms:
        training, points = result.training, {point.purpose: point for point in result.points}
        texts = {"arm": result.arm, "seed": str(result.seed)}
        texts["steps"], texts["target tokens"] = (str(training.steps), f"{training.target_tokens:,}") if training else ("", "")
        rates = ("agreement", result.agreement), ("α, T = 1", result.alpha)
        texts |= {name: number_text(one.rate, one.interval, digits=3) if one else "" for name, one in rates}
        rows.append(texts | {words: _point_text(points.get(purpose)) for purpose, (_, _, words) in PURPOSES.items()})
    return _rendered("arms", rows)


def _point_text(point: ArmPoint | None) -> str:
    if point is None:
        return "not swept"
    if point.settings is None:
        return "none: vanilla"
    mark = formatting.mark_of(point.test, point.margin)
    warning = f", {mark.words}" if mark.kind == "contradicted" else ""
    kept = "" if point.mean_accepted_length is None else f", {point.mean_accepted_length:.1f} kept"
    numbers = f"{field_text(point, 'speedup')}, {field_text(point, 'quality_difference')}{kept}"
    return f"{numbers} ({formatting.settings_text(point.settings)}){warning}"


def batch_sentence(timings: BatchTimings) -> str:
    """The largest batch at which drafting pays."""
    if timings.error or not timings.points:
        return f"not measured: {timings.error or 'nothing was chosen that drafts'}"
    pays, fact = timings.pays_up_to, "faster in every round than vanilla at the same batch size"
    if pays is None:
        return f"drafting is not shown to pay at any batch size: no chosen point is {fact}"
    return f"the largest batch at which a chosen point is {fact} is {pays}; the largest tried is {timings.sizes[-1]}"


def _batches(summary: Summary) -> RenderedTable:
    """Vanilla's throughput, then each point's speed-up, by batch size."""
    rows = list[Texts]()
    for arm in ARMS:
        timings = summary.pairs[arm].batches
        if timings is not None and timings.vanilla:
            own = {f"batch {one.batch_size}": f"{one.throughput:.2f}× of batch 1" for one in timings.vanilla}
            rows.append({"point": f"vanilla large, throughput ({arm} sweep)", **own})
            for point in timings.by_point():
                name = f"{method_name(point[0].method)} {formatting.settings_text(point[0].settings)}, {arm}"
                rows.append({"point": name})
                for one in point:
                    span = f"{min(one.rounds):.2f} to {max(one.rounds):.2f}"
                    rows[-1][f"batch {one.batch_size}"] = f"{one.speedup:.2f}× ({span})"
    return _rendered("batches", rows)


def tables_markdown(summary: Summary) -> str:
    """Every table with its notes as Markdown; published rows in tables of their own."""
    lines: list[str] = []
    for table in rendered_tables(summary):
        lines += [f"## {table.title}", "", *markdown_table(table.headings, table.rows), ""]
        if table.published:
            printed = "As published for this data set: other models, other hardware."
            lines += [printed, "", *markdown_table(table.headings, table.published), ""]
        lines += [*(f"- {note}" for note in table.notes), ""]
    return "\n".join(lines)
