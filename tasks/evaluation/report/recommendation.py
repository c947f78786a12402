"""The recommendation: which operating point to deploy, what it gains and costs, and what supports it.

The point is the fastest timed one of the validation split at no loss that is faster than vanilla beyond the noise of its
timing; without such a point, the same within one point of quality; without that too, vanilla large. The test split takes no
part in the choice: it says what the choice is worth.
"""

from __future__ import annotations

import textwrap

from tasks.evaluation.frontier import TOLERANCES
from tasks.evaluation.report.alternatives import alternatives, missed_gain
from tasks.evaluation.report.formatting import difference_text, interval_text, point_text, quality_text, speed_text
from tasks.evaluation.report.selection import best_choice, fastest, fastest_lossless, is_faster
from tasks.evaluation.results.points import TimedPoint
from tasks.evaluation.results.summary import Recommendation, Summary
from tasks.paths import DRAFTERS

_CHOICES = {"no_loss": "at no loss", "one_point": "within one point of vanilla"}
_CONTRADICTED = {"no_loss": 0.0, "one_point": -TOLERANCES["one_point"]}
"""A choice is contradicted where the whole test interval of the quality difference lies below this."""


def recommend(summary: Summary) -> Recommendation:
    """The recommendation for a task.

    Args:
        summary: with points, choices, vanilla, frontiers and pairs; its own recommendation is not read.
    """
    index, choice = _recommended(summary)
    if index is None:
        return Recommendation(text=" ".join(_stay(summary)), changes=missed_gain(summary))
    point = summary.timed_point(index)
    sentences = [
        *_choice(summary, point, choice),
        *_on_test(summary, point, choice),
        *_drafters(summary, point, choice),
        *_grounds(summary),
    ]
    return Recommendation(point=index, text=" ".join(sentences), changes=alternatives(summary, index, choice))


def as_lines(summary: Summary, width: int = 100_000) -> str:
    """The recommendation as text: the paragraph, then a list of what would change the choice.

    Args:
        summary: finished.
        width: most characters in a line.
    """
    found = summary.recommendation
    changes = [textwrap.fill(f"- {line}", width, subsequent_indent="  ") for line in found.changes]
    return "\n".join([textwrap.fill(found.text, width), "", "What would change this choice:", "", *changes]) + "\n"


def _recommended(summary: Summary) -> tuple[int | None, str]:
    for choice in TOLERANCES:
        found = [one.point for one, point in summary.chosen_points() if one.choice == choice and is_faster(point)]
        index = fastest(summary, found)
        if index is not None:
            return index, choice
    return None, ""


def _stay(summary: Summary) -> list[str]:
    sentences = ["No method beats the vanilla large model on validation: stay with it."]
    for choice, words in _CHOICES.items():
        index = best_choice(summary, choice)
        if index is None:
            sentences.append(f"No timed setting is {words}.")
        else:
            point = summary.timed_point(index)
            sentences.append(f"The fastest timed setting {words} is {point_text(point)} at {speed_text(point)}.")
    return [*sentences, *_grounds(summary)]


def _choice(summary: Summary, point: TimedPoint, choice: str) -> list[str]:
    sentences = []
    if choice != "no_loss":
        sentences.append("No timed setting at no loss is faster than the vanilla large model.")
    return [
        *sentences,
        f"Deploy {point_text(point)}.",
        f"On validation, on which it was chosen, it is the fastest timed setting {_CHOICES[choice]}: {speed_text(point)} as "
        f"fast as the large model alone, at {quality_text(point, summary.metric)}.",
        *(["By construction its output is the large model's own."] if point.lossless else []),
    ]


def _on_test(summary: Summary, point: TimedPoint, choice: str) -> list[str]:
    """What the choice is worth on text that took no part in it."""
    test = point.test
    if test is None:
        return ["It was not measured on test: these are the numbers that it was chosen by, and such numbers flatter."]
    sentences = [f"On test, where nothing was chosen, it has {speed_text(test)} at {quality_text(test, summary.metric)}."]
    interval, limit = test.quality_difference_interval, _CONTRADICTED[choice]
    if interval is None:
        sentences.append("How far that difference is noise was not measured.")
    elif interval[1] < limit:
        sentences.append(
            f"That contradicts the choice: the whole interval lies below {limit:g}, so what was chosen {_CHOICES[choice]} on "
            "validation does not keep it on test."
        )
        sure = fastest_lossless(summary)
        if sure is not None and not point.lossless:
            sentences.append(f"Where that matters, deploy {point_text(sure)}, which is lossless: {speed_text(sure)}.")
    elif interval[0] < limit:
        doubt = ": the difference is chance" if point.lossless else f", but {-interval[0]:.2f} points of loss are not ruled out"
        sentences.append(f"That does not contradict the choice{doubt}.")
    else:
        sentences.append("That bears out the choice.")
    if not is_faster(test):
        sentences.append("On test its speed-up may be none: it is not above 1 beyond the noise of timing.")
    return sentences


def _drafters(summary: Summary, point: TimedPoint, choice: str) -> list[str]:
    """Aligned against unaligned: the best of the other drafter at the same tolerance, and the two frontiers of BiLD."""
    other = next(drafter for drafter in DRAFTERS if drafter != point.drafter)
    index = best_choice(summary, choice, drafter=other)
    if index is None:
        sentences = [f"With the {other} drafter no timed setting is {_CHOICES[choice]}."]
    else:
        best = summary.timed_point(index)
        on_test = best.test is not None and point.test is not None
        shown = best.test if best.test is not None and on_test else best
        sentences = [
            f"The best with the {other} drafter, chosen alike, is {point_text(best)}: {speed_text(shown)} at "
            f"{difference_text(shown)} on {'test' if on_test else summary.split}."
        ]
    gap = summary.frontier.gap
    if gap is not None:
        quality = f"{gap.mean_quality_difference:+.2f} points" + interval_text(gap.quality_interval, "+")
        speed = f"{gap.mean_speedup_ratio:.2f}{interval_text(gap.speedup_interval)} times"
        sentences.append(
            f"Over what both frontiers of BiLD reach on validation, aligned has {quality} at equal latency and is {speed} as "
            "fast at equal quality as unaligned."
        )
    return sentences


def _grounds(summary: Summary) -> list[str]:
    """How much of the grid was timed, and how well the rest was predicted."""
    points = summary.points
    if not points:
        return ["Nothing was measured but the models alone."]
    timed = len(summary.timed_points())
    sentences = [f"Of {len(points)} settings of both sweeps {timed} were timed; only these were compared."]
    errors = [error for drafter in DRAFTERS if (error := summary.pairs.of(drafter).sample_error) is not None]
    count = sum(error.points for error in errors)
    if timed < len(points) and count:
        mean = sum(error.mean * error.points for error in errors) / count
        worst = max(error.worst for error in errors)
        sentences.append(
            "What to time was chosen by predicted speed-ups; on a random sample of "
            f"{count} timed setting{'s' if count > 1 else ''} these missed the measured ones by {mean:.1%} on average and by "
            f"{worst:.1%} at worst."
        )
    return sentences
