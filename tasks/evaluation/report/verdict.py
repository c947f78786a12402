"""The verdict in words: which operating point to deploy, what it gains and costs, and why to believe it.

The point is the fastest timed one of the validation split at no loss that is faster than vanilla beyond the noise of its
timing; where there is none, the same within one point; where there is none again, vanilla stays. The test split does not
take part in the choice: it says what the choice is worth.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from tasks.evaluation.frontier import TOLERANCES
from tasks.evaluation.report.alternatives import alternatives, missed_gain
from tasks.evaluation.report.formatting import (
    Entry,
    best_choice,
    difference_text,
    fastest,
    fastest_lossless,
    interval_text,
    is_faster,
    point_text,
    quality_text,
    speed_text,
)
from tasks.paths import DRAFTERS

_CHOICES = {"no_loss": "at no loss", "one_point": "within one point of vanilla"}
_CONTRADICTED = {"no_loss": 0.0, "one_point": -TOLERANCES["one_point"]}
"""A choice is contradicted where the whole test interval of the quality difference lies below this."""


def verdict(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict on a task.

    Args:
        summary: with `metric`, `points`, `choices`, `vanilla`, `frontier` and `pairs`.

    Returns:
        `point` (its place in `points`, or None for vanilla), `text` (one paragraph), `changes` (a sentence for each thing
        that would change the choice).
    """
    place, choice = _recommended(summary)
    if place is None:
        return {"point": None, "text": " ".join(_stay(summary)), "changes": missed_gain(summary)}
    point = summary["points"][place]
    sentences = [
        *_choice(summary, point, choice),
        *_on_test(summary, point, choice),
        *_drafters(summary, point, choice),
        *_grounds(summary),
    ]
    return {"point": place, "text": " ".join(sentences), "changes": alternatives(summary, place, choice)}


def as_lines(summary: Mapping[str, Any], width: int = 100_000) -> str:
    """The verdict of a finished summary as text: the paragraph, then what would change the choice, as a list.

    `width` is how many letters a line may have.
    """
    found = summary["verdict"]
    changes = [textwrap.fill(f"- {line}", width, subsequent_indent="  ") for line in found["changes"]]
    return "\n".join([textwrap.fill(found["text"], width), "", "What would change this choice:", "", *changes]) + "\n"


def _recommended(summary: Mapping[str, Any]) -> tuple[int | None, str]:
    points = summary["points"]
    for choice in TOLERANCES:
        found = [one["point"] for one in summary["choices"] if one["choice"] == choice and one["point"] is not None]
        place = fastest(points, [one for one in found if is_faster(points[one])])
        if place is not None:
            return place, choice
    return None, ""


def _stay(summary: Mapping[str, Any]) -> list[str]:
    sentences = ["No method beats the vanilla large model on validation: stay with it."]
    for choice, words in _CHOICES.items():
        place = best_choice(summary, choice)
        if place is None:
            sentences.append(f"No timed setting is {words}.")
        else:
            point = summary["points"][place]
            sentences.append(f"The fastest timed setting {words} is {point_text(point)} at {speed_text(point)}.")
    return [*sentences, *_grounds(summary)]


def _choice(summary: Mapping[str, Any], point: Entry, choice: str) -> list[str]:
    sentences = []
    if choice != "no_loss":
        sentences.append("No timed setting at no loss is faster than the vanilla large model.")
    return [
        *sentences,
        f"Deploy {point_text(point)}.",
        f"On validation, on which it was chosen, it is the fastest timed setting {_CHOICES[choice]}: {speed_text(point)} as "
        f"fast as the large model alone, at {quality_text(point, summary['metric'])}.",
        *(["By construction its output is the large model's own."] if point["lossless"] else []),
    ]


def _on_test(summary: Mapping[str, Any], point: Entry, choice: str) -> list[str]:
    """What the choice is worth on text that it was not made on."""
    test = point["test"]
    if test is None:
        return ["It was not measured on test: these are the numbers that it was chosen by, and such numbers flatter."]
    sentences = [f"On test, where nothing was chosen, it has {speed_text(test)} at {quality_text(test, summary['metric'])}."]
    interval, limit = test["quality_difference_interval"], _CONTRADICTED[choice]
    if interval is None:
        sentences.append("How far that difference is noise was not measured.")
    elif interval[1] < limit:
        sentences.append(
            f"That contradicts the choice: the whole interval lies below {limit:g}, so what was chosen {_CHOICES[choice]} on "
            "validation does not keep it on test."
        )
        sure = fastest_lossless(summary["points"])
        if sure is not None and not point["lossless"]:
            sentences.append(f"Where that matters, deploy {point_text(sure)}, which is lossless: {speed_text(sure)}.")
    elif interval[0] < limit:
        doubt = (
            ": the difference is chance" if point["lossless"] else f", but {-interval[0]:.2f} points of loss are not ruled out"
        )
        sentences.append(f"That does not contradict the choice{doubt}.")
    else:
        sentences.append("That bears out the choice.")
    if not is_faster(test):
        sentences.append("On test its speed-up may be none: it is not above 1 beyond the noise of timing.")
    return sentences


def _drafters(summary: Mapping[str, Any], point: Entry, choice: str) -> list[str]:
    """Aligned against unaligned: the best of the other drafter at the same tolerance, and the two frontiers of BiLD."""
    other = next(drafter for drafter in DRAFTERS if drafter != point["drafter"])
    place = best_choice(summary, choice, drafter=other)
    if place is None:
        sentences = [f"With the {other} drafter no timed setting is {_CHOICES[choice]}."]
    else:
        best = summary["points"][place]
        shown = best["test"] if best["test"] and point["test"] else best
        split = "test" if shown is best["test"] else summary["split"]
        sentences = [
            f"The best with the {other} drafter, chosen alike, is {point_text(best)}: {speed_text(shown)} at "
            f"{difference_text(shown)} on {split}."
        ]
    gap = summary["frontier"]["gap"]
    if gap is not None:
        quality = f"{gap['mean_quality_difference']:+.2f} points" + interval_text(gap["quality_interval"], "+")
        speed = f"{gap['mean_speedup_ratio']:.2f}{interval_text(gap['speedup_interval'])} times"
        sentences.append(
            f"Over what both frontiers of BiLD reach on validation, aligned has {quality} at equal latency and is {speed} as "
            "fast at equal quality as unaligned."
        )
    return sentences


def _grounds(summary: Mapping[str, Any]) -> list[str]:
    """How much of the grid was timed, and how well the rest was predicted."""
    points = summary["points"]
    if not points:
        return ["Nothing was measured but the models alone."]
    timed = sum(point["timed"] for point in points)
    sentences = [f"Of {len(points)} settings of both sweeps {timed} were timed; only these were compared."]
    errors = [_sample(summary["pairs"][drafter]) for drafter in DRAFTERS]
    known = [error for error in errors if error]
    count = sum(error["points"] for error in known)
    if timed < len(points) and count:
        mean = sum(error["mean"] * error["points"] for error in known) / count
        worst = max(error["worst"] for error in known)
        sentences.append(
            "What to time was chosen by predicted speed-ups; on a random sample of "
            f"{count} timed setting{'s' if count > 1 else ''} these missed the measured ones by {mean:.1%} on average and by "
            f"{worst:.1%} at worst."
        )
    return sentences


def _sample(pair: Mapping[str, Any] | None) -> Mapping[str, Any]:
    plan: Mapping[str, Any] = (pair or {}).get("plan") or {}
    sample: Mapping[str, Any] = (plan.get("prediction_error") or {}).get("sample") or {}
    return sample if sample.get("points") else {}
