"""The papers' tables as text: titles, headings and cells, the same for Markdown and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.evaluation.report.formatting import METRIC_NAMES, NOTHING, markdown_table, number_text, settings_text
from tasks.evaluation.report.published import kind_of
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.results.tables import MeasuredTableRow, PublishedTableRow

_Column = tuple[str, str, str]
"""Heading, with METRIC for the metric's name; field of the row, dotted where it is a field of a record in it; format."""
_MEASURED: tuple[_Column, ...] = (
    ("METRIC", "quality", "number"),
    ("METRIC − vanilla", "quality_difference", "signed"),
    ("speed-up", "speedup", "factor"),
)


@dataclass(frozen=True)
class RenderedTable:
    """One table as text."""

    name: str
    """Its key in `tables` of the summary."""
    title: str
    notes: list[str]
    headings: list[str]
    rows: list[list[str]]
    """Measured here, all on the validation split."""
    published: list[list[str]]
    """Printed in the paper: other models, other data, other hardware."""


@dataclass(frozen=True)
class _Layout:
    title: str
    notes: tuple[str, ...]
    columns: tuple[_Column, ...]


_LAYOUTS = {
    "shares": _Layout(
        "Fallbacks and rollbacks (BiLD, Tables 3 and 4)",
        (
            "Here: for each generated token, the runs of the large model (control was handed to it, from doubt or because the "
            "window was full) and its runs that replaced a drafted token, in per cent. The paper names no denominator.",
            "As fast: the best BiLD setting that is at least as fast as speculative decoding chosen for no loss; as good: the "
            "fastest that is at least as good. Validation split.",
        ),
        (
            ("method", "label", "text"),
            ("settings", "settings", "settings"),
            *_MEASURED,
            ("fallbacks", "fallback_share", "share"),
            ("rollbacks", "rollback_share", "share"),
        ),
    ),
    "cascade": _Layout(
        "At the large model's quality, and within its latency (SpecCascade, Table 2)",
        (
            "Of the timed settings of the validation split: the fastest with at least vanilla's quality, without a tolerance, "
            "and the best that is at least as fast as vanilla.",
            "The published rows are of T5-small with T5-large at T = 1 and γ = 5; their quality is QUALITY.",
        ),
        (
            ("method", "label", "text"),
            ("speed-up at vanilla's quality", "at_quality.speedup", "factor"),
            ("its settings", "at_quality.settings", "settings"),
            ("best METRIC within vanilla's latency", "at_latency.quality", "number"),
            ("its METRIC − vanilla", "at_latency.quality_difference", "signed"),
            ("settings of that", "at_latency.settings", "settings"),
        ),
    ),
    "speculative": _Layout(
        "Expected and measured speed-up of speculative decoding (SD, Tables 2 to 4)",
        (
            "α: mean of Σ min(p, q) over prefixes that the large model generated, the way of sampling being that of the row. "
            "c: time of a run of the small model over one of the large model.",
            "Theory: Theorems 3.8 and 3.11 from α, γ and c or ĉ, each token taken to be kept independently, encoders and "
            "overhead left out. Its columns are never measurements.",
        ),
        (
            ("method", "label", "text"),
            ("T", "temperature", "plain"),
            ("γ", "draft_length", "plain"),
            ("α", "acceptance_rate", "number"),
            ("c", "cost_ratio", "number"),
            ("speed-up expected (theory)", "expected_speedup", "factor"),
            ("speed-up measured", "speedup", "factor"),
            ("operations expected (theory)", "expected_operations", "factor"),
        ),
    ),
    "lenience": _Layout(
        "Lenience (SD, Table 5 and appendix A.5)",
        (
            "A draft's tokens are checked up to the first that falls; kept of checked is what compares with the published α, "
            "which is an expectation.",
        ),
        (
            ("method", "label", "text"),
            ("T", "temperature", "plain"),
            ("l", "lenience", "plain"),
            ("kept of drafted", "accepted_share", "share"),
            ("kept of checked", "checked_share", "share"),
            ("published α", "acceptance_rate", "number"),
            *_MEASURED,
        ),
    ),
}


def rendered_tables(summary: Summary) -> list[RenderedTable]:
    """The tables that have a measured row."""
    metric, quality = METRIC_NAMES[summary.metric], "BLEU" if kind_of(summary.metric) == "bleu" else "ROUGE-2"
    found = []
    for name, layout in _LAYOUTS.items():
        rows: Sequence[MeasuredTableRow | PublishedTableRow] = getattr(summary.tables, name)
        own, printed = (
            [[_cell(row, field, form) for _, field, form in layout.columns] for row in rows if isinstance(row, kind)]
            for kind in (MeasuredTableRow, PublishedTableRow)
        )
        if own:
            headings = [heading.replace("METRIC", metric) for heading, _, _ in layout.columns]
            notes = [note.replace("QUALITY", quality) for note in layout.notes]
            found.append(RenderedTable(name, layout.title, notes, headings, own, printed))
    return found


def tables_markdown(summary: Summary) -> str:
    """All of them as Markdown, each with its published rows in a second table."""
    lines: list[str] = []
    for table in rendered_tables(summary):
        lines += [f"## {table.title}", "", *markdown_table(table.headings, table.rows), ""]
        if table.published:
            printed = "As published: other models, other data, other hardware."
            lines += [printed, "", *markdown_table(table.headings, table.published), ""]
        lines += [*(f"- {note}" for note in table.notes), ""]
    return "\n".join(lines)


def _cell(row: object, path: str, form: str) -> str:
    """A field as text, with its interval where there is one; a dash where the row, often a published one, lacks it."""
    *outer, name = path.split(".")
    for part in outer:
        row = getattr(row, part)
    value = getattr(row, name, None)
    if value is None:
        return NOTHING
    if form == "text":
        return str(value)
    if form == "settings":
        return settings_text(value) or NOTHING
    if form == "plain":
        return f"{value:g}"
    if form == "share":
        return f"{100 * value:.2f} %"
    interval = getattr(row, "acceptance_interval" if name == "acceptance_rate" else f"{name}_interval", None)
    return number_text(value, interval, unit="×" if form == "factor" else "", sign="+" if form == "signed" else "")
