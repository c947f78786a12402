"""The kinds of reports, and the names in them, from the files in `templates/` and `names.yaml`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TypedDict

import yaml

from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Table
from tasks.corpora.summarization.measures import MEASURES

_HERE = Path(__file__).parent
_ORDER = (
    "company",
    "council",
    "expedition",
    "festival",
    "football",
    "harbour",
    "laboratory",
    "school",
    "traffic",
    "weather",
)


class _Table(TypedDict):
    columns: list[str]
    rows: list[list[str]]


class _Outcome(TypedDict):
    facts: list[str]
    cores: list[str]


class _SideFact(TypedDict):
    fact: str
    brief: str


class _Template(TypedDict, total=False):
    """A file of `templates/`."""

    openings: list[str]
    outcomes: list[_Outcome]
    side_facts: list[_SideFact]
    distractors: list[str]
    tables: dict[str, _Table]
    phrases: dict[str, list[str]]


def _table(table: _Table) -> Table:
    return Table(tuple(table["columns"]), tuple(tuple(row) for row in table["rows"]))


def _kind(name: str) -> ReportKind:
    content: _Template = yaml.safe_load((_HERE / "templates" / f"{name}.yaml").read_text(encoding="utf-8"))
    phrases = {key: tuple(wordings) for key, wordings in content.get("phrases", {}).items()}
    return ReportKind(
        openings=tuple(content["openings"]),
        outcomes=tuple(Outcome(tuple(one["facts"]), tuple(one["cores"])) for one in content.get("outcomes", [])),
        side_facts=tuple(SideFact(one["fact"], one["brief"]) for one in content["side_facts"]),
        distractors=tuple(content["distractors"]),
        tables={key: _table(table) for key, table in content.get("tables", {}).items()},
        measure=functools.partial(MEASURES[name], phrases) if name in MEASURES else None,
    )


KINDS = {name: _kind(name) for name in _ORDER}
_NAMES: dict[str, list[str]] = yaml.safe_load((_HERE / "names.yaml").read_text(encoding="utf-8"))
TOWNS: tuple[str, ...] = tuple(_NAMES["towns"])
SURNAMES: tuple[str, ...] = tuple(_NAMES["surnames"])
DAYS: tuple[str, ...] = tuple(_NAMES["days"])
MONTHS: tuple[str, ...] = tuple(_NAMES["months"])
COUNTS: tuple[str, ...] = tuple(_NAMES["counts"])
