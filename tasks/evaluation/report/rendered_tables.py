"""The papers' tables as text: titles, headings and cells, the same for Markdown and for the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.evaluation.report.formatting import METRIC_NAMES, NOTHING, markdown_table, number_text, settings_text
from tasks.evaluation.report.published import kind_of
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.results.tables import MeasuredTableRow, PublishedTableRow

Cell = Callable[[object], str]
"""The text of a cell from a record of `results.tables`; published rows lack some of the measured fields."""


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


def rendered_tables(summary: Summary) -> list[RenderedTable]:
    """The tables that have a measured row."""
    metric, kind = METRIC_NAMES[summary.metric], kind_of(summary.metric)
    tables = summary.tables
    found = [
        _rendered("shares", "Fallbacks and rollbacks (BiLD, Tables 3 and 4)", _SHARES, _shares(metric), tables.shares),
        _rendered(
            "cascade",
            "At the large model's quality, and within its latency (SpecCascade, Table 2)",
            [*_CASCADE, _CASCADE_PUBLISHED.format("BLEU" if kind == "bleu" else "ROUGE-2")],
            _cascade(metric),
            tables.cascade,
        ),
        _rendered(
            "speculative",
            "Expected and measured speed-up of speculative decoding (SD, Tables 2 to 4)",
            _SPECULATIVE,
            _speculative(),
            tables.speculative,
        ),
        _rendered("lenience", "Lenience (SD, Table 5 and appendix A.5)", _LENIENCE, _lenience(metric), tables.lenience),
    ]
    return [table for table in found if table.rows]


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


def _rendered(
    name: str,
    title: str,
    notes: list[str],
    columns: dict[str, Cell],
    rows: Sequence[MeasuredTableRow | PublishedTableRow],
) -> RenderedTable:
    own, printed = (
        [[cell(row) for cell in columns.values()] for row in rows if isinstance(row, kind)]
        for kind in (MeasuredTableRow, PublishedTableRow)
    )
    return RenderedTable(name, title, notes, list(columns), own, printed)


def _measured(metric: str) -> dict[str, Cell]:
    return {
        metric: _number("quality"),
        f"{metric} − vanilla": _number("quality_difference", sign="+"),
        "speed-up": _number("speedup", unit="×"),
    }


def _shares(metric: str) -> dict[str, Cell]:
    return {
        "method": _text("label"),
        "settings": _settings,
        **_measured(metric),
        "fallbacks": _share("fallback_share"),
        "rollbacks": _share("rollback_share"),
    }


def _cascade(metric: str) -> dict[str, Cell]:
    return {
        "method": _text("label"),
        "speed-up at vanilla's quality": _inside("at_quality", _number("speedup", unit="×")),
        "its settings": _inside("at_quality", _settings),
        f"best {metric} within vanilla's latency": _inside("at_latency", _number("quality")),
        f"its {metric} − vanilla": _inside("at_latency", _number("quality_difference", sign="+")),
        "settings of that": _inside("at_latency", _settings),
    }


def _speculative() -> dict[str, Cell]:
    return {
        "method": _text("label"),
        "T": _plain("temperature"),
        "γ": _plain("draft_length"),
        "α": _number("acceptance_rate", interval="acceptance_interval"),
        "c": _number("cost_ratio"),
        "speed-up expected (theory)": _number("expected_speedup", unit="×"),
        "speed-up measured": _number("speedup", unit="×"),
        "operations expected (theory)": _number("expected_operations", unit="×"),
    }


def _lenience(metric: str) -> dict[str, Cell]:
    return {
        "method": _text("label"),
        "T": _plain("temperature"),
        "l": _plain("lenience"),
        "kept of drafted": _share("accepted_share"),
        "kept of checked": _share("checked_share"),
        "published α": _number("acceptance_rate"),
        **_measured(metric),
    }


_SHARES = [
    "Here: for each generated token, the runs of the large model (control was handed to it, from doubt or because the window "
    "was full) and its runs that replaced a drafted token, in per cent. The paper names no denominator.",
    "As fast: the best BiLD setting that is at least as fast as speculative decoding chosen for no loss; as good: the fastest "
    "that is at least as good. Validation split.",
]
_CASCADE = [
    "Of the timed settings of the validation split: the fastest with at least vanilla's quality, without a tolerance, and the "
    "best that is at least as fast as vanilla.",
]
_CASCADE_PUBLISHED = "The published rows are of T5-small with T5-large at T = 1 and γ = 5; their quality is {}."
_SPECULATIVE = [
    "α: mean of Σ min(p, q) over prefixes that the large model generated, the way of sampling being that of the row. c: time "
    "of a run of the small model over one of the large model.",
    "Theory: Theorems 3.8 and 3.11 from α, γ and c or ĉ, each token taken to be kept independently, encoders and overhead "
    "left out. Its columns are never measurements.",
]
_LENIENCE = [
    "A draft's tokens are checked up to the first that falls; kept of checked is what compares with the published α, "
    "which is an expectation.",
]


def _text(name: str) -> Cell:
    return lambda row: str(getattr(row, name))


def _settings(row: object) -> str:
    return settings_text(getattr(row, "settings", {})) or NOTHING


def _plain(name: str) -> Cell:
    return _if_there(name, "{:g}".format)


def _share(name: str) -> Cell:
    return _if_there(name, lambda value: f"{100 * value:.2f} %")


def _if_there(name: str, text: Callable[[float], str]) -> Cell:
    def cell(row: object) -> str:
        value = getattr(row, name, None)
        return NOTHING if value is None else text(value)

    return cell


def _number(name: str, unit: str = "", sign: str = "", interval: str = "") -> Cell:
    """A number to two digits, with its 95 % interval where there is one."""
    ends = interval or f"{name}_interval"
    return lambda row: number_text(getattr(row, name, None), getattr(row, ends, None), unit=unit, sign=sign)


def _inside(name: str, cell: Cell) -> Cell:
    """A cell of a record within the row; a dash where there is none."""
    return lambda row: NOTHING if getattr(row, name) is None else cell(getattr(row, name))
