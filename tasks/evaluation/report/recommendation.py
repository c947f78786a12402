"""The recommendation: which operating point to deploy, what it gains and costs, what supports it and what would change it.

The point is the first that the test split does not speak against (`candidates`). Predictions and theory are named as such.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tasks.decoding.draft_length import best_draft_length, expected_speedup
from tasks.evaluation.report.arms_text import effect_sentences
from tasks.evaluation.report.candidates import Candidate, find_candidate
from tasks.evaluation.report.formatting import difference_text, interval_text, offer_text, point_text, quality_text, speed_text
from tasks.evaluation.report.selection import chosen, fastest, fastest_lossless
from tasks.evaluation.report.unsupported import reasons_against, unsupported
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.points import TimedPoint
from tasks.evaluation.results.summary import Recommendation, Summary
from tasks.evaluation.selection.choosing import keeps_quality
from tasks.paths import DRAFTERS

_TOLERATED = {"no_loss": "at no loss", "one_point": "within one point"}
_CHOICES = {"no_loss": "at no loss", "one_point": "within one point of vanilla"}
_LONGEST = 64
"""The longest draft that theory may choose; settings allow no longer one."""


def recommend(summary: Summary) -> Recommendation:
    """The recommendation for a task.

    Args:
        summary: with points, choices, vanilla, frontiers and pairs; its own recommendation is not read.
    """
    if reasons := reasons_against(summary):
        return unsupported(reasons)
    found, passed_over = find_candidate(summary)
    if found is None:
        text = [*_stay(summary, passed=bool(passed_over)), *(one.reason for one in passed_over)]
        text += [*effect_sentences(summary.arms), *_grounds(summary)]
        return Recommendation(passed_over=passed_over, text=" ".join(text), changes=list(_missed_gain(summary)))
    point = found.point
    sentences = [*_choice(summary, found), *(one.reason for one in passed_over), *_on_test(summary, found)]
    sentences += [*_drafters(summary, point, found.words), *effect_sentences(summary.arms), *_grounds(summary)]
    return Recommendation(
        point=summary.index_of(point),
        choice=found.choice,
        test=found.status,
        passed_over=passed_over,
        text=" ".join(sentences),
        changes=list(_alternatives(summary, point, found.words)),
    )


def as_lines(summary: Summary, width: int = 100_000) -> str:
    """The recommendation as text: the paragraph, then a list of what would change the choice.

    Args:
        summary: finished.
        width: most characters in a line.
    """
    found = summary.recommendation
    changes = [textwrap.fill(f"- {line}", width, subsequent_indent="  ") for line in found.changes]
    return "\n".join([textwrap.fill(found.text, width), "", "What would change this choice:", "", *changes]) + "\n"


def _stay(summary: Summary, *, passed: bool) -> Iterator[str]:
    if passed:
        yield "No choice of the validation split holds on test: stay with the vanilla large model."
        return
    yield "No method beats the vanilla large model on validation: stay with it."
    for choice, words in _CHOICES.items():
        point = fastest(chosen(summary, choice))
        yield f"No timed setting is {words}." if point is None else f"The fastest timed setting {words} is {offer_text(point)}."


def _choice(summary: Summary, found: Candidate) -> Iterator[str]:
    point = found.point
    if found.choice == "one_point":
        yield "No timed setting at no loss is faster than the vanilla large model."
    yield f"Deploy {point_text(point)}."
    measured = f"{speed_text(point)} as fast as the large model alone, at {quality_text(point, summary.metric)}"
    if found.choice is None:
        yield f"It is the fastest lossless setting of the validation split: {measured}."
    else:
        rank = "the fastest timed setting" if found.first else "the fastest timed setting of its method"
        yield f"On validation, on which it was chosen, it is {rank} {_CHOICES[found.choice]}: {measured}."
    bounds = point.difference_bounds
    if point.lossless:
        yield "By construction its output is the large model's own."
    elif bounds is not None and found.choice is not None:
        yield (
            f"There it loses less than {_short(-bounds.lower)} points with {summary.margins.confidence:.0%} confidence, all "
            f"settings of both drafters taken together; the margin is {summary.margins.of(found.choice):g}."
        )


def _on_test(summary: Summary, found: Candidate) -> Iterator[str]:
    """What the choice is worth on text that took no part in it."""
    test, status = found.point.test, found.status
    if test is None or status is None:
        yield "It was not measured on test: these are the numbers that it was chosen by, and such numbers flatter."
        return
    yield f"On test, where nothing was chosen, it has {speed_text(test)} at {quality_text(test, summary.metric)}."
    margin, bounds = summary.margins.of(found.words), test.difference_bounds
    if bounds is None:
        yield "How far that difference is noise was not measured."
    elif status.quality == "confirmed":
        sure = f"{summary.margins.confidence:.0%} confidence"
        yield f"Test confirms the choice: with {sure} it loses less than {margin:g} points."
    else:
        yield (
            f"Test leaves the choice open: losses from {_short(-bounds.upper)} to {_short(-bounds.lower)} points are not ruled "
            f"out, and the margin is {margin:g}."
        )


def _short(loss: float) -> str:
    return f"{loss:.2f}" if abs(loss) >= 0.005 else "0"


def _drafters(summary: Summary, point: TimedPoint, choice: str) -> Iterator[str]:
    """Aligned against unaligned: the best of the other drafter at the same tolerance, and the two frontiers of BiLD."""
    other = next(drafter for drafter in DRAFTERS if drafter != point.drafter)
    best = fastest(chosen(summary, choice, other))
    if best is None:
        yield f"With the {other} drafter no timed setting is {_CHOICES[choice]}."
    else:
        on_test = best.test if point.test else None
        values = f"{speed_text(on_test or best)} at {difference_text(on_test or best)}"
        split = "test" if on_test else summary.split
        yield f"The best with the {other} drafter, chosen alike, is {point_text(best)}: {values} on {split}."
    gap = summary.frontier.gap
    if gap is not None:
        quality = f"{gap.mean_quality_difference:+.2f} points" + interval_text(gap.quality_interval, "+")
        speed = f"{gap.mean_speedup_ratio:.2f}{interval_text(gap.speedup_interval)} times"
        yield (
            f"Over what both frontiers of BiLD reach on validation, aligned has {quality} at equal latency and is {speed} as "
            "fast at equal quality as unaligned."
        )


def _grounds(summary: Summary) -> Iterator[str]:
    """How much of the grid was timed, and how well the rest was predicted."""
    points, timed = summary.points, len(summary.timed_points())
    if not points:
        yield "Nothing was measured but the models alone."
        return
    yield f"Of {len(points)} settings of both sweeps {timed} were timed; only these were compared."
    errors = [error for drafter in DRAFTERS if (error := summary.pairs.of(drafter).sample_error) is not None]
    count = sum(error.points for error in errors)
    if timed < len(points) and count:
        mean = sum(error.mean * error.points for error in errors) / count
        yield (
            "What to time was chosen by predicted speed-ups; on a random sample of "
            f"{count} timed setting{'s' if count > 1 else ''} these missed the measured ones by {mean:.1%} on average and by "
            f"{max(error.worst for error in errors):.1%} at worst."
        )


def _alternatives(summary: Summary, point: TimedPoint, choice: str) -> Iterator[str]:
    """Reasons to deploy something other than the recommended point, one sentence each."""
    words = _TOLERATED[choice]
    second = fastest(other for other in chosen(summary, choice) if other is not point)
    yield f"Nothing else was found {words}: there is no runner-up." if second is None else _runner_up(point, second, words)
    if choice == "no_loss":
        yield from _wider(point, fastest(chosen(summary, "one_point")))
    sure = fastest_lossless(summary)
    if sure is not None and not point.lossless:
        values = f"{point_text(sure)}: {speed_text(sure)}, with nothing to lose"
        yield f"If the output must be the large model's own on any text, take {values}."
    if point.drafter == "aligned":
        other = fastest(chosen(summary, choice, "unaligned"))
        if other is None:
            yield f"Without aligning the drafter, no timed setting is {words}."
        else:
            share = f"{other.speedup / point.speedup:.0%} of the speed-up recommended"
            yield f"Without aligning the drafter the best {words} is {offer_text(other)}, {share}."
    yield from _not_timed(summary, point, choice)
    yield from _conditions(summary, point.drafter)


def _runner_up(point: TimedPoint, second: TimedPoint, words: str) -> str:
    behind = 1.0 - second.speedup / point.speedup
    # A faster point than the recommended one is not faster than vanilla beyond noise: its interval is wide.
    gap = f"{behind:.0%} behind" if behind >= 0 else f"{-behind:.0%} ahead, but not faster than vanilla beyond noise"
    own, others = point.speedup_interval, second.speedup_interval
    overlap = "; the intervals overlap, so another run may put it first" if own and others and own[0] <= others[1] else ""
    return f"The runner-up {words} is {offer_text(second)}, {gap}{overlap}."


def _wider(point: TimedPoint, other: TimedPoint | None) -> Iterator[str]:
    """What one point of loss gains over a point at no loss."""
    if other is None:
        return
    if other is point or other.speedup <= point.speedup:
        yield "Allowing one point of loss gains nothing: no timed setting within it is faster."
        return
    on_test = f", and {speed_text(other.test)} at {difference_text(other.test)} on test" if other.test else ""
    measured = f"{speed_text(other)} at {difference_text(other)} on validation{on_test}"
    yield f"Allowing one point of loss, {point_text(other)} has {measured}."


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


def _missed_gain(summary: Summary) -> Iterator[str]:
    """Where vanilla stays: what theory allows each pair of models, and how conditions matter."""
    for drafter in DRAFTERS:
        pair = summary.pairs.of(drafter)
        alpha, ratio = pair.acceptance_rate(), pair.cost_ratio
        if alpha is not None and ratio is not None:
            length = best_draft_length(alpha.rate, ratio, _LONGEST)
            expected = expected_speedup(alpha.rate, length, ratio)
            yield (
                f"Theory (SD, Theorem 3.8) expects {expected:.2f}× of the {drafter} pair in lossless speculative decoding with "
                f"γ {length}, if a check costs one step{_with_measured_check(pair, alpha.rate, ratio)}: it agrees on "
                f"{alpha.rate:.0%} of tokens (α) and a small step costs {ratio:.2f} of a large one (c). A drafter that agrees "
                "more often, or costs less, would gain more."
            )
    yield from _conditions(summary, "unaligned")


def _with_measured_check(pair: PairRecord, rate: float, ratio: float) -> str:
    """The same with the measured cost of a check, and its own best draft length; empty where it was not measured."""
    costs = pair.costs
    if costs is None or costs.check_cost(1) is None:
        return ""
    length = best_draft_length(rate, ratio, _LONGEST, lambda positions: costs.check_cost(positions) or 1.0)
    check = costs.check_cost(length + 1) or 1.0
    expected = expected_speedup(rate, length, ratio, check)
    return f", and {expected:.2f}× with γ {length} at the measured {check:.2f} steps for a check of {length + 1} positions"


def _conditions(summary: Summary, drafter: str) -> Iterator[str]:
    """What else was measured under: sampling, and the machine."""
    pair = summary.pairs.of(drafter)
    greedy, sampled = pair.acceptance_rate(), pair.acceptance_rate(sampled=True)
    if greedy is not None and sampled is not None:
        less = "less" if sampled.rate < greedy.rate else "no less"
        yield (
            f"Sampling at temperature {sampled.temperature:g}, the {drafter} pair agrees {less} than greedily (α "
            f"{sampled.rate:.2f} against {greedy.rate:.2f}); speed-ups and thresholds are then others."
        )
    machine = pair.origin("host_gpu") or pair.origin("host_cpu")
    where = ", ".join(filter(None, (machine, pair.runtime, "batch 1")))
    costs = "" if pair.cost_ratio is None else f" (here c = {pair.cost_ratio:.2f})"
    yield (
        f"Times are of this machine ({where}). On other hardware, or with larger batches, a small step and a check of several "
        f"tokens cost other shares of a large step{costs}: sweep again there."
    )
