"""What the papers print, from `published.yaml`: shown for orientation, never mixed with what was measured."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Literal, TypeVar

import yaml

from tasks.evaluation.results.codec import Source, decode
from tasks.evaluation.results.tables import PublishedTableRow

_NAME = "published.yaml"
_SOURCE = Source(_NAME, "correct the file")
_Row = TypeVar("_Row", bound=PublishedTableRow)

PaperTable = Literal["shares", "cascade", "speculative", "lenience"]


@dataclass(frozen=True, kw_only=True)
class _PrintedTable:
    label: str = ""
    """Of a row, with its columns as fields."""
    columns: list[str]
    bleu: list[list[object]]
    rouge: list[list[object]]


@dataclass(frozen=True, kw_only=True)
class _Papers:
    source: str
    table_1: _PrintedTable
    shares: _PrintedTable
    cascade: _PrintedTable
    speculative: _PrintedTable
    lenience: _PrintedTable


@dataclass(frozen=True, kw_only=True)
class PublishedColumn:
    """One data set's column of BiLD's Table 1."""

    dataset: str
    models: str
    metric: str
    """As printed."""
    rows: dict[str, tuple[float, float | None]]
    """Quality and speed-up by the names of the rows of Table 1; vanilla has no speed-up."""
    remark: str


def kind_of(metric: str) -> str:
    """Which of the published tables go with a metric: `bleu` (translation) or `rouge` (summarization)."""
    return "bleu" if metric == "bleu" else "rouge"


def table_1_source() -> str:
    """Where the columns beside Table 1 come from."""
    return _papers().source


def table_1_columns(metric: str) -> list[PublishedColumn]:
    """The columns to show beside the Table 1 of a task that is measured by `metric`."""
    return [decode(PublishedColumn, row, _SOURCE) for row in _rows(_papers().table_1, metric)]


def published_rows(kind: type[_Row], table: PaperTable, metric: str) -> list[_Row]:
    """The rows of another table that go with a metric; `kind` is the record of that table."""
    printed: _PrintedTable = getattr(_papers(), table)
    return [decode(kind, {"label": printed.label.format(**row), **row}, _SOURCE) for row in _rows(printed, metric)]


def _rows(printed: _PrintedTable, metric: str) -> list[dict[str, object]]:
    rows = printed.bleu if kind_of(metric) == "bleu" else printed.rouge
    return [dict(zip(printed.columns, row, strict=True)) for row in rows]


@functools.cache
def _papers() -> _Papers:
    text = resources.files("tasks.evaluation.report").joinpath(_NAME).read_text(encoding="utf-8")
    return decode(_Papers, yaml.safe_load(text), _SOURCE)
