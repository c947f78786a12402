"""Learn then Test: which thresholds of a method are shown, with high probability, to lose no more than a tolerance.

The loss of an example lies in [0, 1]; the risk of a setting is its expectation. Of each setting the hypothesis is tested that
its risk exceeds the tolerance δ; where it is rejected, the setting is valid. Settings are tested in an order that was fixed
before the data were seen, each at the whole level ε, and the first that is not rejected ends the tests. Then any setting whose
risk exceeds δ is accepted with probability at most ε (Angelopoulos et al., Learn then Test, 2021; Schuster et al., CALM, 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tasks.evaluation.results.codec import Setting, Settings
from tasks.evaluation.settings import RiskSettings

CONTROLLED = "calm"
"""The method whose threshold is tested, from the highest, with which tokens exit late."""
_THRESHOLD = "threshold"
# 0.07 * 100 is slightly more than 7 in floating point.
_EDGE = 1e-9


class Tested(Protocol):
    """A setting with what it loses."""

    @property
    def method(self) -> str:
        """Its method."""

    @property
    def settings(self) -> Settings:
        """Its settings as rows hold them."""

    @property
    def loss_share(self) -> float | None:
        """Mean loss over the examples, in [0, 1]."""

    @property
    def examples(self) -> int | None:
        """How many examples the mean is over."""


_Tested = TypeVar("_Tested", bound=Tested)


@dataclass(frozen=True)
class TestedSequence(Generic[_Tested]):
    """Settings that differ in their threshold alone, tested from the highest."""

    fixed: Settings
    """The settings that they share."""
    points: list[_Tested]
    """From the highest threshold."""
    p_values: list[float]
    level: float
    """At which each is tested: ε over the number of sequences."""
    accepted: int
    """Points before the first that is not shown to be valid."""

    @property
    def chosen(self) -> _Tested | None:
        """The valid point of the smallest threshold; None where the first test already fails."""
        return self.points[self.accepted - 1] if self.accepted else None


def hoeffding_bentkus(risk: float, examples: int, tolerance: float) -> float:
    """p-value of the hypothesis that the expected loss exceeds a tolerance.

    min(exp(−n h(min(r, δ), δ)), e · P(Binomial(n, δ) ≤ ⌈n r⌉)), at most 1, with h the Kullback–Leibler divergence of two
    Bernoulli laws (Angelopoulos et al., 2021: the Hoeffding–Bentkus inequality; valid for independent losses in [0, 1]).

    Args:
        risk: mean loss r over the examples, in [0, 1].
        examples: n, at least 1.
        tolerance: δ, in (0, 1).
    """
    hoeffding = math.exp(-examples * _bernoulli_divergence(min(risk, tolerance), tolerance))
    bentkus = math.e * binomial_cdf(math.ceil(examples * risk - _EDGE), examples, tolerance)
    return min(hoeffding, bentkus, 1.0)


def binomial_cdf(count: int, trials: int, probability: float) -> float:
    """P(Binomial(trials, probability) ≤ count), for a probability in (0, 1)."""
    if count >= trials:
        return 1.0
    yes, no = math.log(probability), math.log1p(-probability)
    whole = math.lgamma(trials + 1)
    terms = (
        math.exp(whole - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1) + hits * yes + (trials - hits) * no)
        for hits in range(count + 1)
    )
    return min(1.0, math.fsum(terms))


def fixed_sequence(p_values: Sequence[float], level: float) -> int:
    """How many hypotheses of a sequence are rejected: those before the first whose p-value exceeds the level."""
    return next((index for index, p_value in enumerate(p_values) if p_value > level), len(p_values))


def controlled(points: Sequence[_Tested], risk: RiskSettings) -> list[TestedSequence[_Tested]]:
    """The tested sequences of a sweep: one for each combination of CALM's other settings, in order.

    The sequences share ε equally, so that all that they accept is valid at once with probability at least 1 − ε. A point
    without a measured loss is left out; that it failed says nothing of its risk.

    Args:
        points: rows or points of one split; other methods' are ignored.
        risk: tolerance δ and level ε.
    """
    found: dict[tuple[tuple[str, Setting], ...], list[_Tested]] = {}
    for point in points:
        if point.method == CONTROLLED and point.loss_share is not None and point.examples:
            fixed = tuple((name, value) for name, value in point.settings.items() if name != _THRESHOLD)
            found.setdefault(fixed, []).append(point)
    return [_tested(dict(shared), own, risk.tolerance, risk.level / len(found)) for shared, own in found.items()]


def _tested(fixed: Settings, own: Sequence[_Tested], tolerance: float, level: float) -> TestedSequence[_Tested]:
    points = sorted(own, key=threshold_of, reverse=True)
    p_values = [p_value_of(point, tolerance) for point in points]
    return TestedSequence(fixed, points, p_values, level, fixed_sequence(p_values, level))


def p_value_of(point: Tested, tolerance: float) -> float:
    """`hoeffding_bentkus` of a point; 1 where no loss was measured."""
    if point.loss_share is None or not point.examples:
        return 1.0
    return hoeffding_bentkus(point.loss_share, point.examples, tolerance)


def threshold_of(point: Tested) -> float:
    """λ of a point."""
    return float(point.settings[_THRESHOLD] or 0.0)


def _bernoulli_divergence(share: float, tolerance: float) -> float:
    """h(a, b) = a log(a / b) + (1 − a) log((1 − a) / (1 − b)), in nats; 0 log 0 is 0."""
    pairs = ((share, tolerance), (1.0 - share, 1.0 - tolerance))
    return math.fsum(part * math.log(part / other) for part, other in pairs if part > 0)
