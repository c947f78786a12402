"""Which way of decoding a batch is the fastest here: measured while serving, for each kind of batch.

Drafting pays for one text and rarely for many, and only on text that the drafter knows. So one way leads for each kind of
batch, and the others are tried beside it from time to time. A trial counts as a ratio to the leader's latest batches: what else
the machine does slows both, whereas times of an idle warm-up and of a busy hour cannot be compared. A way that is faster by
ratio takes the lead. Trials become rarer while the leader stays ahead, and frequent again when it becomes slower than it was,
as where a drafter meets text that it does not know. What trials lose is bounded by a share of what the leader does. The large
model alone is always among the ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_FIRST_TRIAL, _RAREST_TRIAL = 8, 256
"""Batches between two trials of the ways that do not lead: at first, and once the leader has stayed ahead for long."""
_NOW, _LONG = 0.3, 0.02
"""Weights of the newest batch in the leader's averages."""
_TRIAL = 0.5
"""Weight of the newest trial in a way's ratio."""
_FASTER = 0.95
"""Ratio under which a way takes the lead; closer ones change places by chance alone."""
_SLOWED = 1.3
"""The leader has become slower where its latest batches take this multiple of what they took for long."""
_HOPELESS = 2.5
"""Ratio above which a way is tried an eighth as often."""
_TRIAL_SHARE, _MOST_SAVED = 0.01, 2.0
"""What trials may lose: batches of the leader's time for each batch of the leader, and how much of it may be saved up."""


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
class _Race:
    """The ways of one kind of batch."""

    leader: Way
    ratios: dict[Way, float] = field(default_factory=dict)
    """Seconds a token of each way tried, over the leader's at that time; the leader's is 1."""
    now: float = math.nan
    """Seconds a token of the leader: of its latest batches."""
    long: float = math.nan
    """The same over many batches."""
    runs: dict[Way, int] = field(default_factory=dict)
    """Batches of each way. The first one of a way is not kept: it pays for what a runtime does once."""
    pause: int = _FIRST_TRIAL
    since: int = 0
    """Batches since the last trial."""
    trials: int = 0
    budget: float = 0.0
    """Batches of the leader's time that trials may lose now."""

    def next(self, ways: Sequence[Way]) -> Way:
        """Return the way of the next batch: an untried one, one whose trial is due, or the leader."""
        for way in [self.leader, *ways]:
            if self.runs.get(way, 0) < 2:
                return way
        self.since += 1
        rivals = [way for way in ways if way != self.leader]
        if not rivals or self.since < self.pause:
            return self.leader
        rival = self._rival(rivals)
        if min(self.ratios[rival] - 1, _MOST_SAVED) > self.budget:
            return self.leader
        self.since = 0
        self.trials += 1
        return rival

    def _rival(self, rivals: Sequence[Way]) -> Way:
        """Return the way whose turn it is to be tried."""
        hopeful = [way for way in rivals if self.ratios[way] <= _HOPELESS]
        if hopeful and self.trials % 8 != 7:
            return hopeful[self.trials % len(hopeful)]
        return rivals[self.trials // 8 % len(rivals)]

    def led(self, seconds: float) -> None:
        """Take a batch of the leader."""
        second = self._count(self.leader) == 2
        self.ratios[self.leader] = 1.0
        self.now = _average(self.now, seconds, 1.0 if second else _NOW)
        self.long = _average(self.long, seconds, 1.0 if second else _LONG)
        self.budget = min(self.budget + _TRIAL_SHARE, _MOST_SAVED)
        if self.now > _SLOWED * self.long:
            self.pause, self.long = _FIRST_TRIAL, self.now
            # The text slows drafting; only the machine slows the large model alone, and its rivals with it.
            self.budget = _MOST_SAVED if self.leader.drafting else self.budget

    def tried(self, way: Way, seconds: float) -> None:
        """Take a batch of another way; it may take the lead."""
        runs = self._count(way)
        ratio = _average(self.ratios.get(way, math.nan), seconds / self.now, 1.0 if runs == 2 else _TRIAL)
        self.ratios[way] = ratio
        if runs == 1:
            return
        self.budget -= max(0.0, seconds / self.now - 1)
        if ratio >= _FASTER:
            self.pause = min(2 * self.pause, _RAREST_TRIAL) if runs > 2 else self.pause
            return
        self.ratios = {one: value / ratio for one, value in self.ratios.items()}
        self.leader, self.now, self.long, self.pause = way, seconds, seconds, _FIRST_TRIAL

    def _count(self, way: Way) -> int:
        self.runs[way] = self.runs.get(way, 0) + 1
        return self.runs[way]


@dataclass
class Pacing:
    """Chooses a way for each batch and learns from its time. Not thread-safe: one worker uses it."""

    drafts: bool = True
    """Whether the operating point drafts at all."""
    fixed: bool | None = None
    """True: always by the operating point; False: always by the large model alone; None: whichever is faster."""
    _races: dict[BatchKind, _Race] = field(default_factory=dict)

    def ways(self, kind: BatchKind) -> list[Way]:
        """Return the ways to decode a batch of this kind, the large model alone first."""
        drafting = [self.fixed] if self.fixed is not None else [False, True] if self.drafts else [False]
        return [Way(one, together) for one in drafting for together in ((False,) if kind.size == 1 else (True, False))]

    def choose(self, kind: BatchKind) -> Way:
        """Return the way to decode the next batch of this kind."""
        return self._race(kind).next(self.ways(kind))

    def learn(self, kind: BatchKind, way: Way, seconds: float, tokens: int) -> None:
        """Take the time of a batch.

        Args:
            kind: The batch's kind.
            way: How it was decoded.
            seconds: From the first model run to the last text.
            tokens: All tokens generated; a batch without any teaches nothing.
        """
        race = self._race(kind)
        if not tokens:
            return
        if way == race.leader:
            race.led(seconds / tokens)
        elif not math.isnan(race.now):
            race.tried(way, seconds / tokens)

    def begin(self, kind: BatchKind, seconds: Mapping[Way, float]) -> None:
        """Take what a warm-up measured: seconds a token of every way of a kind, on the same texts in turn."""
        leader = min(seconds, key=seconds.__getitem__)
        best = seconds[leader]
        ratios = {way: one / best for way, one in seconds.items()}
        self._races[kind] = _Race(leader, ratios, best, best, dict.fromkeys(seconds, 2))

    def fastest(self, kind: BatchKind) -> Way:
        """Return the way that leads; the large model alone where none was tried."""
        return self._race(kind).leader

    def _race(self, kind: BatchKind) -> _Race:
        return self._races.setdefault(kind, _Race(self.ways(kind)[0]))

    def table(self) -> dict[BatchKind, dict[Way, float]]:
        """Return the seconds a token of every way tried so far, as they would be now."""
        return {kind: {way: ratio * race.now for way, ratio in race.ratios.items()} for kind, race in self._races.items()}


def _average(so_far: float, newest: float, weight: float) -> float:
    return newest if math.isnan(so_far) else so_far + weight * (newest - so_far)
