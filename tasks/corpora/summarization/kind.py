"""A kind of report as data: possible outcomes, sentences about them, and the statements that a summary must contain."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Slots = dict[str, str]


@dataclass(frozen=True)
class Table:
    """Rows of interchangeable things; `columns` name the wordings of one.

    Rows are drawn without repetition; row i of the draw fills the slots `<table><i>_<column>`, with i from 1.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Outcome:
    """One possible course of events.

    Every report of it states all `facts`, each in one or more sentences. `cores` are wordings of the most important statement
    for a summary.
    """

    facts: tuple[str, ...]
    cores: tuple[str, ...]


@dataclass(frozen=True)
class SideFact:
    """A fact of secondary importance: `fact` is its wording in the report, `brief` the one in a summary."""

    fact: str
    brief: str


@dataclass(frozen=True)
class ReportKind:
    """Templates (see `grammar`) and tables of one kind of report.

    A report has an opening, all facts of one outcome, two side facts, and distractors. A summary states a core of the outcome
    and either of the two side facts. `measure` draws outcomes that depend on figures.
    """

    openings: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    side_facts: tuple[SideFact, ...]
    distractors: tuple[str, ...]
    tables: Mapping[str, Table] = field(default_factory=dict)
    measure: Callable[[random.Random, Slots], Outcome] | None = None
