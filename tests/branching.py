"""Enumerates every outcome of a sampled decoding method, by its own code: each random number is left open until it decides.

A number begins as the interval from 0 to 1. A draw or a comparison cuts it where its outcomes meet, and the run goes on in one
piece; further runs take the other pieces. A number that is read twice is still the same number, so a method that decides two
things with one number is enumerated as what it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from tasks.decoding.distributions import Key, TokenSource
from tasks.decoding.method import DecodingMethod
from tests.toys import Prefix

_ROWS = 4096
"""Most rows that are decoded side by side."""

_ROUNDING = 1e-13
"""Narrower pieces are not cut off: whether there are any depends on the shape of the batch that was computed."""

Number = tuple[int, ...]
"""A random number, by what it depends on in a run."""
Choices = tuple[int, ...]
"""Which piece a run takes at each of its decisions; beyond these it takes the first one."""


@dataclass
class Run:
    """One decoded text and the decisions that led to it."""

    choices: Choices
    probability: float = 1.0
    others: list[Choices] = field(default_factory=list)
    """The choices of the runs that leave this one at a decision beyond `choices`."""
    _taken: list[int] = field(default_factory=list)
    _numbers: dict[Number, tuple[float, float]] = field(default_factory=dict)

    def cut(self, key: Number, points: Iterable[float]) -> None:
        """Cut a number at these points, as far as they lie inside its interval, and keep one of the pieces."""
        low, high = self._numbers.get(key, (0.0, 1.0))
        edges = [low]
        for point in sorted(points):
            if edges[-1] + _ROUNDING < point < high - _ROUNDING:
                edges.append(point)
        edges.append(high)
        if len(edges) == 2:
            return
        done = len(self._taken)
        if done < len(self.choices):
            taken = self.choices[done]
        else:
            taken = 0
            self.others += [(*self._taken, other) for other in range(1, len(edges) - 1)]
        self._taken.append(taken)
        self._numbers[key] = edges[taken], edges[taken + 1]
        self.probability *= (edges[taken + 1] - edges[taken]) / (high - low)

    def middle(self, key: Number) -> float:
        """Return the middle of a number's interval."""
        return sum(self._numbers.get(key, (0.0, 1.0))) / 2


class OpenNumber(float):
    """A uniform number that a comparison cuts in two, and a product with n into n equal parts; as a float, its middle."""

    def __new__(cls, run: Run, key: Number) -> OpenNumber:
        number = super().__new__(cls, run.middle(key))
        number.run, number.key = run, key
        return number

    run: Run
    key: Number

    def cut(self, points: Iterable[float]) -> float:
        """Cut the number and return the middle of what is left of it."""
        self.run.cut(self.key, points)
        return self.run.middle(self.key)

    def __lt__(self, bound: float) -> bool:
        return self.cut([bound]) < bound

    def __le__(self, bound: float) -> bool:
        return self.cut([bound]) <= bound

    def __gt__(self, bound: float) -> bool:
        return self.cut([bound]) > bound

    def __ge__(self, bound: float) -> bool:
        return self.cut([bound]) >= bound

    def __mul__(self, count: float) -> float:
        return self.cut([part / count for part in range(1, int(count))]) * count


class BranchingSource(TokenSource):
    """Open numbers in place of random ones; an example's number is that of its run."""

    kernel = "asks"

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.runs: list[Run] = []

    def uniform(self, key: Key) -> OpenNumber:
        return OpenNumber(self.runs[key.example], (self.stream, *key[1:]))

    def draw(self, dist: Tensor, keys: Sequence[Key]) -> list[int]:
        cumulative = dist.double().cumsum(-1)
        for shares, key in zip((cumulative / cumulative[:, -1:]).tolist(), keys, strict=True):
            self.uniform(key).cut(shares)
        return super().draw(dist, keys)


def enumerated(
    build: Callable[[TokenSource], DecodingMethod], prompt: Sequence[int], limit: int, source: BranchingSource | None = None
) -> dict[Prefix, float]:
    """Return the probability of each text of at most `limit` tokens that the method writes after this prompt."""
    source = BranchingSource() if source is None else source
    method = build(source)
    distribution: dict[Prefix, float] = defaultdict(float)
    waiting: list[Choices] = [()]
    while waiting:
        now, waiting = waiting[:_ROWS], waiting[_ROWS:]
        source.runs[:] = [Run(choices) for choices in now]
        texts = method.run([list(prompt)] * len(now), range(len(now)), limit)
        for run, text in zip(source.runs, texts, strict=True):
            distribution[tuple(text.tokens)] += run.probability
            waiting += run.others
    return dict(distribution)


def total_variation(one: dict[Prefix, float], other: dict[Prefix, float]) -> float:
    """Return ½ Σ |one - other| over all texts."""
    return sum(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in one.keys() | other.keys()) / 2
