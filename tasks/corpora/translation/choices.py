"""Which of several right translations is taken: drawn at random, or laid out so that references cover the alternatives."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")

# The first option is the commonest, as one word for a thing is in real text: by so much that a model that decodes greedily
# settles on it, by so little that a model which gives every option its share is seldom sure.
WEIGHTS = {2: (0.7, 0.3), 3: (0.6, 0.25, 0.15), 4: (0.55, 0.2, 0.15, 0.1)}


class Choose(Protocol):
    """Takes one of `options`, the commonest first, at the choice called `point`."""

    def __call__(self, point: str, options: Sequence[T], /) -> T: ...


class Sampled:
    """Every choice drawn on its own, by `WEIGHTS`: what a training reference is made with.

    Greedy outputs of a model trained on such text keep little of the choice. That is what alignment gives a drafter: certainty
    where the large model has made up its mind, and doubt only where the drafter may be wrong.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def __call__(self, _point: str, options: Sequence[T], /) -> T:
        if len(options) == 1:
            return options[0]
        return self._rng.choices(options, WEIGHTS[len(options)])[0]


class Covering:
    """Deals the options of every choice evenly over `rounds` references, so that each appears among them.

    The order is shuffled for each choice, which keeps two choices of one sentence from moving together. The same choice made
    twice in one reference (two relative clauses, say) counts as two.
    """

    def __init__(self, rng: random.Random, rounds: int) -> None:
        self._rng = rng
        self._rounds = rounds
        self._round = 0
        self._decks: dict[tuple[str, int, int], list[int]] = {}
        self._seen: Counter[str] = Counter()

    def start(self, number: int) -> None:
        """Begins reference `number`, counted from 0."""
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
