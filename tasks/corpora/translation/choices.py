"""Chooses among correct translations, at random or such that several references cover all alternatives."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Choose(Protocol):
    """Return one of `options`, of which the first is the most frequent, for the choice named `point`."""

    def __call__(self, point: str, options: Sequence[T], /) -> T: ...


class Sampled:
    """Draws every choice independently, for training references, which vary as the wordings of different people do.

    A choice is drawn evenly among all correct wordings with probability `variation`, and is otherwise the commonest wording.
    With 0.8, the commoner of two wordings is used 60 % of the time. Greedy outputs of a model trained on such text vary less.
    """

    def __init__(self, rng: random.Random, variation: float) -> None:
        self._rng, self._variation = rng, variation

    def __call__(self, _point: str, options: Sequence[T], /) -> T:
        if len(options) == 1 or self._rng.random() >= self._variation:
            return options[0]
        return self._rng.choice(options)


class Covering:
    """Distributes the options of every choice evenly over `rounds` references, so that each option appears.

    Each choice has its own shuffled order, so that two choices of a sentence are independent. A choice that occurs twice in a
    reference, for example in two relative clauses, counts as two choices.
    """

    def __init__(self, rng: random.Random, rounds: int) -> None:
        self._rng = rng
        self._rounds = rounds
        self._round = 0
        self._decks: dict[tuple[str, int, int], list[int]] = {}
        self._seen: Counter[str] = Counter()

    def start(self, number: int) -> None:
        """Start reference `number`, counted from 0."""
        self._round = number
        self._seen.clear()

    def __call__(self, point: str, options: Sequence[T], /) -> T:
        if len(options) == 1:
            return options[0]
        self._seen[point] += 1
        key = (point, self._seen[point], len(options))
        if key not in self._decks:
            deck = [number % len(options) for number in range(self._rounds)]
            self._rng.shuffle(deck)
            self._decks[key] = deck
        return options[self._decks[key][self._round]]
