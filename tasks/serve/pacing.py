"""Which way of decoding a batch is the fastest here: measured while serving, for each kind of batch.

Drafting pays for one text and rarely for many, and only on text that the drafter knows. So every way is timed as requests come:
an untried one is tried once, then the fastest one runs, and a slower one that could have become the fastest is tried anew from
time to time. The large model alone is always among the ways, so that serving follows it where drafting loses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_WEIGHT = 0.2
"""Of the newest batch in a way's moving average."""
_RETRY_EVERY = 100
"""Batches of a kind between two trials of a slower way."""
_RETRY_WITHIN = 2.0
"""A way that takes more than this multiple of the fastest one's time is not tried again."""


@dataclass(frozen=True)
class Way:
    """A way to decode a batch."""

    drafting: bool
    """By the operating point, else by the large model alone."""
    together: bool
    """All texts side by side, else one after the other."""


@dataclass(frozen=True)
class BatchKind:
    """What the speed of a way depends on."""

    size: int
    """Texts, rounded up to a power of two."""
    greedy: bool
    streamed: bool

    @staticmethod
    def of(texts: int, *, greedy: bool, streamed: bool) -> BatchKind:
        """Return the kind of a batch of so many texts."""
        return BatchKind(1 << (texts - 1).bit_length(), greedy, streamed)


@dataclass
class _Pace:
    seconds_per_token: float
    runs: int = 1


@dataclass
class Pacing:
    """Chooses a way for each batch and learns from its time. Not thread-safe: one worker uses it."""

    drafts: bool = True
    """Whether the operating point drafts at all."""
    fixed: bool | None = None
    """True: always by the operating point; False: always by the large model alone; None: whichever is faster."""
    _known: dict[BatchKind, dict[Way, _Pace]] = field(default_factory=dict)
    _batches: dict[BatchKind, int] = field(default_factory=dict)

    def ways(self, kind: BatchKind) -> list[Way]:
        """Return the ways to decode a batch of this kind, the large model alone first."""
        drafting = [self.fixed] if self.fixed is not None else [False, True] if self.drafts else [False]
        return [Way(one, together) for one in drafting for together in ((False,) if kind.size == 1 else (True, False))]

    def choose(self, kind: BatchKind) -> Way:
        """Return the way to decode the next batch of this kind."""
        ways, known = self.ways(kind), self._known.get(kind, {})
        for way in ways:
            if way not in known:
                return way
        ordered = self._ordered(kind)
        count = self._batches[kind] = self._batches.get(kind, 0) + 1
        rivals = self._rivals(ordered, known)
        if rivals and count % _RETRY_EVERY == 0:
            return rivals[count // _RETRY_EVERY % len(rivals)]
        return ordered[0]

    def fastest(self, kind: BatchKind) -> Way:
        """Return the fastest way known; the first one where none was tried."""
        return next(iter(self._ordered(kind)), self.ways(kind)[0])

    def _ordered(self, kind: BatchKind) -> list[Way]:
        known = self._known.get(kind, {})
        return sorted(known, key=lambda way: known[way].seconds_per_token)

    def _rivals(self, ordered: Sequence[Way], known: dict[Way, _Pace]) -> list[Way]:
        best = known[ordered[0]].seconds_per_token
        return [way for way in ordered[1:] if known[way].seconds_per_token <= _RETRY_WITHIN * best]

    def learn(self, kind: BatchKind, way: Way, seconds: float, tokens: int) -> None:
        """Take the time of a batch.

        Args:
            kind: The batch's kind.
            way: How it was decoded.
            seconds: From the first model run to the last text.
            tokens: All tokens generated; a batch without any teaches nothing.
        """
        if not tokens:
            return
        measured = seconds / tokens
        known = self._known.setdefault(kind, {})
        if way not in known:
            known[way] = _Pace(measured)
            return
        pace = known[way]
        pace.runs += 1
        # The first run of a way pays for what its runtime does once, so the second one replaces it.
        weight = 1.0 if pace.runs == 2 else _WEIGHT
        pace.seconds_per_token += weight * (measured - pace.seconds_per_token)

    def table(self) -> dict[BatchKind, dict[Way, float]]:
        """Return the seconds a token of every way tried so far."""
        return {kind: {way: pace.seconds_per_token for way, pace in known.items()} for kind, known in self._known.items()}
