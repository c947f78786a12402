"""Draws an event of a kind, and writes its report and its summaries."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from tasks.corpora.summarization.grammar import write
from tasks.corpora.summarization.kind import Outcome, ReportKind, SideFact, Slots
from tasks.corpora.summarization.kinds import COUNTS, DAYS, MONTHS, SURNAMES, TOWNS

_MIN_WORDS, _MAX_WORDS = 50, 90
_SUMMARY_WORDS = range(10, 26)
_MAX_SENTENCES = 8
_OPENING_FIRST = 0.85
_ROWS_DRAWN = 4
_TRIES_PER_REFERENCE = 20

# The two statements of a summary, in either order, in one sentence or in two.
_ORDERS = ("{core}[, and|.] {second}", "{second}. {core}")


@dataclass(frozen=True)
class Event:
    """An event: an outcome, two side facts, and the value of every slot."""

    kind: ReportKind
    outcome: Outcome
    side_facts: tuple[SideFact, ...]
    slots: Slots


def _numbered(prefix: str, values: list[str]) -> Slots:
    return {f"{prefix}{number}": value for number, value in enumerate(values, start=1)}


def draw_event(kind: ReportKind, rng: random.Random) -> Event:
    """Draw names, figures, rows of the kind's tables and an outcome."""
    slots = _numbered("town", rng.sample(TOWNS, 7)) | _numbered("name", rng.sample(SURNAMES, 12))
    slots |= _numbered("day", rng.sample(DAYS, 4)) | _numbered("month", rng.sample(MONTHS, 2))
    slots |= _numbered("count", rng.sample(COUNTS, 2))
    slots |= _numbered("num", [str(figure) for figure in rng.sample(range(13, 100), 3)])
    slots["past"] = f"{rng.randrange(4)}-{rng.randrange(4)}"
    for name, table in kind.tables.items():
        rows = rng.sample(table.rows, min(_ROWS_DRAWN, len(table.rows)))
        for number, row in enumerate(rows, start=1):
            slots |= {f"{name}{number}_{column}": value for column, value in zip(table.columns, row, strict=True)}
    outcome = kind.measure(rng, slots) if kind.measure is not None else rng.choice(kind.outcomes)
    return Event(kind, outcome, tuple(rng.sample(kind.side_facts, 2)), slots)


def write_report(event: Event, rng: random.Random) -> str:
    """Write a report of 5 to 8 sentences and about 50 to 90 words: all facts and as many distractors as fit, shuffled."""
    sentences = [write(template, event.slots, rng) for template in event.outcome.facts]
    sentences += [write(side.fact, event.slots, rng) for side in event.side_facts]
    opening = write(rng.choice(event.kind.openings), event.slots, rng)
    words = sum(len(sentence.split()) for sentence in (opening, *sentences))
    wanted = rng.randint(_MIN_WORDS, _MAX_WORDS - 10)
    for template in rng.sample(event.kind.distractors, len(event.kind.distractors)):
        distractor = write(template, event.slots, rng)
        length = len(distractor.split())
        if words >= wanted or words + length > _MAX_WORDS or len(sentences) + 1 >= _MAX_SENTENCES:
            break
        sentences.append(distractor)
        words += length
    rng.shuffle(sentences)
    sentences.insert(0 if rng.random() < _OPENING_FIRST else rng.randrange(len(sentences) + 1), opening)
    return " ".join(sentences)


def summarise(event: Event, rng: random.Random, count: int) -> tuple[str, ...]:
    """Write up to `count` distinct summaries of 10 to 25 words, spread evenly over cores, side facts and orders."""
    plans = list(itertools.product(event.outcome.cores, event.side_facts, _ORDERS))
    rng.shuffle(plans)
    found: dict[str, None] = {}
    for core, side, order in itertools.islice(itertools.cycle(plans), count * _TRIES_PER_REFERENCE):
        summary = write(order, event.slots | {"core": core, "second": side.brief}, rng)
        if len(summary.split()) in _SUMMARY_WORDS:
            found[summary] = None
        if len(found) == count:
            break
    return tuple(found)
