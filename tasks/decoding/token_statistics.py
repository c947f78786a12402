"""What the rules of greedy decoding read at a position: a few numbers, of a block of positions or of one noted before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class TokenStatistics(Protocol):
    """One model's prediction, as a rule reads it.

    A `Block` gives tensors (rows, positions), a `Noted` reading plain numbers of one position; what a rule writes in terms of
    these, with comparisons, `+ - *`, `|` and `^ True`, runs on either.
    """

    @property
    def best(self) -> Any:
        """The likeliest token, the first of several."""
        ...

    @property
    def top(self) -> Any:
        """Its score."""
        ...

    @property
    def entropy(self) -> Any:
        """Of the scores, in nats."""
        ...

    def of(self, tokens: Any) -> Any:
        """The scores of these tokens."""
        ...

    def surprisal(self, tokens: Any) -> Any:
        """-log of them, in nats."""
        ...

    def apart(self, other: Any) -> Any:
        """D_TV of the two dists; of one-hot ones, 0 where both have the same likeliest token, else 1."""
        ...


TokenScore = tuple[float, float]
"""The score of a token and its surprisal in nats."""


class CachedStatistics:
    """The reading of one position, as numbers; what was not noted of a token is asked for."""

    __slots__ = ("ask", "best", "chances", "entropy", "top")

    def __init__(
        self, best: int, top: float, entropy: float, chances: dict[int, TokenScore], ask: Callable[[int], TokenScore]
    ) -> None:
        """Takes what `Reading` gives, chances by token, and what finds out the chance of another token."""
        self.best = best
        self.top = top
        self.entropy = entropy
        self.chances = chances
        self.ask = ask

    def of(self, tokens: int) -> float:
        return self._chance(tokens)[0]

    def surprisal(self, tokens: int) -> float:
        return self._chance(tokens)[1]

    def apart(self, other: CachedStatistics) -> float:
        return float(self.best != other.best)

    def _chance(self, token: int) -> TokenScore:
        found = self.chances.get(token)
        if found is None:
            found = self.chances[token] = self.ask(token)
        return found
