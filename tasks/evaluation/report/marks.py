"""What the test split says of a choice, as words and a kind: the page shows contradicted ones in red, and always the words."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.evaluation.report.formatting import CHOICE_NAMES, points_text
from tasks.evaluation.results.rows import TestStatus
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.statistics import Status


@dataclass(frozen=True)
class Mark:
    """What stands beside a choice."""

    kind: Status | None
    """None where test did not measure it."""
    words: str


def mark_of(status: TestStatus | None, margin: float | None) -> Mark:
    """The mark of a choice that may lose `margin` points; the worse of quality and speed counts."""
    if status is None:
        return Mark(None, "not measured on test")
    more = "" if margin is None else f" more than {points_text(margin)}"
    if status.quality == "contradicted":
        return Mark("contradicted", f"contradicted: loses{more}")
    if status.speed == "contradicted":
        return Mark("contradicted", "contradicted: slower than vanilla")
    if status.speed == "open":
        return Mark("open", "open: not faster than vanilla beyond noise")
    if status.quality == "open":
        return Mark("open", f"open: may lose{more}")
    if status.quality is None:
        return Mark(None, "quality on test not compared")
    return Mark("confirmed", "confirmed" if margin is None else f"confirmed: loses less than {points_text(margin)}")


def marks_of_point(summary: Summary, index: int) -> list[Mark]:
    """The marks of everything that a point was chosen for, each with the name of the choice: `no loss contradicted: …`."""
    found = []
    for choice in summary.choices:
        if choice.point == index:
            mark = mark_of(choice.test, choice.margin)
            found.append(Mark(mark.kind, f"{CHOICE_NAMES[choice.choice]}: {mark.words}"))
    return found


def is_contradicted(marks: list[Mark]) -> bool:
    """Whether any of the marks is red."""
    return any(mark.kind == "contradicted" for mark in marks)
