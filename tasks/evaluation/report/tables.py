"""The papers' other tables for one task: what was measured here, then what the papers print of its data set by its metric.

Theory stands in columns of its own (`expected_…`). A table without a measured row is empty: published rows alone are not shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from tasks.decoding.draft_length import expected_operations, expected_speedup
from tasks.evaluation.measurements import ratio
from tasks.evaluation.report.formatting import method_name
from tasks.evaluation.report.marks import is_contradicted, marks_of_point
from tasks.evaluation.results import tables as records
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.pair import AcceptanceRate, PairRecord
from tasks.evaluation.results.points import OperatingPoint, TimedPoint
from tasks.evaluation.results.published import published_rows
from tasks.evaluation.results.summary import Summary
from tasks.paths import DRAFTERS

# A difference of nothing may be slightly less than 0 in floating point.
_EDGE = 1e-9


def paper_tables(summary: Summary) -> records.PaperTables:
    """All of them, measured rows first; everything measured is of the validation split.

    Args:
        summary: with points, choices and pairs; its own tables are not read.
    """
    task = summary.dataset, summary.metric
    shares, cascade = list(_shares(summary)), list(_cascade(summary))
    speculative, lenience = list(_speculative(summary)), list(_lenience(summary))
    return records.PaperTables(
        shares=[*shares, *published_rows(records.PublishedSharesRow, "shares", *task)] if shares else [],
        cascade=[*cascade, *published_rows(records.PublishedCascadeRow, "cascade", *task)] if cascade else [],
        speculative=[*speculative, *published_rows(records.PublishedSpeculativeRow, "speculative", *task)]
        if speculative
        else [],
        lenience=[*lenience, *published_rows(records.PublishedLenienceRow, "lenience", *task)] if lenience else [],
    )


def _own(summary: Summary, drafter: str, method: str) -> list[OperatingPoint]:
    """The points of a method, timed or not: their counts are exact either way."""
    return [point for point in summary.points if (point.drafter, point.method) == (drafter, method)]


def _best(points: Sequence[TimedPoint]) -> TimedPoint | None:
    return max(points, key=lambda point: (point.quality, point.speedup), default=None)


def _fastest_at(points: Sequence[TimedPoint], quality: float) -> TimedPoint | None:
    """The fastest point of at least this observed quality; of equally fast ones the better, then the first."""
    return max(
        (point for point in points if point.quality >= quality - _EDGE),
        key=lambda point: (point.speedup, point.quality),
        default=None,
    )


def _shares(summary: Summary) -> Iterator[records.SharesRow]:
    """BiLD, Tables 3 and 4: speculative decoding, and BiLD as fast, as good, and as chosen.

    The paper gives shares of "fallback and rollback (rejection) occurrences" without a denominator, and a fallback share for a
    fixed window too, which low confidence never ends: there a fallback can only be control passed to the large model. So here
    both are for each generated token: runs of the large model, and runs that replaced a drafted token.
    """
    chosen = {(choice.drafter, choice.method, choice.choice): point for choice, point in summary.chosen_points()}
    for drafter in DRAFTERS:
        bild = summary.timed_points(drafter, "bild")
        speculative = chosen.get((drafter, "speculative", "no_loss"))
        found = {
            "speculative": speculative,
            "BiLD as fast as speculative": speculative and _best([p for p in bild if p.speedup >= speculative.speedup]),
            "BiLD as good as speculative": speculative and _fastest_at(bild, speculative.quality),
            "BiLD, no loss": chosen.get((drafter, "bild", "no_loss")),
            "BiLD, ≤ 1 point": chosen.get((drafter, "bild", "one_point")),
        }
        for label, point in found.items():
            if point is not None:
                counts = point.counts
                yield joined(
                    records.SharesRow,
                    point,
                    label=f"{label}, {drafter}{_warning(summary, label, point)}",
                    fallback_share=ratio(counts.large_calls, counts.tokens),
                    rollback_share=ratio(counts.rollbacks, counts.tokens),
                )


def _warning(summary: Summary, label: str, point: TimedPoint) -> str:
    """A word where a row names a choice that test contradicts."""
    named = label.endswith(("no loss", "≤ 1 point")) or label == "speculative"
    red = named and is_contradicted(marks_of_point(summary, summary.index_of(point)))
    return " (contradicted on test)" if red else ""


def _variant(point: OperatingPoint) -> tuple[str, str]:
    """Method and rule, by which SpecCascade's Table 2 tells methods apart; and the drafter unless it is the small model."""
    drafter, rule = point.settings.get("drafter", "small"), point.settings.get("rule")
    return f"{point.method} {rule}" if rule else point.method, "" if drafter == "small" else str(drafter)


