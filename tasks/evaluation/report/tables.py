"""The papers' other tables for one task: what was measured here, then what the papers print of its data set by its metric.

Theory stands in columns of its own (`expected_…`). A table without a measured row is empty: published rows alone are not shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tasks.decoding.methods.speculative import expected_operations, expected_speedup, oracle_speedup, oracle_tokens
from tasks.evaluation.measurements import ratio
from tasks.evaluation.report.bild_tables import early_exit_rows, sampled_rows, sizes_rows
from tasks.evaluation.report.drafting import acceptance_of, cost_of, work_of
from tasks.evaluation.report.formatting import method_name
from tasks.evaluation.report.risk_table import controlled_rows
from tasks.evaluation.report.table_points import best, fastest_at, other_drafter, points_of, temperature, warning
from tasks.evaluation.results import tables as records
from tasks.evaluation.results.bild_tables import PublishedEarlyExitRow, PublishedSampledRow, PublishedSizesRow
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.pair import AcceptanceRate
from tasks.evaluation.results.paper_tables import PaperTables
from tasks.evaluation.results.published import TableName, published_rows
from tasks.evaluation.results.rows import OperatingPoint
from tasks.evaluation.results.summary import Summary
from tasks.paths import ARMS

_Measured = TypeVar("_Measured", bound=records.MeasuredTableRow)
_Published = TypeVar("_Published", bound=records.PublishedTableRow)


def paper_tables(summary: Summary) -> PaperTables:
    """All of them, measured rows first; everything measured is of the validation split.

    Args:
        summary: with points, choices and pairs; its own tables are not read.
    """
    return PaperTables(
        sizes=_beside(summary, sizes_rows(summary), PublishedSizesRow, "sizes"),
        shares=_beside(summary, _shares(summary), records.PublishedSharesRow, "shares"),
        sampled=_beside(summary, sampled_rows(summary), PublishedSampledRow, "sampled"),
        early_exit=_beside(summary, early_exit_rows(summary), PublishedEarlyExitRow, "early_exit"),
        controlled=list(controlled_rows(summary)),
        cascade=_beside(summary, _cascade(summary), records.PublishedCascadeRow, "cascade"),
        acceptance=_beside(summary, _acceptance(summary), records.PublishedAcceptanceRow, "acceptance"),
        speculative=_beside(summary, _speculative(summary), records.PublishedSpeculativeRow, "speculative"),
        lenience=_beside(summary, _lenience(summary), records.PublishedLenienceRow, "lenience"),
    )


def _beside(
    summary: Summary, measured: Iterable[_Measured], kind: type[_Published], table: TableName
) -> list[_Measured | _Published]:
    """The measured rows and then the published ones; without a measured row nothing."""
    rows = list(measured)
    return [*rows, *published_rows(kind, table, summary.dataset, summary.metric)] if rows else []


def _shares(summary: Summary) -> Iterator[records.SharesRow]:
    """BiLD, Tables 3 and 4: speculative decoding, and BiLD as fast, as good, and as chosen.

    The paper gives shares of "fallback and rollback (rejection) occurrences" without a denominator, and a fallback share for a
    fixed window too, which low confidence never ends: there a fallback can only be control passed to the large model. So here
    both are for each generated token: runs of the large model, and runs that replaced a drafted token.
    """
    chosen = {(choice.arm, choice.method, choice.choice): point for choice, point in summary.chosen_points()}
    for arm in ARMS:
        bild = summary.timed_points(arm, "bild")
        speculative = chosen.get((arm, "speculative", "no_loss"))
        found = {
            "speculative": speculative,
            "BiLD as fast as speculative": speculative and best([p for p in bild if p.speedup >= speculative.speedup]),
            "BiLD as good as speculative": speculative and fastest_at(bild, speculative.quality),
            "BiLD, no loss": chosen.get((arm, "bild", "no_loss")),
            "BiLD, ≤ 1 point": chosen.get((arm, "bild", "one_point")),
        }
        for label, point in found.items():
            if point is not None:
                counts = point.counts
                yield joined(
                    records.SharesRow,
                    point,
                    label=f"{label}, {arm}{warning(summary, label, point)}",
                    fallback_share=ratio(counts.large_calls, counts.tokens),
                    rollback_share=ratio(counts.rollbacks, counts.tokens),
                )


def _variant(point: OperatingPoint) -> tuple[str, str]:
    """Method and rule, by which SpecCascade's Table 2 tells methods apart; and the drafter unless it is the small model."""
    settings = point.settings
    rule = settings.get("rule") or settings.get("confidence") or ("tuned" if settings.get("tuned") else "")
    return f"{point.method} {rule}" if rule else point.method, other_drafter(point)


