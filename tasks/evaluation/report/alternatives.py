"""What would change the recommendation: other choices, with the split that each number is of, and other conditions."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.decoding.methods.speculative import best_draft_length, expected_speedup
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.metrics import PERPLEXITY, metric_of
from tasks.evaluation.report.batches import batch_sentence
from tasks.evaluation.report.formatting import difference_text, point_text, speed_text
from tasks.evaluation.report.headline import cost_text
from tasks.evaluation.report.marks import mark_of
from tasks.evaluation.report.points import test_status
from tasks.evaluation.report.selection import chosen, fastest, fastest_lossless, is_faster, reported, unproven
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import TimedMeasurements, TimedPoint
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.selection import keeps_quality
from tasks.paths import ARMS

_TOLERATED = {"no_loss": "at no loss", "one_point": "within one point"}
GREEDY_ONLY = " (in greedy decoding; when sampling, the same distribution)"
"""To what an output without loss is equal."""
_LEVEL = 0.99
"""A point of at least this share of another's speed is level with it."""
_LONGEST = 64
"""The longest draft that theory may choose; settings allow no longer one."""


def alternatives(summary: Summary, point: TimedPoint, choice: str) -> Iterator[str]:
    """Reasons to deploy something other than the recommended point, one sentence each."""
    words = _TOLERATED[choice]
    standing = [other for other in _standing(summary, choice) if other is not point]
    unsure = unproven(standing, point)
    second = fastest(other for other in standing if not any(other is one for one in unsure))
    yield f"Nothing else was found {words}: there is no runner-up." if second is None else _runner_up(point, second, words)
    if unsure:
        yield _no_candidate(point, max(unsure, key=lambda other: other.speedup), words)
    yield from _level_on_test(summary, point, choice, second)
    if choice == "no_loss":
        yield from _wider(summary, point)
    sure = fastest_lossless(summary)
    if sure is not None and not point.lossless:
        values = f"{point_text(sure)}: {_speed_on_split(sure)}, with identical output{GREEDY_ONLY}"
        yield f"If the output must be the large model's own on any text, take {values}."
    if point.arm == "aligned":
        other = fastest(_standing(summary, choice, "unaligned"))
        if other is None:
            yield f"Without aligning the drafter, no timed setting is {words}."
        elif other is second:
            yield "Without aligning the drafter, that runner-up is the best."
        else:
            own, others, split = _on_one_split(point, other)
            share = f"{speed_text(others)} on {split}, {others.speedup / own.speedup:.0%} of the speed-up recommended"
            yield f"Without aligning the drafter the best {words}, {_ranked(point, other)}, is {point_text(other)}: {share}."
    yield from _not_timed(summary, point, choice)
    yield from conditions(summary, point.arm)


def _standing(summary: Summary, choice: str, arm: str | None = None) -> list[TimedPoint]:
    """The points chosen for this whose quality test does not contradict."""
    margin = summary.margins.of(choice)
    return [
        point
        for point in chosen(summary, choice, arm)
        if (status := test_status(point.test, margin)) is None or status.quality != "contradicted"
    ]


def _on_one_split(point: TimedPoint, other: TimedPoint) -> tuple[TimedMeasurements, TimedMeasurements, str]:
    """Both points on test where both were measured there, else on validation; and the name of that split."""
    return (point.test, other.test, REPORTED_ON) if point.test and other.test else (point, other, CHOSEN_ON)


def _speed_on_split(point: TimedPoint) -> str:
    measured, split = reported(point)
    return f"{speed_text(measured)} on {split}"


def _runner_up(point: TimedPoint, second: TimedPoint, words: str) -> str:
    own, others, split = _on_one_split(point, second)
    behind = 1.0 - others.speedup / own.speedup
    gap = f"{behind:.0%} behind" if behind >= 0 else f"{-behind:.0%} ahead there"
    if behind < 0:
        gap += ", but slower on validation, which chooses" if is_faster(second) else ", but not faster than vanilla for certain"
    first, next_ = own.speedup_interval, others.speedup_interval
    overlap = first is not None and next_ is not None and first[0] <= next_[1]
    unsure = "; the intervals overlap, so another run may put it first" if behind >= 0 and overlap else ""
    measured = f"{speed_text(others)} on {split}, {gap}{unsure}"
    return f"The runner-up {words}, {_ranked(point, second)}, is {point_text(second)}: {measured}."


def _no_candidate(point: TimedPoint, other: TimedPoint, words: str) -> str:
    """Why a faster point was none to choose."""
    measured, split = reported(other)
    on_test = "" if measured is other else f"; on {split} it is {speed_text(measured)}"
    return (
        f"{point_text(other)} was faster {words} on {CHOSEN_ON}, {speed_text(other)} against {point.speedup:.2f}×, but its "
        f"interval does not lie above 1: it may be no faster than vanilla, so it was no candidate{on_test}."
    )


def _ranked(point: TimedPoint, other: TimedPoint) -> str:
    """That validation ranks both, with its numbers."""
    return f"ranked on {CHOSEN_ON} ({other.speedup:.2f}× against {point.speedup:.2f}×)"


