"""The tables of the report below Table 1 as text: titles, headings and cells, the same for Markdown and for the page."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

import yaml

from tasks.evaluation.report import beside_bild
from tasks.evaluation.report.arms_text import arms_table
from tasks.evaluation.report.batches import batch_notes, batch_table, memory_table, shared_weights_note, timings_of
from tasks.evaluation.report.formatting import field_text, markdown_table, metric_name
from tasks.evaluation.report.test_sets import test_set_notes, test_set_rows
from tasks.evaluation.results.codec import Source, decode
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.results.tables import MeasuredTableRow, PublishedTableRow


@dataclass(frozen=True)
class RenderedTable:
    """One table as text."""

    name: str
    """Its key in `tables` of the summary, or `test_sets`, `arms`, `batches`, `memory` or `beside_bild`."""
    title: str
    notes: list[str]
    headings: list[str]
    rows: list[list[str]]
    """Measured here, on the validation split unless the title names another."""
    published: list[list[str]]
    """Printed in the paper for the task's data set: other models, other hardware."""


@dataclass(frozen=True)
class _Layout:
    """How a table is shown, see `tables.yaml`."""

    title: str
    notes: list[str]
    shown: dict[str, str]
    published_notes: list[str] = field(default_factory=list)
    """Of the published rows."""


@functools.cache
def _layouts() -> dict[str, _Layout]:
    text = resources.files("tasks.evaluation.report").joinpath("tables.yaml").read_text(encoding="utf-8")
    source = Source("tables.yaml", "correct the file")
    return {name: decode(_Layout, value, source) for name, value in yaml.safe_load(text).items()}


def rendered_tables(summary: Summary) -> list[RenderedTable]:
    """The tables that have a measured row."""
    metric = metric_name(summary.metric)
    found = _test_sets(summary)
    found += [_arms(summary)] if summary.arms.results else []
    found += [*_batches(summary), *_memory(summary), *_beside_bild(summary)]
    for name, table in _layouts().items():
        rows: Sequence[MeasuredTableRow | PublishedTableRow] = getattr(summary.tables, name)
        compared = any(isinstance(row, PublishedTableRow) for row in rows)
        own, printed = (
            [[field_text(row, name) for name in table.shown.values()] for row in rows if isinstance(row, kind)]
            for kind in (MeasuredTableRow, PublishedTableRow)
        )
        if own:
            headings = [heading.replace("METRIC", metric) for heading in table.shown]
            notes = table.notes + (table.published_notes if compared else [])
            found.append(RenderedTable(name, table.title, notes, headings, own, printed))
    return found


def _test_sets(summary: Summary) -> list[RenderedTable]:
    if not summary.test_sets:
        return []
    headings, rows = test_set_rows(summary)
    return [RenderedTable("test_sets", "Test sets by name", test_set_notes(summary), headings, rows, [])]


def _arms(summary: Summary) -> RenderedTable:
    notes = [
        "Both drafters of a seed start alike and take the same steps on the same inputs in the same batches; the unaligned one "
        "learns from references, the aligned one from the large model.",
        "Each cell: speed-up and quality minus vanilla's on test, at the point that validation chose. Where none was chosen, "
        "vanilla takes its place with a speed-up of 1.",
        "Aligned over unaligned: mean ratio of the speed-ups of a seed; the 95 % interval covers seeds and examples.",
    ]
    headings, rows = arms_table(summary.arms)
    return RenderedTable("arms", "Aligned and unaligned drafters, seed by seed, on test", notes, headings, rows, [])


def _batches(summary: Summary) -> list[RenderedTable]:
    if not timings_of(summary):
        return []
    headings, rows = batch_table(summary)
    return [RenderedTable("batches", "Speed by batch size, on test", batch_notes(summary), headings, rows, [])]


def _memory(summary: Summary) -> list[RenderedTable]:
    headings, rows = memory_table(summary)
    notes = ["Weights as the runtime holds them; caches of keys and values for one text of the task's maximal lengths."]
    if shared := shared_weights_note(summary):
        notes.append(shared)
    return [RenderedTable("memory", "Memory of the models", notes, headings, rows, [])] if rows else []


def _beside_bild(summary: Summary) -> list[RenderedTable]:
    if not summary.over_bild:
        return []
    title, rows = "Every method beside BiLD, on test", beside_bild.table_cells(summary.over_bild)
    return [RenderedTable("beside_bild", title, beside_bild.NOTES, beside_bild.HEADINGS, rows, [])]


def tables_markdown(summary: Summary) -> str:
    """All of them as Markdown, each with its published rows in a second table."""
    lines: list[str] = []
    for table in rendered_tables(summary):
        lines += [f"## {table.title}", "", *markdown_table(table.headings, table.rows), ""]
        if table.published:
            printed = "As published for this data set: other models, other hardware."
            lines += [printed, "", *markdown_table(table.headings, table.published), ""]
        lines += [*(f"- {note}" for note in table.notes), ""]
    return "\n".join(lines)