def _cascade(summary: Summary) -> Iterator[records.CascadeRow]:
    """SpecCascade, Table 2: how fast at the large model's quality, and how good within the large model's latency."""
    for arm in ARMS:
        timed = summary.timed_points(arm)
        for variant, proposer in dict.fromkeys(map(_variant, timed)):
            own = [point for point in timed if _variant(point) == (variant, proposer)]
            # Every sweep has its own run of vanilla; its quality is what the differences were taken from.
            equal = fastest_at(own, own[0].quality - (own[0].quality_difference or 0.0))
            within = best([point for point in own if point.speedup >= 1.0])
            method, _, rule = variant.partition(" ")
            words = [method_name(method) + (f" [{rule}]" if rule else ""), proposer and f"drafts: {proposer}", arm]
            yield records.CascadeRow(
                label=", ".join(filter(None, words)),
                variant=variant,
                arm=arm,
                timed=len(own),
                at_quality=None if equal is None else joined(records.PointFigures, equal),
                at_latency=None if within is None else joined(records.PointFigures, within),
            )


def _speculative(summary: Summary) -> Iterator[records.SpeculativeRow]:
    """SD, Tables 2 to 4: α and c as measured, what the theorems expect of them, and what was measured."""
    for arm in ARMS:
        pair = summary.pairs.of(arm)
        for point in points_of(summary, arm, "speculative"):
            length = int(point.settings["draft_length"] or 0)
            alpha, cost, work = acceptance_of(pair, point), cost_of(pair, point), work_of(pair, point)
            check = None if pair.costs is None else pair.costs.check_cost(length + 1)
            label = ", ".join(filter(None, ("speculative", _drafts(point), arm, f"γ {length}")))
            row = joined(
                records.SpeculativeRow,
                point,
                label=label,
                draft_length=length,
                cost_ratio=cost,
                check_cost=check,
                temperature=temperature(point),
            )
            if alpha is not None:
                row = dataclasses.replace(
                    row,
                    acceptance_rate=alpha.rate,
                    acceptance_interval=alpha.interval,
                    expected_speedup=None if cost is None else expected_speedup(alpha.rate, length, cost),
                    expected_speedup_checked=None
                    if cost is None or check is None
                    else expected_speedup(alpha.rate, length, cost, check),
                    expected_oracle_speedup=_oracle_speedup(alpha, cost),
                    expected_operations=None if work is None else expected_operations(alpha.rate, length, work),
                )
            yield row


def _drafts(point: OperatingPoint) -> str:
    """What drafts, in a label."""
    other = other_drafter(point)
    return other and f"drafts: {other}"


def _oracle_speedup(alpha: AcceptanceRate, cost: float | None) -> float | None:
    """None where nothing bounds it: where no token is ever rejected, and drafting costs nothing."""
    return None if cost is None or (alpha.rate >= 1 and cost == 0) else oracle_speedup(alpha.rate, cost)


def _acceptance(summary: Summary) -> Iterator[records.AcceptanceRow]:
    """SD, Table 3: α of both small models and of each other drafter of the grid."""
    rows: dict[str, records.AcceptanceRow] = {}
    for arm in ARMS:
        pair = summary.pairs.of(arm)
        measured = () if pair.acceptance is None else pair.acceptance.others
        for drafter in ("small", *(one.drafter for one in measured if one.lenience == 1)):
            # Of tables, copies and the large model's own layers it is the same in both sweeps.
            label = f"small model, {arm}" if drafter == "small" else drafter
            greedy, sampled = (pair.acceptance_rate(sampled=sampled, drafter=drafter) for sampled in (False, True))
            if greedy is not None or sampled is not None:
                rows.setdefault(label, _acceptance_row(label, drafter, greedy, sampled))
    yield from rows.values()


def _acceptance_row(
    label: str, drafter: str, greedy: AcceptanceRate | None, sampled: AcceptanceRate | None
) -> records.AcceptanceRow:
    return records.AcceptanceRow(
        label=label,
        drafter=drafter,
        acceptance_rate=None if greedy is None else greedy.rate,
        acceptance_interval=None if greedy is None else greedy.interval,
        sampled_acceptance_rate=None if sampled is None else sampled.rate,
        sampled_acceptance_rate_interval=None if sampled is None else sampled.interval,
        expected_oracle_tokens=None if greedy is None or greedy.rate >= 1 else oracle_tokens(greedy.rate),
    )


def _lenience(summary: Summary) -> Iterator[records.LenienceRow]:
    """SD, Table 5: what lenience gains and costs. `checked_share` is of the tokens that were checked, not of all drafted."""
    for arm in ARMS:
        pair = summary.pairs.of(arm)
        for point in points_of(summary, arm, "speculative_lenient"):
            counts, length = point.counts, int(point.settings["draft_length"] or 0)
            alpha, cost = acceptance_of(pair, point), cost_of(pair, point)
            yield joined(
                records.LenienceRow,
                point,
                label=", ".join(filter(None, ("speculative lenient", _drafts(point), arm, f"γ {length}"))),
                temperature=temperature(point),
                draft_length=length,
                lenience=point.settings["lenience"],
                acceptance_rate=None if alpha is None else alpha.rate,
                acceptance_interval=None if alpha is None else alpha.interval,
                expected_speedup=None if alpha is None or cost is None else expected_speedup(alpha.rate, length, cost),
                checked_share=ratio(counts.accepted, counts.accepted + counts.rollbacks),
            )
