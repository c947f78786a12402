"""The summary of a task: the rows of both sweeps, put together for users, figures and tables.

Choices are made on the validation split from unrounded numbers, each drafter against the vanilla large model of its own sweep;
chosen points are then looked up on the test split. Ratios are made once, from raw counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tasks.evaluation.frontier import CHOSEN_ON
from tasks.evaluation.report.arms import compare_arms
from tasks.evaluation.report.beside_bild import beside_bild
from tasks.evaluation.report.curves import bild_frontiers, pareto_fronts
from tasks.evaluation.report.outputs import chosen_outputs
from tasks.evaluation.report.points import SweepPoints, failures, latest, models_alone
from tasks.evaluation.report.recommendation import recommend
from tasks.evaluation.report.table import table_rows
from tasks.evaluation.report.tables import paper_tables
from tasks.evaluation.report.temperatures import temperature_points
from tasks.evaluation.report.test_sets import Arms, named_test_sets
from tasks.evaluation.results.definitions import DEFINITIONS
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.paper_tables import PaperTables
from tasks.evaluation.results.rows import MeasuredRow, SweepRow, TimedRow
from tasks.evaluation.results.summary import Recommendation, Summary, SweptPairs, rounded
from tasks.evaluation.selection import DEFAULT_MARGINS
from tasks.paths import ARMS


def summarize(
    task: str,
    metric: str,
    sweeps: Mapping[str, Sequence[SweepRow]],
    pairs: Mapping[str, PairRecord | None] | None = None,
    arms: Arms | None = None,
    dataset: str = "none",
    test_names: Sequence[str] = (),
    further: Mapping[str, Arms] | None = None,
    corpus: str = "",
    temperatures: Mapping[tuple[str, float], Sequence[SweepRow]] | None = None,
) -> Summary:
    """The summary of one task, numbers rounded as in `summary.json`.

    Args:
        task: its name.
        metric: its metric.
        sweeps: for each of `DRAFTERS` the rows of its sweep, both splits; of rows for the same point the last counts.
        pairs: what each sweep recorded of its models; costs, acceptance rates and the plan are left out without it.
        arms: the sweeps of every seed; without them nothing is said of alignment beyond this seed.
        dataset: the public data set that the corpus is, if any (`corpus.dataset`): what was published of it stands beside.
        test_names: the names of the test sets, the main one first; with names `arms` are needed.
        further: for the name of each test set but the main one the sweeps with its rows alone.
        corpus: what the texts are, in words.
        temperatures: the rows of each sweep at further temperatures, by drafter and temperature.

    Raises:
        InputError: a sweep lacks a measured vanilla large row on the validation split.
    """
    about = SweptPairs(**{arm: (pairs or {}).get(arm) for arm in ARMS})
    margins = next((pair.margins for pair in (about.unaligned, about.aligned) if pair and pair.margins), DEFAULT_MARGINS)
    rows = {arm: latest(sweeps[arm]) for arm in ARMS}
    found = SweepPoints()
    for arm in ARMS:
        found.add(task, arm, rows[arm], about.of(arm), margins)
    signatures = (row.signature for arm in ARMS for row in rows[arm] if isinstance(row, MeasuredRow))
    vanilla = models_alone(rows)
    summary = Summary(
        task=task,
        metric=metric,
        dataset=dataset,
        corpus=corpus,
        split=CHOSEN_ON,
        signature=next(filter(None, signatures), None),
        vanilla=vanilla,
        points=found.points,
        choices=found.choices,
        margins=margins,
        frontier=bild_frontiers(found.points, found.rows),
        pareto=pareto_fronts(found.points),
        pairs=about,
        arms=compare_arms(task, arms or {}),
        failed=failures(rows),
        definitions=DEFINITIONS,
        tables=PaperTables(shares=[], cascade=[], speculative=[], lenience=[]),
        recommendation=Recommendation(text="", changes=[]),
        table=[],
        temperatures=temperature_points(task, temperatures or {}, pairs or {}),
    )
    # Tables of the papers and the recommendation are made from unrounded numbers, Table 1 from those that the user reads.
    timed = (row for arm in ARMS for row in rows[arm] if isinstance(row, TimedRow))
    summary = dataclasses.replace(
        summary,
        worst=chosen_outputs(summary, rows),
        over_bild=beside_bild(summary, rows),
        chrf_signature=next((row.chrf_signature for row in timed if row.chrf_signature), None),
    )
    summary = dataclasses.replace(summary, tables=paper_tables(summary), recommendation=recommend(summary))
    summary = rounded(summary)
    summary = dataclasses.replace(summary, table=table_rows(summary))
    return dataclasses.replace(summary, test_sets=named_test_sets(summary, test_names, arms or {}, further or {}))
