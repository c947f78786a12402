"""The few numbers that greedy rules read at a position: of a block of positions as tensors, or of one cached position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from tasks.decoding.divergences import DIVERGENCES

Values = Tensor | float
"""One number for each position: a tensor (rows, positions), or a float for one cached position."""
TokenIds = Tensor | int
Mask = Tensor | bool

IMPOSSIBLE = 2**31 - 1
"""The rank of a token whose logit is -infinity: it is among the best of no number of tokens."""


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

    def rank(self, tokens: Any) -> Values:
        """Return how many tokens are likelier than these, the first one of a tie counting as likelier.

        An impossible token has the rank `IMPOSSIBLE`.
        """
        ...

    def total_variation(self, other: Any) -> Values:
        """Return D_TV of the two dists; of one-hot ones, 0 where both have the same likeliest token, else 1."""
        ...

    def divergence(self, other: Any, measure: str) -> Values:
        """Return a divergence of the drafter's scores, which these are, from the target's: one of `DIVERGENCES`."""
        ...


TokenScore = tuple[float, float, int]
"""The score of a token, its surprisal in nats, and its rank."""


class CachedStatistics:
    """The statistics of one position as numbers; what else a rule asks for is looked up or computed then, and kept."""

    __slots__ = ("best", "divergences", "entropy", "logits", "look_up", "token_scores", "top")

    def __init__(
        self,
        best: int,
        top: float,
        entropy: float,
        token_scores: dict[int, TokenScore],
        look_up: Callable[[int], TokenScore],
        logits: Callable[[], Tensor],
        divergences: dict[str, float] | None = None,
    ) -> None:
        """Take what `TokenStatistics` gives, and how to find what is not known.

        Args:
            best: The likeliest token.
            top: Its score.
            entropy: Of the position, in nats.
            token_scores: The scores that are known, by token.
            look_up: Finds the score of another token.
            logits: Finds all logits of the position: (vocabulary,).
            divergences: The drafter's divergences from the target at this position that are known, by their names.
        """
        self.best = best
        self.top = top
        self.entropy = entropy
        self.token_scores = token_scores
        self.look_up = look_up
        self.logits = logits
        self.divergences = {} if divergences is None else divergences

    def of(self, tokens: int) -> float:
        return (self.token_scores.get(tokens) or self._find(tokens))[0]

    def surprisal(self, tokens: int) -> float:
        return (self.token_scores.get(tokens) or self._find(tokens))[1]

    def rank(self, tokens: int) -> int:
        return (self.token_scores.get(tokens) or self._find(tokens))[2]

    def total_variation(self, other: CachedStatistics) -> float:
        return float(self.best != other.best)

    def divergence(self, other: CachedStatistics, measure: str) -> float:
        found = self.divergences.get(measure)
        if found is None:
            log_q, log_p = (torch.log_softmax(one.logits()[None].float(), -1) for one in (self, other))
            found = self.divergences[measure] = float(DIVERGENCES[measure](log_q, log_p))
        return found

    def _find(self, token: int) -> TokenScore:
        score = self.token_scores[token] = self.look_up(token)
        return score
