"""What the papers print, from `published.yaml`: shown for orientation, never mixed with what was measured."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

import yaml

from tasks.evaluation.results.codec import Source, decode
from tasks.evaluation.results.tables import (
    PublishedCascadeRow,
    PublishedLenienceRow,
    PublishedSharesRow,
    PublishedSpeculativeRow,
)

_NAME = "published.yaml"
_SOURCE = Source(_NAME, "correct the file")
_COLUMN = ("dataset", "models", "metric", "remark")


@dataclass(frozen=True, kw_only=True)
class _Grid:
    columns: list[str]
    bleu: list[list[object]]
    rouge: list[list[object]]


@dataclass(frozen=True, kw_only=True)
class _Papers:
    source: str
    table_1: _Grid
    shares: _Grid
    cascade: _Grid
    speculative: _Grid
    lenience: _Grid


@dataclass(frozen=True, kw_only=True)
class PublishedColumn:
    """One data set's column of BiLD's Table 1."""

    dataset: str
    models: str
    metric: str
    """As printed."""
    remark: str
    rows: dict[str, tuple[float, float | None] | None]
    """Quality and speed-up by the names of the rows of Table 1; vanilla has no speed-up."""


def kind_of(metric: str) -> str:
    """Which of the published tables go with a metric: `bleu` (translation), or `rouge` (summarization)."""
    return "bleu" if metric == "bleu" else "rouge"


def table_1_source() -> str:
    """Where the columns beside Table 1 come from."""
    return _papers().source


def table_1_columns(metric: str) -> list[PublishedColumn]:
    """The columns to show beside the Table 1 of a task that is measured by `metric`."""
    found = []
    for row in _rows(_papers().table_1, metric):
        named = {name: row.pop(name) for name in _COLUMN}
        found.append(decode(PublishedColumn, {**named, "rows": row}, _SOURCE))
    return found


def shares_rows(metric: str) -> list[PublishedSharesRow]:
    """BiLD, Tables 3 and 4."""
    return [
        decode(PublishedSharesRow, {"label": f"{row['configuration']}, {row['dataset']}", **row}, _SOURCE)
        for row in _rows(_papers().shares, metric)
    ]


def cascade_rows(metric: str) -> list[PublishedCascadeRow]:
    """SpecCascade, Table 2."""
    return [
        decode(
            PublishedCascadeRow,
            {
                "label": f"{row['name']}, {row['dataset']}",
                "variant": row["variant"],
                "dataset": row["dataset"],
                "at_quality": {"speedup": row["speedup"]},
                "at_latency": {"quality": row["quality"]},
            },
            _SOURCE,
        )
        for row in _rows(_papers().cascade, metric)
    ]


def speculative_rows(metric: str) -> list[PublishedSpeculativeRow]:
    """SD, Tables 2 and 4."""
    return [
        decode(PublishedSpeculativeRow, {"label": f"{row['drafter']}, {row['dataset']}", **row}, _SOURCE)
        for row in _rows(_papers().speculative, metric)
    ]


def lenience_rows(metric: str) -> list[PublishedLenienceRow]:
    """SD, Table 5: translation only."""
    return [
        decode(PublishedLenienceRow, {"label": "T5-small, WMT En-De", **row}, _SOURCE)
        for row in _rows(_papers().lenience, metric)
    ]


def _rows(grid: _Grid, metric: str) -> list[dict[str, object]]:
    rows = grid.bleu if kind_of(metric) == "bleu" else grid.rouge
    return [dict(zip(grid.columns, row, strict=True)) for row in rows]


@functools.cache
def _papers() -> _Papers:
    text = resources.files("tasks.evaluation.report").joinpath(_NAME).read_text(encoding="utf-8")
    return decode(_Papers, yaml.safe_load(text), _SOURCE)
