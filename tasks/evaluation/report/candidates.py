"""Which point to deploy: the choices of validation from the fastest on, as far as the test split does not speak against them.

First come the choices for no loss, then the fastest lossless point, then the choices for one point of loss. All of them are
faster than vanilla beyond noise on validation. The first is deployed unless test contradicts its quality, or does not confirm
that it is faster than vanilla. Whatever replaces it is picked by the test split as well, so test has to confirm its quality
too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tasks.evaluation.report.formatting import point_text, points_text
from tasks.evaluation.report.points import test_status
from tasks.evaluation.report.selection import chosen, fastest_lossless, is_faster
from tasks.evaluation.results.rows import TestStatus, TimedPoint
from tasks.evaluation.results.summary import PassedOver, Summary
from tasks.evaluation.settings import CHOICES


@dataclass(frozen=True)
class Candidate:
    """A point that may be deployed."""

    point: TimedPoint
    choice: str | None
    """What it was chosen for; None for a lossless point that is no choice."""
    status: TestStatus | None
    """What test says of it; None where it was not measured there."""
    first: bool
    """Whether no candidate was faster."""

    @property
    def words(self) -> str:
        """The choice whose margin it is held to."""
        return self.choice or CHOICES[0]


def find_candidate(summary: Summary) -> tuple[Candidate | None, list[PassedOver]]:
    """The point to deploy, None for vanilla large, and the candidates before it with what test says against them."""
    passed_over: list[PassedOver] = []
    for candidate in _candidates(summary):
        reason = _objection(summary, candidate)
        if reason is None:
            return candidate, passed_over
        index = summary.index_of(candidate.point)
        passed_over.append(PassedOver(point=index, choice=candidate.words, reason=reason))
    return None, passed_over


def _candidates(summary: Summary) -> Iterator[Candidate]:
    seen: list[TimedPoint] = []
    strictest, *others = CHOICES
    lossless = fastest_lossless(summary)
    ordered: list[tuple[str | None, TimedPoint]] = [(strictest, point) for point in _by_speed(summary, strictest)]
    ordered += [] if lossless is None else [(None, lossless)]
    ordered += [(choice, point) for choice in others for point in _by_speed(summary, choice)]
    for choice, point in ordered:
        if not any(point is other for other in seen):
            status = test_status(point.test, summary.margins.of(choice or strictest))
            yield Candidate(point, choice, status, first=not seen)
            seen.append(point)


def _by_speed(summary: Summary, choice: str) -> list[TimedPoint]:
    """The points chosen for this that are faster than vanilla beyond noise, the fastest first, of equal ones the better."""
    return sorted(filter(is_faster, chosen(summary, choice)), key=lambda point: (-point.speedup, -point.quality))


def _objection(summary: Summary, candidate: Candidate) -> str | None:
    """A sentence on what the test split says against a candidate; None if it may be deployed."""
    status, point = candidate.status, candidate.point
    what, margin = point_text(point), summary.margins.of(candidate.words)
    if status is None:
        return None if candidate.first or point.lossless else f"{what} was not measured on test, so it does not replace it."
    if status.quality == "contradicted":
        return f"{what} is faster on validation, but test contradicts it: it loses more than {points_text(margin)} there."
    if status.speed == "contradicted":
        return f"{what} is faster on validation, but test contradicts it: it is slower than vanilla there."
    if status.speed == "open":
        return f"{what} is faster on validation, but on test it is not faster than vanilla beyond noise."
    if not candidate.first and status.quality == "open" and not point.lossless:
        return f"{what} is faster on validation, but test leaves open whether it loses less than {points_text(margin)}."
    return None
