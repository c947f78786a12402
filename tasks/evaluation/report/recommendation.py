"""The recommendation: which operating point to deploy, what it gains and costs, what supports it and what would change it.

The point is the first that the test split does not speak against (`candidates`). Predictions and theory are named as such.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tasks.evaluation.report.alternatives import GREEDY_ONLY, alternatives, missed_gain
from tasks.evaluation.report.arms_text import effect_sentences
from tasks.evaluation.report.basis import basis
from tasks.evaluation.report.candidates import Candidate, find_candidate
from tasks.evaluation.report.deployment import configuration, explained
from tasks.evaluation.report.formatting import (
    difference_text,
    interval_text,
    offer_text,
    point_text,
    points_text,
    quality_text,
    speed_text,
)
from tasks.evaluation.report.headline import headline, unit_of
from tasks.evaluation.report.marks import mark_of
from tasks.evaluation.report.points import test_status
from tasks.evaluation.report.selection import chosen, fastest, unproven
from tasks.evaluation.report.unsupported import reasons_against, unsupported
from tasks.evaluation.results.rows import TimedPoint
from tasks.evaluation.results.summary import Recommendation, Summary
from tasks.paths import ARMS

_CHOICES = {"no_loss": "at no loss", "one_point": "within one point of vanilla"}


def recommend(summary: Summary) -> Recommendation:
    """The recommendation for a task.

    Args:
        summary: with points, choices, vanilla, frontiers, arms and pairs; its own recommendation is not read.
    """
    if reasons := reasons_against(summary):
        return unsupported(reasons)
    found, passed_over = find_candidate(summary)
    objections = [one.reason for one in passed_over]
    if found is None:
        return Recommendation(
            headline=headline(summary, None),
            basis=basis(summary, None),
            passed_over=passed_over,
            text=" ".join([*_stay(summary, passed=bool(passed_over)), *objections]),
            evidence=[*effect_sentences(summary.arms), *_grounds(summary)],
            changes=list(missed_gain(summary)),
        )
    point = found.point
    return Recommendation(
        point=summary.index_of(point),
        choice=found.choice,
        test=found.status,
        passed_over=passed_over,
        headline=headline(summary, found),
        basis=basis(summary, found),
        text=" ".join([*_deploy(found), *_on_test(summary, found), *_on_validation(summary, found), *objections]),
        evidence=[*effect_sentences(summary.arms), *_drafters(summary, point, found.words), *_grounds(summary)],
        changes=list(alternatives(summary, point, found.words)),
    )


def as_lines(summary: Summary, width: int = 100_000) -> str:
    """The recommendation as text: its first line, the paragraph, the configuration, its grounds, and what would change it.

    Args:
        summary: finished.
        width: most characters in a line.
    """
    found = summary.recommendation
    about = [textwrap.fill(f"- {name}: {text}", width, subsequent_indent="  ") for name, text in found.basis.items()]
    lines = [*textwrap.wrap(found.headline, width), "", *about, *([""] if about else []), *textwrap.wrap(found.text, width), ""]
    if not found.against:
        settings = configuration(summary, summary.recommended)
        lines += ["The configuration to deploy:", "", *(f"    {line}" for line in settings), ""]
        meaning = [] if summary.recommended is None else explained(summary.recommended)
        lines += [textwrap.fill(f"- {line}", width, subsequent_indent="  ") for line in meaning] + ([""] if meaning else [])
    for title, sentences in (("Why believe it:", found.evidence), ("What would change this choice:", found.changes)):
        if sentences:
            lines += [title, "", *(textwrap.fill(f"- {line}", width, subsequent_indent="  ") for line in sentences), ""]
    return "\n".join(lines).rstrip() + "\n"


def _stay(summary: Summary, *, passed: bool) -> Iterator[str]:
    if passed:
        yield "No choice of the validation split holds on test: stay with the vanilla large model."
        return
    yield "No method beats the vanilla large model on validation: stay with it."
    for choice, words in _CHOICES.items():
        point = fastest(chosen(summary, choice))
        yield f"No timed setting is {words}." if point is None else f"The fastest timed setting {words} is {offer_text(point)}."


def _deploy(found: Candidate) -> Iterator[str]:
    if found.choice == "one_point" and found.first:
        yield "No timed setting at no loss is faster than the vanilla large model beyond noise."
    yield f"Deploy {point_text(found.point)}; the settings are explained below."
    if found.point.lossless:
        yield f"By construction its output is the large model's own{GREEDY_ONLY}."


def _on_validation(summary: Summary, found: Candidate) -> Iterator[str]:
    point = found.point
    measured = f"{speed_text(point)} as fast as the large model alone, at {quality_text(point, summary.metric)}"
    if found.choice is None:
        yield f"It is the fastest lossless setting of the validation split: {measured}."
    else:
        rank = "the fastest timed setting" if found.first else "the fastest timed setting of its method"
        proven = " that is faster than vanilla beyond noise" if unproven(chosen(summary, found.choice), point) else ""
        shown = f"at most {summary.margins.of(found.choice):g} {unit_of(summary.metric)}, shown with "
        sure = f"({shown}{summary.margins.confidence:.0%} confidence)"
        yield f"On validation, on which it was chosen, it is {rank} {_CHOICES[found.choice]}{proven} {sure}: {measured}."
    bounds = point.difference_bounds
    if bounds is not None and found.choice is not None and not point.lossless:
        yield (
            f"There its loss is below {_short(-bounds.lower)} points, the bound that had to be below the margin of "
            f"{summary.margins.of(found.choice):g}; it lies further out than the interval because such bounds hold for all "
            "settings of both drafters at once."
        )


def _on_test(summary: Summary, found: Candidate) -> Iterator[str]:
    """What the choice is worth on text that took no part in it."""
    test, status = found.point.test, found.status
    if test is None or status is None:
        yield "It was not measured on test: these are the numbers that it was chosen by, and such numbers flatter."
        return
    yield (
        f"On test, which played no part in the choice, it is {speed_text(test)} as fast as the large model alone, at "
        f"{quality_text(test, summary.metric)}."
    )
    margin, bounds = summary.margins.of(found.words), test.difference_bounds
    if found.point.lossless:
        return
    if bounds is None:
        yield "How far that difference is noise was not measured."
    elif status.quality == "confirmed":
        sure = f"{summary.margins.confidence:.0%} confidence"
        yield f"Test confirms the choice: with {sure} it loses less than {points_text(margin)}."
    else:
        yield (
            f"Test leaves the choice open: losses from {_short(-bounds.upper)} to {_short(-bounds.lower)} points are not ruled "
            f"out, and the margin is {margin:g}."
        )


def _short(loss: float) -> str:
    return f"{loss:.2f}" if abs(loss) >= 0.005 else "0"


def _drafters(summary: Summary, point: TimedPoint, choice: str) -> Iterator[str]:
    """Aligned against unaligned: the best of the other drafter at the same margin, and the two frontiers of BiLD."""
    other = next(arm for arm in ARMS if arm != point.arm)
    best = fastest(chosen(summary, choice, other))
    if best is None:
        yield f"With the {other} drafter no timed setting is {_CHOICES[choice]}."
    else:
        on_test = best.test if point.test else None
        values = f"{speed_text(on_test or best)} at {difference_text(on_test or best)}"
        margin = summary.margins.of(choice)
        split = f"test ({mark_of(test_status(on_test, margin), margin).words})" if on_test else summary.split
        yield f"The best with the {other} drafter, chosen alike, is {point_text(best)}: {values} on {split}."
    gap = summary.frontier.gap
    if gap is not None:
        quality = f"{gap.mean_quality_difference:+.2f} points" + interval_text(gap.quality_interval, "+")
        speed = f"{gap.mean_speedup_ratio:.2f}{interval_text(gap.speedup_interval)} times"
        yield (
            f"Where the two BiLD frontiers overlap on validation, aligned has {quality} at equal latency and is {speed} as "
            "fast at equal quality as unaligned."
        )


def _grounds(summary: Summary) -> Iterator[str]:
    """How much of the grid was timed, and how well the rest was predicted."""
    points, timed = summary.points, len(summary.timed_points())
    if not points:
        yield "Nothing was measured but the models alone."
        return
    yield f"Of {len(points)} settings of both sweeps {timed} were timed; only these were compared."
    errors = [error for arm in ARMS if (error := summary.pairs.of(arm).sample_error) is not None]
    count = sum(error.points for error in errors)
    if timed < len(points) and count:
        mean = sum(error.mean * error.points for error in errors) / count
        yield (
            "What to time was chosen by predicted speed-ups; on a random sample of "
            f"{count} timed setting{'s' if count > 1 else ''} these missed the measured ones by {mean:.1%} on average and by "
            f"{max(error.worst for error in errors):.1%} at worst."
        )