def _cascade(summary: Summary) -> Iterator[records.CascadeRow]:
    """SpecCascade, Table 2: how fast at the large model's quality, and how good within the large model's latency."""
    for drafter in DRAFTERS:
        timed = summary.timed_points(drafter)
        for variant, proposer in dict.fromkeys(map(_variant, timed)):
            own = [point for point in timed if _variant(point) == (variant, proposer)]
            # Every sweep has its own run of vanilla; its quality is what the differences were taken from.
            equal = _fastest_at(own, own[0].quality - (own[0].quality_difference or 0.0))
            best = _best([point for point in own if point.speedup >= 1.0])
            method, _, rule = variant.partition(" ")
            words = [method_name(method) + (f" [{rule}]" if rule else ""), proposer and f"drafts: {proposer}", drafter]
            yield records.CascadeRow(
                label=", ".join(filter(None, words)),
                variant=variant,
                drafter=drafter,
                timed=len(own),
                at_quality=None if equal is None else joined(records.PointFigures, equal),
                at_latency=None if best is None else joined(records.PointFigures, best),
            )


def _speculative(summary: Summary) -> Iterator[records.SpeculativeRow]:
    """SD, Tables 2 to 4: α and c as measured, what the theorems expect of them, and what was measured."""
    for drafter in DRAFTERS:
        pair = summary.pairs.of(drafter)
        work = None if pair.sizes is None else pair.sizes.decoder_ratio
        for point in _own(summary, drafter, "speculative"):
            length = int(point.settings["draft_length"] or 0)
            # α and c are of the small model; another drafter has others.
            known = point.settings.get("drafter", "small") == "small"
            alpha, cost = (_acceptance(pair, point), pair.cost_ratio) if known else (None, None)
            check = None if pair.costs is None else pair.costs.check_cost(length + 1)
            label = f"speculative, {drafter}, γ {length}"
            row = joined(
                records.SpeculativeRow,
                point,
                label=label,
                draft_length=length,
                cost_ratio=cost,
                check_cost=check,
                temperature=_temperature(point),
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
                    expected_operations=None if work is None else expected_operations(alpha.rate, length, work),
                )
            yield row


def _temperature(point: OperatingPoint) -> float:
    return 0.0 if point.sampling is None else point.sampling.temperature


def _acceptance(pair: PairRecord, point: OperatingPoint) -> AcceptanceRate | None:
    """α of the sampling that the point was decoded with; None where it was measured for another one only."""
    sampling = point.sampling
    if sampling is None or sampling.temperature == 0:
        return pair.acceptance_rate()
    sampled = pair.acceptance_rate(sampled=True)
    untruncated = not sampling.top_k and sampling.top_p == 1
    return sampled if sampled is not None and untruncated and sampled.temperature == sampling.temperature else None


def _lenience(summary: Summary) -> Iterator[records.LenienceRow]:
    """SD, Table 5: what lenience gains and costs. `checked_share` is of the tokens that were checked, not of all drafted."""
    for drafter in DRAFTERS:
        for point in _own(summary, drafter, "speculative_lenient"):
            counts, length = point.counts, point.settings["draft_length"]
            yield joined(
                records.LenienceRow,
                point,
                label=f"speculative lenient, {drafter}, γ {length}",
                temperature=_temperature(point),
                draft_length=length,
                lenience=point.settings["lenience"],
                checked_share=ratio(counts.accepted, counts.accepted + counts.rollbacks),
            )
