"""Several test sets, each by its name: the main one, which the rest of the report shows too, and the others beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.report.arms import Swept, compare_arms
from tasks.evaluation.report.arms_text import PURPOSE_NAMES
from tasks.evaluation.report.formatting import NOTHING, aligned_columns, field_text, interval_text, metric_name, number_text
from tasks.evaluation.report.points import SweepPoints, latest, models_alone
from tasks.evaluation.report.table import row_mark, table_rows
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import SweepRow
from tasks.evaluation.results.summary import NamedTestSet, Summary, rounded
from tasks.evaluation.results.tables import TableRow
from tasks.paths import ARMS

Arms = Mapping[tuple[str, int], Swept]
"""The sweeps by drafter and seed, the first seed first."""


def named_test_sets(summary: Summary, names: Sequence[str], arms: Arms, further: Mapping[str, Arms]) -> list[NamedTestSet]:
    """The test sets of a task, the main one first; none where the only one has no name.

    Args:
        summary: With Table 1 and the arms, which are of the main set.
        names: Of all sets, the main one first.
        arms: The sweeps; their rows of test are of the main set.
        further: For the name of every other set the sweeps with its rows alone.
    """
    if not names:
        return []
    main, *others = names
    examples = summary.vanilla.large.test.examples if summary.vanilla.large.test else None
    first = NamedTestSet(name=main, split=REPORTED_ON, examples=examples, table=summary.table, effects=summary.arms.effects)
    return [first, *(_further(summary, name, arms, further[name]) for name in others)]


def _further(summary: Summary, name: str, arms: Arms, further: Arms) -> NamedTestSet:
    """Table 1 and the effects with another set in place of test: the points are those that validation chose all the same."""
    swept = {key: (_in_place_of_test(arms[key][0], further[key][0]), arms[key][1]) for key in arms}
    rows = {arm: latest(next(rows for (one, _), (rows, _) in swept.items() if one == arm)) for arm in ARMS}
    found = SweepPoints()
    for arm in ARMS:
        found.add(summary.task, arm, rows[arm], PairRecord(), summary.margins)
    vanilla = models_alone(rows)
    of_set = rounded(dataclasses.replace(summary, points=found.points, choices=found.choices, vanilla=vanilla))
    return NamedTestSet(
        name=name,
        split=f"{REPORTED_ON}.{name}",
        examples=vanilla.large.test.examples if vanilla.large.test else None,
        table=[dataclasses.replace(row, published=[]) for row in table_rows(of_set)],
        effects=compare_arms(summary.task, swept).effects,
    )


def _in_place_of_test(rows: Sequence[SweepRow], of_set: Sequence[SweepRow]) -> list[SweepRow]:
    return [row for row in rows if row.split == CHOSEN_ON] + [dataclasses.replace(row, split=REPORTED_ON) for row in of_set]


def test_set_rows(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """The headings and the rows of the table of test sets: the models alone and every choice that a set measured."""
    metric = metric_name(summary.metric)
    headings = [
        "test set",
        "method",
        metric,
        f"{metric} − vanilla",
        "speed-up",
        "ms for a text",
        "what the set says",
        "settings",
    ]
    body = []
    for one in summary.test_sets:
        vanilla = next((row.test for row in one.table if row.row == "vanilla_large"), None)
        for row in one.table:
            if row.test is not None:
                quality = None if vanilla is None else row.test.quality - vanilla.quality
                difference = number_text(quality, row.test.quality_difference_interval, sign="+").replace("-0.00", "+0.00")
                cells = [field_text(row.test, "quality", 1), difference, field_text(row.test, "speedup")]
                words = row_mark(row).words or NOTHING
                latency = f"{row.test.latency_ms:.2f}"
                body.append([one.name, row.label, *cells, latency, words, field_text(row, "settings")])
    return headings, body


def test_set_notes(summary: Summary) -> list[str]:
    """The sizes of the sets, how points are chosen, and what alignment gives on each set."""
    sizes = ", ".join(f"{one.name}: {one.examples or 'no'} texts" for one in summary.test_sets)
    found = [
        f"{sizes}. The first is the main one: all else that the report says of test is of it. Points are chosen on validation, "
        "and no set takes part in the choice.",
        "Confirmed, open and contradicted are of each set by itself, by the bounds of Table 1.",
    ]
    for one in summary.test_sets:
        effects = [
            f"{PURPOSE_NAMES[effect.purpose]} {effect.mean:.2f}{interval_text(effect.interval)}" for effect in one.effects
        ]
        if effects:
            found.append(f"{one.name}, times as fast with aligned as with unaligned drafters: {'; '.join(effects)}.")
    return found


def test_sets_text(summary: Summary) -> str:
    """The table and its notes for a terminal, columns aligned."""
    headings, rows = test_set_rows(summary)
    return "\n".join([*aligned_columns([headings, *rows]), "", *test_set_notes(summary)]) + "\n"


def flat_test_metrics(summary: Summary) -> dict[str, float]:
    """Quality and speed-up on the sets beside the main one, under flat names: `bild_aligned_no_loss_test.NAME_speedup`."""

    def of(row: TableRow, split: str) -> dict[str, float]:
        entry = row.test
        return {} if entry is None else {f"{row.row}_{split}_{name}": getattr(entry, name) for name in ("quality", "speedup")}

    further = (one for one in summary.test_sets if one.split != REPORTED_ON)
    return {name: value for one in further for row in one.table for name, value in of(row, one.split).items()}
