"""Perplexity of given texts, from two sums over them: nats and tokens.

Perplexity is exp(nats / tokens), over all texts at once, and not a mean over texts. Quality is minus the perplexity, in points
of perplexity: more is better, as for every other metric, and a margin of one point is a point of perplexity (BiLD-v1, 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SUMS = 2
"""Values of an example: its negative log-likelihood in nats, and its tokens."""
_MOST_NATS = 700.0
"""Mean nats of a token beyond which float64 holds no perplexity."""


class InfinitePerplexityError(RuntimeError):
    """A text has no probability, or less than float64 holds, so that no perplexity can be compared."""


def likelihood_statistics(log_likelihoods: Sequence[float], tokens: Sequence[int]) -> NDArray[np.float64]:
    """Nats and tokens of each text: `[examples, SUMS]`.

    Raises:
        ValueError: unequal lengths, no text, or a text without tokens.
        InfinitePerplexityError: a text is impossible, or nearly so.
    """
    if len(log_likelihoods) != len(tokens) or not tokens or min(tokens) < 1:
        raise ValueError(f"{len(log_likelihoods)} log-likelihoods of {len(tokens)} texts; one for each, of at least a token")
    for example, (value, count) in enumerate(zip(log_likelihoods, tokens, strict=True)):
        if not math.isfinite(value) or -value > _MOST_NATS * count:
            raise InfinitePerplexityError(f"the text of example {example} has a log-likelihood of {value:g}: no perplexity")
    return np.column_stack((-np.asarray(log_likelihoods, dtype=np.float64), np.asarray(tokens, dtype=np.float64)))


def qualities_of(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Minus the perplexity of summed statistics: `[rows]` of `[rows, SUMS]`."""
    found: NDArray[np.float64] = -np.exp(sums[:, 0] / sums[:, 1])
    return found


def quality_gradients(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Derivatives of `qualities_of` in nats and tokens: `[rows, SUMS]`."""
    nats, tokens = sums[:, 0], sums[:, 1]
    by_nats = qualities_of(sums) / tokens
    return np.column_stack((by_nats, -by_nats * nats / tokens))


def signature(tokens: int) -> str:
    """How it was computed, like sacrebleu's signature of a BLEU."""
    return f"tokens:{tokens}|given:the second part of each text|distribution:temperature 1"