def _level_on_test(summary: Summary, point: TimedPoint, choice: str, second: TimedPoint | None) -> Iterator[str]:
    """The fastest other choice on test that is level with the recommended point there, or ahead of it."""
    if point.test is None:
        return
    own = point.test.speedup
    others = [(one.test, one) for one in _standing(summary, choice) if one.test and one is not point and one is not second]
    level = [(test, one) for test, one in others if test.speedup >= _LEVEL * own]
    if level:
        test, one = max(level, key=lambda found: found[0].speedup)
        what = f"{point_text(one)}: {speed_text(test)} against {own:.2f}×, at {difference_text(test)}"
        ranks = f"{one.speedup:.2f}× against {point.speedup:.2f}× there"
        where = "level with it or ahead" if test.speedup < own / _LEVEL else "ahead"
        yield f"On test another choice is {where}: {what}. The choice is validation's alone ({ranks})."


def _wider(summary: Summary, point: TimedPoint) -> Iterator[str]:
    """What one point of loss gains over a point at no loss."""
    other = fastest(chosen(summary, "one_point"))
    if other is None:
        return
    if other is point or other.speedup <= point.speedup:
        yield "Allowing one point of loss gains nothing: no timed setting within it is faster."
        return
    measured, _ = reported(other)
    cost = cost_text(measured, summary.metric, lossless=other.lossless)
    mark = mark_of(test_status(other.test, summary.margins.one_point), summary.margins.one_point)
    if mark.kind == "contradicted":
        yield f"Allowing one point of loss does not help: {point_text(other)} {cost} on test, {mark.words}."
        return
    on_test = f" ({mark.words})" if other.test else ""
    yield f"Allowing one point of loss, {point_text(other)} is {_speed_on_split(other)} and {cost}{on_test}."


def _not_timed(summary: Summary, recommended: TimedPoint, choice: str) -> Iterator[str]:
    """A setting that is predicted to beat the recommended one: nothing to recommend, but a reason to time it."""
    margin, speedup, first = summary.margins.of(choice), recommended.speedup, None
    for point in summary.points:
        kept = point.difference_bounds is not None and keeps_quality(point.difference_bounds.lower, margin)
        if kept and not point.timed and not point.same_as and point.predicted and point.predicted.speedup > speedup:
            speedup, first = point.predicted.speedup, point
    if first is not None:
        what = f"{point_text(first)}, predicted {speedup:.2f}×"
        yield f"Not timed, but predicted faster {_TOLERATED[choice]}: {what}. Time it before believing it."


def missed_gain(summary: Summary) -> Iterator[str]:
    """Where vanilla stays: what theory allows each pair of models, and how conditions matter."""
    for arm in ARMS:
        pair = summary.pairs.of(arm)
        alpha, ratio = pair.acceptance_rate(), pair.cost_ratio
        if alpha is not None and ratio is not None:
            length = best_draft_length(alpha.rate, ratio, _LONGEST)
            expected = expected_speedup(alpha.rate, length, ratio)
            yield (
                f"Theory (SD, Theorem 3.8) expects {expected:.2f}× of the {arm} pair in lossless speculative decoding with "
                f"γ {length}, if a check costs one step{_with_measured_check(pair, alpha.rate, ratio)}: it agrees on "
                f"{alpha.rate:.0%} of tokens (α) and a small step costs {ratio:.2f} of a large one (c). A drafter that agrees "
                "more often, or costs less, would gain more."
            )
    yield from conditions(summary, "unaligned")


def _with_measured_check(pair: PairRecord, rate: float, ratio: float) -> str:
    """The same with the measured cost of a check, and its own best draft length; empty where it was not measured."""
    costs = pair.costs
    if costs is None or costs.check_cost(1) is None:
        return ""
    length = best_draft_length(rate, ratio, _LONGEST, lambda positions: costs.check_cost(positions) or 1.0)
    check = costs.check_cost(length + 1) or 1.0
    expected = expected_speedup(rate, length, ratio, check)
    return f", and {expected:.2f}× with γ {length} at the measured {check:.2f} steps for a check of {length + 1} positions"


def conditions(summary: Summary, arm: str) -> Iterator[str]:
    """What else was measured under: sampling, and the machine."""
    pair = summary.pairs.of(arm)
    greedy, sampled = pair.acceptance_rate(), pair.acceptance_rate(sampled=True)
    # A perplexity is of temperature 1 alone.
    if greedy is not None and sampled is not None and metric_of(summary.metric).name != PERPLEXITY:
        less = "less" if sampled.rate < greedy.rate else "no less"
        yield (
            f"Sampling at temperature {sampled.temperature:g}, the {arm} pair agrees {less} than greedily (α "
            f"{sampled.rate:.2f} against {greedy.rate:.2f}); speed-ups and thresholds will differ."
        )
    if pair.batches is not None:
        yield f"By batch size, with the {arm} drafter on test, {batch_sentence(pair.batches)}."
    machine = pair.origin("host_gpu") or pair.origin("host_cpu")
    where = ", ".join(filter(None, (machine, pair.runtime, "batch 1")))
    costs = "" if pair.cost_ratio is None else f" (here a small step takes {pair.cost_ratio:.2f} of a large one)"
    yield (
        f"Times are of this machine ({where}). On other hardware, or with larger batches, relative costs of the models' steps "
        f"differ{costs}; rerun the sweep there."
    )
