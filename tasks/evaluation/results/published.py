"""What the papers print, from `published.yaml`: shown for orientation, never mixed with what was measured.

A printed number is shown with a measured one only where both are of the same data set and metric.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from tasks.evaluation.metrics import compared_as
from tasks.evaluation.results.codec import Source, decode

_SOURCE = Source("published.yaml", "correct the file")


@dataclass(frozen=True, kw_only=True)
class PublishedResults:
    """The rows of a table for one data set."""

    dataset: str
    """As `corpus.dataset` names it."""
    metric: str | None = None
    """By which the qualities in the rows compare; None where the table prints none."""
    rows: list[list[object]]


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A table as printed."""

    label: str = ""
    """Of a row, with its columns as fields."""
    columns: list[str]
    results: list[PublishedResults]

    def rows(self, dataset: str, metric: str) -> list[dict[str, Any]]:
        """The rows of a data set whose qualities are of a metric, or that hold no quality, by column."""
        # The papers' tokenizers are the usual ones: a metric with another has no rows here.
        metric = compared_as(metric) if metric else metric
        return [
            {"dataset": published().names[found.dataset], **dict(zip(self.columns, row, strict=True))}
            for found in self.results
            if found.dataset == dataset and found.metric in (None, metric)
            for row in found.rows
        ]


@dataclass(frozen=True, kw_only=True)
class Published:
    """All that the papers print."""

    source: str
    """Where the columns of Table 1 come from."""
    names: dict[str, str]
    """Of the data sets, as printed."""
    tables: dict[str, PublishedTable]


@dataclass(frozen=True, kw_only=True)
class PublishedColumn:
    """One data set's column of BiLD's Table 1."""

    dataset: str
    models: str
    rows: dict[str, tuple[float, float | None]]
    """Quality and speed-up by the names of the rows of Table 1; vanilla has no speed-up."""
    remark: str


@functools.cache
def published() -> Published:
    """The content of `published.yaml`."""
    text = resources.files("tasks.evaluation.results").joinpath("published.yaml").read_text(encoding="utf-8")
    return decode(Published, yaml.safe_load(text), _SOURCE)


def table_1_columns(dataset: str, metric: str) -> list[PublishedColumn]:
    """The columns to show with the Table 1 of a task.

    Args:
        dataset: The task's public data set, as `corpus.dataset` names it; there are no columns for any other name.
        metric: The task's metric.
    """
    return [decode(PublishedColumn, row, _SOURCE) for row in published().tables["table_1"].rows(dataset, metric)]


def published_rows(name: str, dataset: str, metric: str) -> list[dict[str, Any]]:
    """The rows of another table that compare with a task, see `table_1_columns`; none of a table that no paper prints."""
    printed = published().tables.get(name)
    rows = [] if printed is None else printed.rows(dataset, metric)
    return [{"source": "published", "label": printed.label.format(**row), **row} for row in rows if printed is not None]


def anything_published(dataset: str, metric: str) -> bool:
    """Whether any table prints a result that compares with a task, see `table_1_columns`; a model's size is no result."""
    return any(table.rows(dataset, metric) for name, table in published().tables.items() if name != "sizes")
