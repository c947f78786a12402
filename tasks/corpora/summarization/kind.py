"""A kind of report as data: what may happen, what is said of it, and what of that a summary must say."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Slots = dict[str, str]


@dataclass(frozen=True)
class Table:
    """Rows of interchangeable things; `columns` name the ways of putting one.

    Drawn without repetition: row i of the draw fills the slots `<table><i>_<column>`, i from 1.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Outcome:
    """One way in which the events may go.

    `facts` are told in every report of it, one sentence or more each; `cores` are the ways of stating in a summary what
    matters most in it.
    """

    facts: tuple[str, ...]
    cores: tuple[str, ...]


@dataclass(frozen=True)
class SideFact:
    """What comes next in weight: `fact` as the report tells it, `brief` as a summary does."""

    fact: str
    brief: str


@dataclass(frozen=True)
class ReportKind:
    """Templates (see `grammar`) and tables of one kind of report.

    A report has an opening, every fact of one outcome, two of `side_facts`, and distractors. A summary states a core of the
    outcome and one of the two side_facts, whichever: they weigh the same. `measure` draws what tables cannot hold.
    """

    openings: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    side_facts: tuple[SideFact, ...]
    distractors: tuple[str, ...]
    tables: Mapping[str, Table] = field(default_factory=dict)
    measure: Callable[[random.Random, Slots], Outcome] | None = None
