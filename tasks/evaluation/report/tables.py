"""The papers' other tables for one task: what was measured here, then what the papers print.

Theory stands in columns of its own (`expected_…`). A table without a measured row is empty: published rows alone are not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tasks.decoding.adaptive import expected_operations, expected_speedup
from tasks.evaluation.frontier import TradeOff, choose
from tasks.evaluation.report.formatting import method_name
from tasks.evaluation.report.published import published_rows
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.pair import AcceptanceRate, PairRecord, PairSizes
from tasks.evaluation.results.points import OperatingPoint, TimedPoint
from tasks.evaluation.results.rows import DecodingCounts
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.results.tables import (
    CascadeRow,
    LenienceRow,
    PaperTables,
    PointFigures,
    PublishedCascadeRow,
    PublishedLenienceRow,
    PublishedSharesRow,
    PublishedSpeculativeRow,
    SharesRow,
    SpeculativeRow,
)
from tasks.paths import DRAFTERS


def paper_tables(summary: Summary) -> PaperTables:
    """All of them, measured rows first; everything measured is of the validation split.

    Args:
        summary: with points, choices and pairs; its own tables are not read.
    """
    metric = summary.metric
    shares, cascade = list(_shares(summary)), list(_cascade(summary))
    speculative, lenience = list(_speculative(summary)), list(_lenience(summary))
    return PaperTables(
        shares=[*shares, *published_rows(PublishedSharesRow, "shares", metric)] if shares else [],
        cascade=[*cascade, *published_rows(PublishedCascadeRow, "cascade", metric)] if cascade else [],
        speculative=[*speculative, *published_rows(PublishedSpeculativeRow, "speculative", metric)] if speculative else [],
        lenience=[*lenience, *published_rows(PublishedLenienceRow, "lenience", metric)] if lenience else [],
    )


def _own(summary: Summary, drafter: str, method: str) -> list[OperatingPoint]:
    """The points of a method, timed or not: their counts are exact either way."""
    return [point for point in summary.points if (point.drafter, point.method) == (drafter, method)]


def _best(points: Sequence[TimedPoint]) -> TimedPoint | None:
    return max(points, key=lambda point: (point.quality, point.speedup), default=None)


def _fastest_at(points: Sequence[TimedPoint], quality: float) -> TimedPoint | None:
    """The fastest point of at least this quality."""
    index = choose([TradeOff(point.quality, point.speedup) for point in points], quality, 0.0)
    return None if index is None else points[index]


def _shares(summary: Summary) -> Iterator[SharesRow]:
    """BiLD, Tables 3 and 4: speculative decoding, and BiLD as fast, as good, and as chosen.

    The paper gives shares of "fallback and rollback (rejection) occurrences" without a denominator, and a fallback share for a
    fixed window too, which low confidence never ends: there a fallback can only be control passed to the large model. So here
    both are for each generated token: runs of the large model, and runs that replaced a drafted token.
    """
    chosen = {(choice.drafter, choice.method, choice.choice): point for choice, point in summary.chosen_points()}
    for drafter in DRAFTERS:
        bild = summary.timed_points(drafter, "bild")
        speculative = chosen.get((drafter, "speculative", "no_loss"))
        found: dict[str, TimedPoint | None] = {}
        if speculative is not None:
            found["speculative"] = speculative
            fast = [point for point in bild if point.speedup >= speculative.speedup]
            found["BiLD as fast as speculative"] = _best(fast)
            found["BiLD as good as speculative"] = _fastest_at(bild, speculative.quality)
        found["BiLD, no loss"] = chosen.get((drafter, "bild", "no_loss"))
        found["BiLD, ≤ 1 point"] = chosen.get((drafter, "bild", "one_point"))
        for label, point in found.items():
            if point is not None:
                fallbacks, rollbacks = _token_shares(point.counts)
                yield joined(SharesRow, point, label=f"{label}, {drafter}", fallback_share=fallbacks, rollback_share=rollbacks)


def _token_shares(counts: DecodingCounts) -> tuple[float | None, float | None]:
    tokens = counts.tokens
    return (counts.large_calls / tokens, counts.rollbacks / tokens) if tokens else (None, None)


def _variant(point: OperatingPoint) -> tuple[str, str]:
    """Method and rule, by which SpecCascade's Table 2 tells methods apart; and the drafter unless it is the small model."""
    drafter, rule = point.settings.get("drafter", "small"), point.settings.get("rule")
    return f"{point.method} {rule}" if rule else point.method, "" if drafter == "small" else str(drafter)


