"""Rules of choice: which settings of one arm may be chosen, from their statistics on one draw of the validation split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.selection.bounds import bonferroni_bounds, max_t_bounds, normal_bounds
from tasks.evaluation.selection.differences import PairedDifferences, paired_differences

_Floats = NDArray[np.float64]
_Mask = NDArray[np.bool_]
_Bounds = Callable[[PairedDifferences, float], _Floats]

FORMER_TOLERANCE = 0.1
"""Points that the former rule let the observed quality lose, whatever the margin."""


@dataclass
class Drawn:
    """The settings of one arm that are not lossless, on one draw of the validation split."""

    statistics: NDArray[np.generic]
    """`[settings, examples, values]`."""
    vanilla: NDArray[np.generic]
    """`[examples, values]`."""
    speedups: _Floats
    """`[settings]`."""
    differences: PairedDifferences = field(init=False)
    """On all examples of the draw."""
    _known: dict[tuple[_Bounds, float], _Floats] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.differences = paired_differences(self.statistics, self.vanilla)

    def bounds(self, kind: _Bounds, alpha: float) -> _Floats:
        """Lower bounds `[settings]`, computed once for all margins."""
        if (kind, alpha) not in self._known:
            self._known[kind, alpha] = kind(self.differences, alpha)
        return self._known[kind, alpha]

    def part(self, examples: slice, settings: slice = slice(None)) -> PairedDifferences:
        """The differences of some settings on some of the examples."""
        return paired_differences(self.statistics[settings, examples], self.vanilla[examples])


Rule = Callable[[Drawn, float, float], _Mask]
"""Settings that may be chosen, `[settings]`, given a draw, the margin in points, and the level of this arm."""


def former(drawn: Drawn, margin: float, alpha: float) -> _Mask:  # noqa: ARG001 (a rule)
    """The rule that this project had: the observed quality loses at most 0.1 point. Margin and level play no part."""
    return drawn.differences.values >= -FORMER_TOLERANCE


def naive(drawn: Drawn, margin: float, alpha: float) -> _Mask:
    """Every setting by its own bound, as if it were the only one."""
    return drawn.bounds(normal_bounds, alpha) > -margin


def bonferroni(drawn: Drawn, margin: float, alpha: float) -> _Mask:
    """Every setting by its own bound at the level over the number of settings."""
    return drawn.bounds(_bonferroni, alpha) > -margin


def _bonferroni(differences: PairedDifferences, alpha: float) -> _Floats:
    return bonferroni_bounds(differences, alpha, len(differences.values))


def max_t(drawn: Drawn, margin: float, alpha: float) -> _Mask:
    """Every setting by a bound that holds for all settings at once: the rule of a sweep."""
    return drawn.bounds(max_t_bounds, alpha) > -margin


def split(drawn: Drawn, margin: float, alpha: float) -> _Mask:
    """The fastest by its own bound on one half of the examples, if its own bound on the other half confirms it."""
    half = len(drawn.vanilla) // 2
    kept = normal_bounds(drawn.part(slice(0, half)), alpha) > -margin
    mask = np.zeros(len(kept), dtype=bool)
    if kept.any():
        picked = int(np.argmax(np.where(kept, drawn.speedups, -np.inf)))
        own = drawn.part(slice(half, None), slice(picked, picked + 1))
        mask[picked] = normal_bounds(own, alpha)[0] > -margin
    return mask


def sequence(drawn: Drawn, margin: float, alpha: float) -> _Mask:
    """One setting after the other by its own bound, from the slowest to the fastest, until the first that fails.

    The order has to be fixed before quality is seen. It then needs no correction, but a poor setting ends it early.
    """
    kept = drawn.bounds(normal_bounds, alpha) > -margin
    order = np.argsort(drawn.speedups, kind="stable")
    mask = np.zeros(len(kept), dtype=bool)
    mask[order] = np.logical_and.accumulate(kept[order])
    return mask


RULES: dict[str, Rule] = {
    "former": former,
    "naive": naive,
    "sequence": sequence,
    "split": split,
    "bonferroni": bonferroni,
    "max_t": max_t,
}
