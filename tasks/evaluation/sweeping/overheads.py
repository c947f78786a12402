"""What decoding takes besides the model runs, fitted to the timed points of all methods together.

Most of it is common to the methods that use both models: composing a text's loop, and caches that one model fills and the other
empties. So the first timed point of one method tells much about all others. The fit is a Bayesian linear regression: a common
overhead for each text and for each call of the large model, a slow-down of the small model's steps (beside the large model they
find colder caches than alone), and for each method a small deviation from the common two. Priors are normal around 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.results.pair import MethodOverhead

Array = NDArray[np.float64]
_TEXT, _CALL, _SMALL = 3.0, 0.15, 0.5
"""Prior standard deviations: of the overhead of a text and of a call, in steps of the large model, and of the slow-down."""
_OWN_TEXT, _OWN_CALL = 0.4, 0.3
"""Of a method's deviations from the common overheads, in steps of the large model."""
_NOISE = 0.03
"""Standard deviation of a measured latency, as a share of it."""
_NOISES, _SPREADS = (1.0, 2.0, 4.0, 8.0), (1.0, 3.0, 10.0, 30.0)
"""Factors of the noise, on a busy machine, and of the methods' deviations; the pair that explains the points best is taken."""
_COMMON = 3
"""Columns that all methods share: text, call, small."""


@dataclass(frozen=True)
class Work:
    """What the latency of a text depends on: means over the timed examples."""

    runs_ms: float
    """Milliseconds of all model runs, as they were timed alone."""
    small_ms: float
    """Those of the small model's steps."""
    calls: float
    """Of the large model."""
    mixed: float
    """Share of the texts in which the large model ran and a drafter proposed something."""


@dataclass(frozen=True)
class Overheads:
    """Milliseconds besides the model runs."""

    common: MethodOverhead = field(default_factory=lambda: MethodOverhead(text=0.0, call=0.0))
    """Of a method without a timed point."""
    by_method: dict[str, MethodOverhead] = field(default_factory=dict)
    small: float = 0.0
    """Slow-down of the small model's steps, as a share of their time alone; it may be negative."""

    def of(self, method: str, work: Work) -> float:
        """Milliseconds of a text."""
        one = self.by_method.get(method, self.common)
        return one.text * work.mixed + one.call * work.calls * (work.mixed > 0) + self.small * work.small_ms


def _prior(methods: int, spread: float, step_ms: float) -> Array:
    """Prior standard deviations of the coefficients."""
    own = [_OWN_TEXT * step_ms * spread, _OWN_CALL * step_ms * spread]
    return np.array([_TEXT * step_ms, _CALL * step_ms, _SMALL, *own * methods])


def _posterior(design: Array, rest: Array, noise: Array, prior: Array) -> tuple[float, Array]:
    """The logarithm of the evidence for these standard deviations, and the mean of the coefficients given the points."""
    weighted = design * prior**2
    covariance = weighted @ design.T + np.diag(noise**2)
    solved = np.linalg.solve(covariance, rest)
    evidence = -0.5 * (rest @ solved + np.linalg.slogdet(covariance).logabsdet)
    return float(evidence), weighted.T @ solved


def fitted_overheads(timed: Sequence[tuple[str, Work, float]], step_ms: float) -> Overheads:
    """The overheads that explain the timed points best.

    Args:
        timed: Method, work and measured milliseconds of each point.
        step_ms: A step of the large model, the unit of the priors.
    """
    methods = list(dict.fromkeys(method for method, *_ in timed))
    design = np.zeros((len(timed), _COMMON + 2 * len(methods)))
    for row, (method, work, _) in zip(design, timed, strict=True):
        own = _COMMON + 2 * methods.index(method)
        row[:_COMMON] = work.mixed, work.calls * (work.mixed > 0), work.small_ms
        row[own : own + 2] = row[:2]
    measured = np.array([one for *_, one in timed])
    rest = measured - np.array([work.runs_ms for _, work, _ in timed])
    fits = [
        (*_posterior(design, rest, noise * _NOISE * measured, _prior(len(methods), spread, step_ms)), noise**2 * spread**0.5)
        for noise in _NOISES
        for spread in _SPREADS
    ]
    # Wider factors need evidence: a few points do not tell noise from deviations.
    found = max(fits, key=lambda fit: fit[0] - math.log(fit[2]))[1]
    text, call, small = found[:_COMMON].tolist()
    by_method = {
        method: MethodOverhead(text=text + float(own_text), call=call + float(own_call))
        for method, (own_text, own_call) in zip(methods, found[_COMMON:].reshape(-1, 2), strict=True)
    }
    return Overheads(MethodOverhead(text=text, call=call), by_method, small)