def _cascade(summary: Summary) -> Iterator[CascadeRow]:
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
            yield CascadeRow(
                label=", ".join(filter(None, words)),
                variant=variant,
                drafter=drafter,
                timed=len(own),
                at_quality=None if equal is None else joined(PointFigures, equal),
                at_latency=None if best is None else joined(PointFigures, best),
            )


def _speculative(summary: Summary) -> Iterator[SpeculativeRow]:
    """SD, Tables 2 to 4: α and c as measured, what the theorems expect of them, and what was measured."""
    for drafter in DRAFTERS:
        pair = summary.pairs.of(drafter)
        for point in _own(summary, drafter, "speculative"):
            length = int(point.settings["draft_length"] or 0)
            # α and c are of the small model; another drafter has others.
            known = point.settings.get("drafter", "small") == "small"
            alpha = _acceptance(pair, point) if known else None
            rate = None if alpha is None else alpha.rate
            yield joined(
                SpeculativeRow,
                point,
                label=f"speculative, {drafter}, γ {length}",
                temperature=_temperature(point),
                draft_length=length,
                acceptance_rate=rate,
                acceptance_interval=None if alpha is None else alpha.interval,
                cost_ratio=pair.cost_ratio if known else None,
                expected_speedup=_theory(expected_speedup, rate, length, pair.cost_ratio),
                expected_operations=_theory(expected_operations, rate, length, _operations_ratio(pair.sizes)),
            )


def _temperature(point: OperatingPoint) -> float:
    return 0.0 if point.sampling is None else point.sampling.temperature


def _theory(
    theorem: Callable[[float, int, float], float], rate: float | None, length: int, ratio: float | None
) -> float | None:
    return None if rate is None or ratio is None else theorem(rate, length, ratio)


def _acceptance(pair: PairRecord, point: OperatingPoint) -> AcceptanceRate | None:
    """α of the sampling that the point was decoded with; None where it was measured for another one only."""
    sampling = point.sampling
    if sampling is None or sampling.temperature == 0:
        return pair.acceptance_rate()
    sampled = pair.acceptance_rate(sampled=True)
    untruncated = not sampling.top_k and sampling.top_p == 1
    return sampled if sampled is not None and untruncated and sampled.temperature == sampling.temperature else None


def _operations_ratio(sizes: PairSizes | None) -> float | None:
    """ĉ: the weights that a token is multiplied with in the small decoder over those in the large one."""
    if sizes is None or sizes.small is None or sizes.large is None or not sizes.large.decoder_parameters:
        return None
    return sizes.small.decoder_parameters / sizes.large.decoder_parameters


def _lenience(summary: Summary) -> Iterator[LenienceRow]:
    """SD, Table 5: what lenience gains and costs. `checked_share` is of the tokens that were checked, not of all drafted."""
    for drafter in DRAFTERS:
        for point in _own(summary, drafter, "speculative_lenient"):
            counts, length = point.counts, point.settings["draft_length"]
            checked = counts.accepted + counts.rollbacks
            yield joined(
                LenienceRow,
                point,
                label=f"speculative lenient, {drafter}, γ {length}",
                temperature=_temperature(point),
                draft_length=length,
                lenience=point.settings["lenience"],
                checked_share=counts.accepted / checked if checked else None,
            )
