"""What would change the verdict's choice, a sentence each, from what was measured; predictions and theory say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.decoding.adaptive import best_draft_length, expected_speedup
from tasks.evaluation.frontier import EDGE, TOLERANCES
from tasks.evaluation.report.formatting import (
    Entry,
    best_choice,
    difference_text,
    fastest_lossless,
    point_text,
    speed_text,
)
from tasks.paths import DRAFTERS

_TOLERATED = {"no_loss": "at no loss", "one_point": "within one point"}
_LONGEST = 64
"""The longest draft that theory may choose; settings allow no longer one."""


def alternatives(summary: Mapping[str, Any], place: int, choice: str) -> list[str]:
    """What speaks for something else than the recommended point.

    Args:
        summary: as for `tasks.evaluation.report.verdict.verdict`.
        place: of the recommended point.
        choice: what it was chosen as.
    """
    point = summary["points"][place]
    return [
        *_runner_up(summary, place, choice),
        *_wider(summary, place, choice),
        *_lossless(summary, place),
        *_unaligned(summary, point, choice),
        *_not_timed(summary, place, choice),
        *_sampling(summary, point["drafter"]),
        _elsewhere(summary, point["drafter"]),
    ]


def missed_gain(summary: Mapping[str, Any]) -> list[str]:
    """Where vanilla stays: what theory would allow each pair of models, and what hardware has to do with it."""
    sentences = []
    for drafter in DRAFTERS:
        pair = summary["pairs"][drafter] or {}
        rate, ratio = _greedy(pair).get("rate"), _cost_ratio(pair)
        if rate is None or ratio is None:
            continue
        length = best_draft_length(rate, ratio, _LONGEST)
        most = expected_speedup(rate, length, ratio)
        sentences.append(
            f"Theory (SD, Theorem 3.8) allows the {drafter} pair at most {most:.2f}× in lossless speculative decoding, with γ "
            f"{length}: it agrees on {rate:.0%} of tokens (α) and a small step costs {ratio:.2f} of a large one (c). A drafter "
            "that agrees more often, or costs less, would gain more."
        )
    return [*sentences, *_sampling(summary, "unaligned"), _elsewhere(summary, "unaligned")]


def _runner_up(summary: Mapping[str, Any], place: int, choice: str) -> list[str]:
    point, second = summary["points"][place], best_choice(summary, choice, without=place)
    if second is None:
        return [f"Nothing else was found {_TOLERATED[choice]}: there is no runner-up."]
    other = summary["points"][second]
    behind = 1.0 - other["speedup"] / point["speedup"]
    # What is faster than the recommended point is not faster than vanilla beyond noise: its interval is wide.
    gap = f"{behind:.0%} behind" if behind >= 0 else f"{-behind:.0%} ahead, but not faster than vanilla beyond noise"
    sentence = f"The runner-up {_TOLERATED[choice]} is {point_text(other)} at {speed_text(other)}, {gap}"
    own, others = point["speedup_interval"], other["speedup_interval"]
    if own and others and own[0] <= others[1]:
        sentence += "; the intervals overlap, so another run may put it first"
    return [sentence + "."]


def _wider(summary: Mapping[str, Any], place: int, choice: str) -> list[str]:
    point, wider = summary["points"][place], best_choice(summary, "one_point")
    if choice != "no_loss" or wider is None:
        return []
    other = summary["points"][wider]
    if wider == place or other["speedup"] <= point["speedup"]:
        return ["Allowing one point of loss gains nothing: no timed setting within it is faster."]
    sentence = (
        f"Allowing one point of loss, {point_text(other)} has {speed_text(other)} at {difference_text(other)} on validation"
    )
    if other["test"]:
        sentence += f", and {speed_text(other['test'])} at {difference_text(other['test'])} on test"
    return [sentence + "."]


def _lossless(summary: Mapping[str, Any], place: int) -> list[str]:
    best = fastest_lossless(summary["points"])
    if summary["points"][place]["lossless"] or best is None:
        return []
    words, speed = point_text(best), speed_text(best)
    return [f"If the output must be the large model's own on any text, take {words}: {speed}, with nothing to lose."]


def _unaligned(summary: Mapping[str, Any], point: Entry, choice: str) -> list[str]:
    if point["drafter"] != "aligned":
        return []
    place = best_choice(summary, choice, drafter="unaligned")
    if place is None:
        return [f"Without aligning the drafter, no timed setting is {_TOLERATED[choice]}."]
    other = summary["points"][place]
    share = other["speedup"] / point["speedup"]
    return [
        f"Without aligning the drafter the best {_TOLERATED[choice]} is {point_text(other)} at {speed_text(other)}, "
        f"{share:.0%} of the speed-up recommended."
    ]


def _not_timed(summary: Mapping[str, Any], place: int, choice: str) -> list[str]:
    """A setting that is predicted above the recommended one: nothing to recommend, but a reason to time it."""
    points, best = summary["points"], summary["points"][place]["speedup"]
    found = [
        point
        for point in points
        if not point["timed"]
        and not point["same_as"]
        and (point["predicted"] or {}).get("speedup", 0.0) > best
        and point["quality_difference"] is not None
        and point["quality_difference"] >= -TOLERANCES[choice] - EDGE
    ]
    if not found:
        return []
    first = max(found, key=lambda point: float(point["predicted"]["speedup"]))
    return [
        f"Not timed, but predicted faster {_TOLERATED[choice]}: {point_text(first)}, predicted "
        f"{first['predicted']['speedup']:.2f}×. Time it before believing it."
    ]


def _sampling(summary: Mapping[str, Any], drafter: str) -> list[str]:
    pair = summary["pairs"][drafter] or {}
    greedy, sampled = _greedy(pair), (pair.get("acceptance") or {}).get("sampled") or {}
    if greedy.get("rate") is None or sampled.get("rate") is None:
        return []
    less = "less" if sampled["rate"] < greedy["rate"] else "no less"
    return [
        f"Sampling at temperature {sampled['temperature']:g}, the {drafter} pair agrees {less} than greedily (α "
        f"{sampled['rate']:.2f} against {greedy['rate']:.2f}); speed-ups and thresholds are then others."
    ]


def _elsewhere(summary: Mapping[str, Any], drafter: str) -> str:
    pair = summary["pairs"][drafter] or {}
    lineage = pair.get("lineage") or {}
    machine = lineage.get("host_gpu") or lineage.get("host_cpu")
    where = ", ".join(filter(None, (machine, pair.get("runtime"), "batch 1")))
    ratio = _cost_ratio(pair)
    costs = f" (here c = {ratio:.2f})" if ratio is not None else ""
    return (
        f"Times are of this machine ({where}). On other hardware, or with larger batches, a small step and a check of several "
        f"tokens cost other shares of a large step{costs}: sweep again there."
    )


def _greedy(pair: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (pair.get("acceptance") or {}).get("greedy") or {}
    return found


def _cost_ratio(pair: Mapping[str, Any]) -> float | None:
    ratio: float | None = (pair.get("costs") or {}).get("cost_ratio")
    return ratio
