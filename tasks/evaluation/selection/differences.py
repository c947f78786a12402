"""Paired quality differences of many points from vanilla, with the influence of each example on them.

The influence of an example is the derivative of the corpus metric in the example's weight (Hampel, 1974). Its mean is 0 and its
variance over n is the squared standard error of the difference; for a mean, such as ROUGE, it is the example's own deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.quality import gradients_of, values_of

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairedDifferences:
    """Differences of points from vanilla on the same examples."""

    values: _Floats
    """`[points]`: quality minus vanilla's, in points of the metric."""
    influence: _Floats
    """`[points, examples]`: in points of the metric, mean 0; zero where a point cannot be told from vanilla."""

    @property
    def examples(self) -> int:
        """How many examples were compared."""
        return int(self.influence.shape[1])


def paired_differences(points: NDArray[np.generic], vanilla: NDArray[np.generic]) -> PairedDifferences:
    """The differences of points from vanilla.

    Args:
        points: `[points, examples, values]`, statistics of each example (`quality.example_statistics`).
        vanilla: `[examples, values]`, those of the vanilla large model on the same examples.

    Raises:
        ValueError: the shapes do not fit, or there is no example.
    """
    if points.ndim != 3 or points.shape[1:] != vanilla.shape or not len(vanilla):
        raise ValueError(f"statistics of shape {points.shape} beside vanilla's {vanilla.shape}; [points, examples, values]")
    values, influence = _influence(np.concatenate((vanilla[None], points)).astype(np.float64))
    return PairedDifferences(values[1:] - values[0], influence[1:] - influence[0])


def _influence(statistics: _Floats) -> tuple[_Floats, _Floats]:
    """Quality of each point, and the influence of each example on it: `[points]` and `[points, examples]`."""
    sums, examples = statistics.sum(axis=1), statistics.shape[1]
    influence = examples * np.matmul(statistics, gradients_of(sums, examples)[:, :, None])[:, :, 0]
    return values_of(sums, examples), influence - influence.mean(axis=1, keepdims=True)
