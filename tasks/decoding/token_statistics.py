"""The few numbers that greedy rules read at a position: of a block of positions as tensors, or of one cached position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

Values = Tensor | float
"""One number for each position: a tensor (rows, positions), or a float for one cached position."""
TokenIds = Tensor | int
Mask = Tensor | bool


class TokenStatistics(Protocol):
    """One model's prediction, as a rule reads it.

    A `PredictionBlock` gives tensors (rows, positions), `CachedStatistics` plain numbers of one position. A rule that is
    written in terms of these, with comparisons, `+ - *`, `|` and `^ True`, runs on either.
    """

    @property
    def best(self) -> TokenIds:
        """The likeliest token, the first one of a tie."""
        ...

    @property
    def top(self) -> Values:
        """The score of the likeliest token."""
        ...

    @property
    def entropy(self) -> Values:
        """Entropy of the scores, in nats."""
        ...

    def of(self, tokens: Any) -> Values:
        """Return the scores of these tokens."""
        ...

    def surprisal(self, tokens: Any) -> Values:
        """Return -log of the scores of these tokens, in nats."""
        ...

    def total_variation(self, other: Any) -> Values:
        """Return D_TV of the two dists; of one-hot ones, 0 where both have the same likeliest token, else 1."""
        ...


TokenScore = tuple[float, float]
"""The score of a token, and its surprisal in nats."""


class CachedStatistics:
    """The statistics of one position as numbers; what else a rule asks for is looked up or computed then, and kept."""

    __slots__ = ("best", "entropy", "look_up", "token_scores", "top")

    def __init__(
        self,
        best: int,
        top: float,
        entropy: float,
        token_scores: dict[int, TokenScore],
        look_up: Callable[[int], TokenScore],
    ) -> None:
        """Take what `TokenStatistics` gives, and how to find what is not known.

        Args:
            best: The likeliest token.
            top: Its score.
            entropy: Of the position, in nats.
            token_scores: The scores that are known, by token.
            look_up: Finds the score of another token.
        """
        self.best = best
        self.top = top
        self.entropy = entropy
        self.token_scores = token_scores
        self.look_up = look_up

    def of(self, tokens: int) -> float:
        return (self.token_scores.get(tokens) or self._find(tokens))[0]

    def surprisal(self, tokens: int) -> float:
        return (self.token_scores.get(tokens) or self._find(tokens))[1]

    def total_variation(self, other: CachedStatistics) -> float:
        return float(self.best != other.best)

    def _find(self, token: int) -> TokenScore:
        score = self.token_scores[token] = self.look_up(token)
        return score
