"""What would change the recommendation, one sentence each, from measurements; predictions and theory are named as such."""

from __future__ import annotations

from tasks.decoding.adaptive import best_draft_length, expected_speedup
from tasks.evaluation.frontier import EDGE, TOLERANCES
from tasks.evaluation.report.formatting import difference_text, point_text, speed_text
from tasks.evaluation.report.selection import best_choice, fastest_lossless
from tasks.evaluation.results.points import OperatingPoint, TimedPoint
from tasks.evaluation.results.summary import Summary
from tasks.paths import DRAFTERS

_TOLERATED = {"no_loss": "at no loss", "one_point": "within one point"}
_LONGEST = 64
"""The longest draft that theory may choose; settings allow no longer one."""


def alternatives(summary: Summary, index: int, choice: str) -> list[str]:
    """Reasons to deploy something other than the recommended point.

    Args:
        summary: as for `recommendation.recommend`.
        index: of the recommended point.
        choice: the tolerance that it was chosen for.
    """
    point = summary.timed_point(index)
    return [
        _runner_up(summary, index, choice),
        *_wider(summary, index, choice),
        *_lossless(summary, point),
        *_unaligned(summary, point, choice),
        *_not_timed(summary, point, choice),
        *_sampling(summary, point.drafter),
        _elsewhere(summary, point.drafter),
    ]


def missed_gain(summary: Summary) -> list[str]:
    """Where vanilla stays: what theory allows each pair of models, and how hardware matters."""
    sentences = []
    for drafter in DRAFTERS:
        pair = summary.pairs.of(drafter)
        alpha, ratio = pair.acceptance_rate(), pair.cost_ratio
        if alpha is None or ratio is None:
            continue
        length = best_draft_length(alpha.rate, ratio, _LONGEST)
        most = expected_speedup(alpha.rate, length, ratio)
        sentences.append(
            f"Theory (SD, Theorem 3.8) allows the {drafter} pair at most {most:.2f}× in lossless speculative decoding, with γ "
            f"{length}: it agrees on {alpha.rate:.0%} of tokens (α) and a small step costs {ratio:.2f} of a large one (c). A "
            "drafter that agrees more often, or costs less, would gain more."
        )
    return [*sentences, *_sampling(summary, "unaligned"), _elsewhere(summary, "unaligned")]


def _runner_up(summary: Summary, index: int, choice: str) -> str:
    point, second = summary.timed_point(index), best_choice(summary, choice, without=index)
    if second is None:
        return f"Nothing else was found {_TOLERATED[choice]}: there is no runner-up."
    other = summary.timed_point(second)
    behind = 1.0 - other.speedup / point.speedup
    # A faster point than the recommended one is not faster than vanilla beyond noise: its interval is wide.
    gap = f"{behind:.0%} behind" if behind >= 0 else f"{-behind:.0%} ahead, but not faster than vanilla beyond noise"
    sentence = f"The runner-up {_TOLERATED[choice]} is {point_text(other)} at {speed_text(other)}, {gap}"
    own, others = point.speedup_interval, other.speedup_interval
    if own and others and own[0] <= others[1]:
        sentence += "; the intervals overlap, so another run may put it first"
    return sentence + "."


def _wider(summary: Summary, index: int, choice: str) -> list[str]:
    point, wider = summary.timed_point(index), best_choice(summary, "one_point")
    if choice != "no_loss" or wider is None:
        return []
    other = summary.timed_point(wider)
    if wider == index or other.speedup <= point.speedup:
        return ["Allowing one point of loss gains nothing: no timed setting within it is faster."]
    sentence = (
        f"Allowing one point of loss, {point_text(other)} has {speed_text(other)} at {difference_text(other)} on validation"
    )
    if other.test:
        sentence += f", and {speed_text(other.test)} at {difference_text(other.test)} on test"
    return [sentence + "."]


def _lossless(summary: Summary, point: TimedPoint) -> list[str]:
    best = fastest_lossless(summary)
    if point.lossless or best is None:
        return []
    return [
        f"If the output must be the large model's own on any text, take {point_text(best)}: {speed_text(best)}, with nothing "
        "to lose."
    ]


def _unaligned(summary: Summary, point: TimedPoint, choice: str) -> list[str]:
    if point.drafter != "aligned":
        return []
    index = best_choice(summary, choice, drafter="unaligned")
    if index is None:
        return [f"Without aligning the drafter, no timed setting is {_TOLERATED[choice]}."]
    other = summary.timed_point(index)
    return [
        f"Without aligning the drafter the best {_TOLERATED[choice]} is {point_text(other)} at {speed_text(other)}, "
        f"{other.speedup / point.speedup:.0%} of the speed-up recommended."
    ]


def _not_timed(summary: Summary, recommended: TimedPoint, choice: str) -> list[str]:
    """A setting that is predicted to beat the recommended one: nothing to recommend, but a reason to time it."""

    def predicted(point: OperatingPoint) -> float:
        return 0.0 if point.predicted is None else point.predicted.speedup

    found = [
        point
        for point in summary.points
        if not point.timed
        and not point.same_as
        and predicted(point) > recommended.speedup
        and point.quality_difference is not None
        and point.quality_difference >= -TOLERANCES[choice] - EDGE
    ]
    if not found:
        return []
    first = max(found, key=predicted)
    return [
        f"Not timed, but predicted faster {_TOLERATED[choice]}: {point_text(first)}, predicted "
        f"{predicted(first):.2f}×. Time it before believing it."
    ]


def _sampling(summary: Summary, drafter: str) -> list[str]:
    pair = summary.pairs.of(drafter)
    greedy, sampled = pair.acceptance_rate(), pair.acceptance_rate(sampled=True)
    if greedy is None or sampled is None:
        return []
    less = "less" if sampled.rate < greedy.rate else "no less"
    return [
        f"Sampling at temperature {sampled.temperature:g}, the {drafter} pair agrees {less} than greedily (α "
        f"{sampled.rate:.2f} against {greedy.rate:.2f}); speed-ups and thresholds are then others."
    ]


def _elsewhere(summary: Summary, drafter: str) -> str:
    pair = summary.pairs.of(drafter)
    machine = pair.origin("host_gpu") or pair.origin("host_cpu")
    where = ", ".join(filter(None, (machine, pair.runtime, "batch 1")))
    costs = "" if pair.cost_ratio is None else f" (here c = {pair.cost_ratio:.2f})"
    return (
        f"Times are of this machine ({where}). On other hardware, or with larger batches, a small step and a check of several "
        f"tokens cost other shares of a large step{costs}: sweep again there."
    )
