"""Which way of decoding a batch is the fastest here: measured in a warm-up and while serving, for each kind of batch.

Drafting pays for one text and rarely for many, and only on text that the drafter knows. So one way leads for each kind of
batch, and the others are tried beside it from time to time. A trial counts as a ratio to the leader's latest batches: what else
the machine does slows both, whereas times of an idle warm-up and of a busy hour cannot be compared. A way that is faster by
ratio takes the lead. Trials become rarer while the leader stays ahead, and frequent again when it becomes slower than it was,
as where a drafter meets text that it does not know. What trials lose is bounded by a share of what the leader does. The large
model alone is always among the ways.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Generation
from tasks.decoding.inference import VANILLA, DecodingPair
from tasks.decoding.loop import abandonable, watched
from tasks.decoding.method import Request
from tasks.decoding.turn import Abandonment, RowState

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


Finish = Callable[[int, Generation], None]
"""Takes the position of a text in its batch and what was generated."""


Watch = Callable[[int, list[int]], bool]
"""Takes the position of a text in its batch and its generated tokens so far; returns whether the text ends there."""


@dataclass(frozen=True)
class Batch:
    """Texts that are decoded with the same settings, and who is told of them."""

    rows: Rows
    """Token ids of each source."""
    examples: Sequence[int]
    """A number for each source that keys its random draws, all different."""
    request: Request
    """Length, sampling and seed."""
    finish: Finish
    """Called with each text as soon as it is whole."""
    watch: Watch | None = None
    """Called with each text after each of its turns; None lets the fastest executor run."""
    abandoned: Sequence[Abandonment] = ()
    """A flag for each text; once all are set, the batch ends at its next turn with `AbandonedError`."""


class Engine(Protocol):
    """What decodes a batch."""

    @property
    def name(self) -> str:
        """For people: method and runtime."""

    @property
    def drafts(self) -> bool:
        """Whether the operating point drafts."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text."""

    def described(self, way: Way) -> str:
        """Return the method that a way runs, with its settings."""

    def run(self, batch: Batch, way: Way) -> None:
        """Decode a batch by the operating point or the large model alone, side by side or one text after the other."""


@dataclass(frozen=True)
class PairEngine:
    """A pair with its operating point."""

    pair: DecodingPair

    @property
    def name(self) -> str:
        """Operating point and runtime."""
        return f"{self.pair.manifest.point}; {self.pair.decoders.described}"

    @property
    def drafts(self) -> bool:
        """Whether the operating point is another method than the large model alone."""
        return self.pair.manifest.point.method != VANILLA.method

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text of the large model."""
        return frozenset(self.pair.decoders.large.end_tokens)

    def described(self, way: Way) -> str:
        """Return the method that a way runs, with its settings."""
        return str(self.pair.manifest.point if way.drafting else VANILLA)

    def run(self, batch: Batch, way: Way) -> None:
        """Decode a batch by the operating point or the large model alone, side by side or one text after the other."""
        method = self.pair.method(self.pair.manifest.point if way.drafting else VANILLA, batch.request)
        method = abandonable(method, batch.abandoned)
        positions = list(range(len(batch.rows)))
        for part in [positions] if way.together else [[position] for position in positions]:
            examples = [batch.examples[one] for one in part]
            seen = functools.partial(_seen, batch.watch, dict(zip(examples, part, strict=True)))
            shown = method if batch.watch is None else watched(method, seen)
            found = shown.run([batch.rows[one] for one in part], examples, batch.request.max_new_tokens)
            for position, generation in zip(part, found, strict=True):
                batch.finish(position, generation)


def _seen(watch: Watch | None, positions: Mapping[int, int], row: RowState) -> bool:
    return watch is not None and watch(positions[row.example], row.tokens[row.prompt :])


_TEXTS, _ROUNDS = 8, 2
"""Least numbers of texts and of batches that each way decodes."""


def warm_up(
    engine: Engine,
    pacing: Pacing,
    rows: Rows,
    request: Request,
    max_batch: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Decode example texts in every way, the smallest batches first.

    Args:
        engine: What decodes.
        pacing: Learns the times.
        rows: Token ids of example texts; none: nothing is done.
        request: Length and sampling that most requests will have.
        max_batch: The largest batch.
        seconds: Begins no further batch after this time.
        clock: Gives seconds.

    Returns:
        The largest number of texts for which every way was timed; 0 where not even one text was.
    """
    end, size, done = clock() + seconds, 1, 0
    while rows and size <= max_batch:
        kind = BatchKind.of(size, greedy=request.sampling.greedy, streamed=False)
        taken: dict[Way, list[float]] = {way: [] for way in pacing.ways(kind)}
        for number in range(1 + max(_ROUNDS, -(-_TEXTS // size))):
            batch = [rows[(number * size + one) % len(rows)] for one in range(size)]
            for way, times in taken.items():
                if clock() >= end:
                    return done
                times.append(_seconds_per_token(engine, batch, request, way, clock))
        # The first batch of a way pays for what its runtime does once.
        pacing.begin(kind, {way: statistics.fmean(times[1:]) for way, times in taken.items()})
        done, size = size, size * 2
    return done


def _seconds_per_token(engine: Engine, rows: Rows, request: Request, way: Way, clock: Callable[[], float]) -> float:
    found: dict[int, Generation] = {}
    begun = clock()
    engine.run(Batch(rows, range(len(rows)), request, found.__setitem__), way)
    return (clock() - begun) / max(1, sum(len(one.tokens) for one in found.values()))


def findings(pacing: Pacing, done: int) -> str:
    """Return one line about what was found: for which numbers of greedy texts drafting is the fastest.

    Args:
        pacing: What the warm-up taught.
        done: The largest number of texts for which every way was timed.
    """
    if pacing.fixed is not None or not pacing.drafts:
        return "decoding always in one way: " + ("by the operating point" if pacing.fixed else "by the large model alone")
    if not done:
        return "not warmed up: which way of decoding is the fastest is found while serving"
    sizes = [1 << power for power in range(done.bit_length())]
    paying = [str(size) for size in sizes if pacing.fastest(BatchKind(size, greedy=True, streamed=False)).drafting]
    if not paying:
        return f"drafting does not pay here for 1 to {done} texts at once; the large model decodes alone"
    return f"drafting pays here for {', '.join(paying)} texts at once; tried up to {done}"
