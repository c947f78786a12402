"""The papers' tables in text: titles, headings and cells, the same for Markdown and for a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.evaluation.report.published import kind_of
from tasks.evaluation.report.table import METRIC_NAMES, settings_text
from tasks.evaluation.report.tables import PUBLISHED

_NOTHING = "–"
Cell = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class RenderedTable:
    """One table, ready to be set."""

    name: str
    """Its key in `tables` of the summary."""
    title: str
    notes: tuple[str, ...]
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Measured here, all on the validation split."""
    published: tuple[tuple[str, ...], ...]
    """Printed in the paper: other models, other data, other hardware."""


def rendered_tables(summary: Mapping[str, Any]) -> list[RenderedTable]:
    """The tables of which something was measured.

    Args:
        summary: from `tasks.evaluation.report.summary.summarize`.
    """
    metric = METRIC_NAMES[summary["metric"]]
    found = []
    for name, (title, notes, columns) in _tables(metric, kind_of(summary["metric"])).items():
        rows = summary["tables"][name]
        cells = [(row["source"], tuple(cell(row) for cell in columns.values())) for row in rows]
        if cells:
            own = tuple(line for source, line in cells if source != PUBLISHED)
            printed = tuple(line for source, line in cells if source == PUBLISHED)
            found.append(RenderedTable(name, title, notes, tuple(columns), own, printed))
    return found


def tables_markdown(summary: Mapping[str, Any]) -> str:
    """All of them as Markdown, each with its published rows in a second table."""
    lines = []
    for table in rendered_tables(summary):
        lines += [f"## {table.title}", "", *_grid(table.headings, table.rows), ""]
        if table.published:
            printed = "As published: other models, other data, other hardware."
            lines += [printed, "", *_grid(table.headings, table.published), ""]
        lines += [*(f"- {note}" for note in table.notes), ""]
    return "\n".join(lines)


def _grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


def _tables(metric: str, kind: str) -> dict[str, tuple[str, tuple[str, ...], dict[str, Cell]]]:
    """Title, notes and columns of each table by its name."""
    measured: dict[str, Cell] = {
        metric: _number("quality"),
        f"{metric} − vanilla": _number("quality_difference", signed=True),
        "speed-up": _times("speedup"),
    }
    shares: dict[str, Cell] = {
        "method": _text("label"),
        "settings": _settings,
        **measured,
        "fallbacks": _share("fallback_share"),
        "rollbacks": _share("rollback_share"),
    }
    cascade: dict[str, Cell] = {
        "method": _text("label"),
        "speed-up at vanilla's quality": _inside("at_quality", _times("speedup")),
        "its settings": _inside("at_quality", _settings),
        f"best {metric} within vanilla's latency": _inside("at_latency", _number("quality")),
        f"its {metric} − vanilla": _inside("at_latency", _number("quality_difference", signed=True)),
        "settings of that": _inside("at_latency", _settings),
    }
    speculative: dict[str, Cell] = {
        "method": _text("label"),
        "T": _plain("temperature"),
        "γ": _plain("draft_length"),
        "α": _number("acceptance_rate", interval="acceptance_interval"),
        "c": _number("cost_ratio"),
        "speed-up expected (theory)": _times("expected_speedup"),
        "speed-up measured": _times("speedup"),
        "operations expected (theory)": _times("expected_operations"),
    }
    lenience: dict[str, Cell] = {
        "method": _text("label"),
        "T": _plain("temperature"),
        "l": _plain("lenience"),
        "kept of drafted": _share("accepted_share"),
        "kept of checked": _share("checked_share"),
        "published α": _number("acceptance_rate"),
        **measured,
    }
    quality = "BLEU" if kind == "bleu" else "ROUGE-2"
    return {
        "shares": ("Fallbacks and rollbacks (BiLD, Tables 3 and 4)", _SHARES, shares),
        "cascade": (
            "At the large model's quality, and within its latency (SpecCascade, Table 2)",
            (*_CASCADE, f"The published rows are of T5-small with T5-large at T = 1 and γ = 5; their quality is {quality}."),
            cascade,
        ),
        "speculative": (
            "Expected and measured speed-up of speculative decoding (SD, Tables 2 to 4)",
            _SPECULATIVE,
            speculative,
        ),
        "lenience": ("Lenience (SD, Table 5 and appendix A.5)", _LENIENCE, lenience),
    }


_SHARES = (
    "Here: for each generated token, the runs of the large model (control was handed to it, from doubt or because the window "
    "was full) and its runs that replaced a drafted token, in per cent. The paper names no denominator.",
    "As fast: the best BiLD setting that is at least as fast as speculative decoding chosen for no loss; as good: the fastest "
    "that is at least as good. Validation split.",
)
_CASCADE = (
    "Of the timed settings of the validation split: the fastest with at least vanilla's quality, without a tolerance, and the "
    "best that is at least as fast as vanilla.",
)
_SPECULATIVE = (
    "α: mean of Σ min(p, q) over prefixes that the large model generated, the way of sampling being that of the row. c: time "
    "of a run of the small model over one of the large model.",
    "Theory: Theorems 3.8 and 3.11 from α, γ and c or ĉ, each token taken to be kept independently, encoders and overhead "
    "left out. Its columns are never measurements.",
)
_LENIENCE = (
    "A draft's tokens are checked up to the first that falls; kept of checked is what compares with the published α, "
    "which is an expectation.",
)


def _text(name: str) -> Cell:
    return lambda row: str(row[name])


def _settings(row: Mapping[str, Any]) -> str:
    return settings_text(row.get("settings") or {}) or _NOTHING


def _plain(name: str) -> Cell:
    return lambda row: _NOTHING if row.get(name) is None else f"{row[name]:g}"


def _share(name: str) -> Cell:
    return lambda row: _NOTHING if row.get(name) is None else f"{100 * row[name]:.2f} %"


def _times(name: str) -> Cell:
    """A factor, with its interval where there is one."""
    return _number(name, unit="×")


def _number(name: str, unit: str = "", signed: bool = False, interval: str | None = None) -> Cell:
    """A number to two digits, and its 95 % interval where it has one."""
    sign = "+" if signed else ""

    def cell(row: Mapping[str, Any]) -> str:
        value, ends = row.get(name), row.get(interval or f"{name}_interval")
        if value is None:
            return _NOTHING
        text = f"{value:{sign}.2f}{unit}"
        return f"{text} [{ends[0]:{sign}.2f}, {ends[1]:{sign}.2f}]" if ends else text

    return cell


def _inside(name: str, cell: Cell) -> Cell:
    return lambda row: cell(row[name]) if row[name] else _NOTHING
