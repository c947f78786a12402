"""The clock of a sweep: what is compared in time is timed in one process, in turn.

The points of all drafters are timed in groups. Each example is decoded by the large model alone and by every point of the
group, back to back in random order, so that a machine that slows down slows all of them. Every round of a point has a process
of its own, started for it: code and caches lie differently in each, and a difference that lasts as long as a process would
otherwise be taken for one between the points.

At its end a sweep times vanilla and the fastest chosen points at several batch sizes, on the same texts, side by side. The
fastest executor that can runs each of them, at batch 1 the one of the sweep.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from tasks import supervisor
from tasks.console import progress
from tasks.decoding.decoder import Rows, TokenGuarantee
from tasks.decoding.generation import Generation
from tasks.decoding.method import Pair, Request
from tasks.decoding.registry import METHODS
from tasks.evaluation import timing
from tasks.evaluation.results.pair import BatchTiming, BatchTimings, Costs, VanillaBatch
from tasks.evaluation.results.rows import SweepRow, TimedRow
from tasks.evaluation.selection import choose_rows
from tasks.evaluation.settings import CHOICES, MarginSettings, SweepSettings
from tasks.evaluation.sweep.grid import VANILLA, Drafter, SweepPoint, is_vanillas_output
from tasks.evaluation.sweep.plan import measure_costs
from tasks.evaluation.sweep.replay import Split
from tasks.evaluation.timing import Expected, TimedTokensError, guarantee_of
from tasks.machine import on_threads


class Visit(NamedTuple):
    """A point to be timed once on each timed example."""

    drafter: Drafter
    point: SweepPoint
    expected: Expected


class Lap(NamedTuple):
    """One visit: milliseconds of each timed example, beside the large model alone."""

    latency_ms: list[float]
    vanilla_latency_ms: list[float]
    mismatches: int | None
    """Examples whose tokens are not the expected ones; None where they are drawn, or must be equal and are."""
    generations: list[Generation]
    """Of the first timed examples, to be shown."""


SHOWN = 6
"""Examples whose texts a timed row holds."""
Decode = Callable[[list[int]], list[Generation]]
"""Decodes a batch of examples, given by their indices in a split."""
Batches = Mapping[int, Sequence[list[int]]]
"""Examples that are decoded side by side, by batch size."""
_BATCH_ROUNDS = 3


class PointTimer:
    """Times the points of all drafters in this process."""

    def __init__(self, pairs: Mapping[Drafter, Pair], sweep: SweepSettings, device: str) -> None:
        """Take the pairs of all drafters, each ready to decode."""
        self.pairs = dict(pairs)
        self.clock = timing.synchronised_clock(device)
        self._sweep = sweep

    def costs(self, sources: Rows, request: Request) -> list[Costs]:
        """Time the parts of decoding with every drafter."""
        with on_threads(self._sweep.latency_threads):
            return [measure_costs(pair, sources, request, self.clock) for pair in self.pairs.values()]

    def lap(self, visits: Sequence[Visit], vanilla: Expected, split: Split, request: Request, label: str) -> list[Lap | str]:
        """Time a group of points in turn; in place of what cannot be measured its error.

        Args:
            visits: The points.
            vanilla: Tokens of the large model alone.
            split: The examples.
            request: Length limit, sampling and seed.
            label: Keys the random order.
        """
        # The methods are composed before the clock starts, so that only decoding is timed.
        alone = Visit(visits[0].drafter, VANILLA, vanilla)
        calls = [_Contender(self._timed_call(one, split, request)) for one in (alone, *visits)]
        with on_threads(self._sweep.latency_threads):
            times, outputs = timing.measure_in_turn(
                dict(enumerate(calls)),
                split.timed,
                warmup=self._sweep.warmup_examples,
                rng=random.Random(f"{self._sweep.seed} {label}"),  # noqa: S311 (an order, not a secret)
                clock=self.clock,
            )

        def lap(number: int, visit: Visit) -> Lap | str:
            if calls[number].error:
                return calls[number].error
            generations = [one for [one] in outputs[number]]
            try:
                mismatches = self._mismatches(visit, generations, split, request)
            except TimedTokensError as error:
                return named(error)
            return Lap(times[number], times[0], mismatches, generations[:SHOWN])

        first, *laps = (lap(number, visit) for number, visit in enumerate((alone, *visits)))
        # Where the large model alone fails, nothing stands beside it.
        return [first if isinstance(first, str) and isinstance(one, Lap) else one for one in laps]

    def _timed_call(self, visit: Visit, split: Split, request: Request) -> Decode:
        """What is timed of a point."""
        method = METHODS[visit.point.method].make(visit.point.settings, self.pairs[visit.drafter], request)
        return lambda batch: method.run([split.sources[example] for example in batch], batch, request.max_new_tokens)

    def _mismatches(self, visit: Visit, generations: Sequence[Generation], split: Split, request: Request) -> int | None:
        """Timed examples whose tokens are not the expected ones.

        Raises:
            TimedTokensError: a text differs beyond what the runtimes allow.
        """
        if not request.sampling.greedy:
            return None
        pair = self.pairs[visit.drafter]
        found = timing.count_mismatches(visit.point, generations, visit.expected, split, pair)
        return None if guarantee_of(pair) is TokenGuarantee.EQUAL else found

    def batches(
        self, points: Mapping[Drafter, Sequence[SweepPoint]], vanilla: Expected, split: Split, request: Request
    ) -> dict[Drafter, BatchTimings]:
        """Time points of all drafters and vanilla at several batch sizes, on random texts of mixed lengths.

        What cannot be measured leaves its error in the records, and does not fail the sweep.

        Args:
            points: By drafter.
            vanilla: The outputs of the large model alone, on all examples.
            split: The examples.
            request: Length limit, sampling and seed.
        """
        rng = random.Random(f"{self._sweep.seed} batches {split.name}")  # noqa: S311 (a sample, not a secret)
        count = min(self._sweep.batch_examples, len(split.examples))
        examples = rng.sample(range(len(split.examples)), count)
        sizes = [size for size in self._sweep.batch_sizes if size <= count]
        # An incomplete last batch is left out.
        batches = {size: [examples[begin : begin + size] for begin in range(0, count // size * size, size)] for size in sizes}
        visits = [Visit(next(iter(points)), VANILLA, vanilla)]
        visits += (Visit(drafter, point, vanilla) for drafter, own in points.items() for point in own)
        about: dict[str, Any] = {"split": split.name, "examples": count}
        try:
            with on_threads(self._sweep.latency_threads):
                laps = self._batch_laps(visits, batches, split, request, rng)
        except RuntimeError as error:
            return dict.fromkeys(points, BatchTimings(**about, error=named(error)))
        tokens = {size: sum(len(vanilla.tokens[one]) for batch in own for one in batch) for size, own in batches.items()}
        rates = {size: tokens[size] / _seconds(laps[0][size]) for size in sizes}
        about["vanilla"] = [VanillaBatch(batch_size=size, throughput=rates[size] / rates[sizes[0]]) for size in sizes]
        timings: dict[Drafter, list[BatchTiming]] = {drafter: [] for drafter in points}
        for visit, own in list(zip(visits, laps, strict=True))[1:]:
            timings[visit.drafter] += (batch_timing(visit.point, size, laps[0][size], own[size]) for size in sizes)
        return {drafter: BatchTimings(**about, points=found) for drafter, found in timings.items()}

    def _batch_laps(
        self, visits: Sequence[Visit], batches: Batches, split: Split, request: Request, rng: random.Random
    ) -> list[dict[int, list[list[float]]]]:
        """The seconds of every batch by point, batch size and round: in each round all sizes, at each batch all points in turn.

        Raises:
            TimedTokensError: a batch changed tokens where the runtimes and the sampling promise the same.
        """
        calls = [self._timed_call(visit, split, request) for visit in visits]
        known, examples = [], [example for batch in batches[min(batches)] for example in batch]
        for visit, call in zip(visits, calls, strict=True):
            decoded = call(examples)  # warms the caches as well
            own = {example: one.tokens for example, one in zip(examples, decoded, strict=True)}
            known.append(visit.expected.tokens if is_vanillas_output(visit.point) else own)
        exact = [request.sampling.greedy and guarantee_of(self.pairs[one.drafter]) is TokenGuarantee.EQUAL for one in visits]
        laps = [{size: [list[float]() for _ in range(_BATCH_ROUNDS)] for size in batches} for _ in visits]
        order = [(lap, size) for lap in range(_BATCH_ROUNDS) for size in rng.sample(list(batches), len(batches))]
        for lap, size in progress(order, desc=f"time {split.name} in batches", unit="lap"):
            for batch in batches[size]:
                for number in rng.sample(range(len(visits)), len(visits)):
                    begun = self.clock()
                    generations = calls[number](batch)
                    laps[number][size][lap].append(self.clock() - begun)
                    for example, one in zip(batch, generations, strict=True):
                        if exact[number] and tuple(one.tokens) != tuple(known[number][example]):
                            where = f"batches of {size} changed the tokens of {split.name} {example}"
                            raise TimedTokensError(f"{visits[number].point}: {where}")
        return laps


class _Contender:
    """A point's calls; after one that fails (out of memory, broken logits), it does nothing more."""

    def __init__(self, call: Decode) -> None:
        self._call = call
        self.error = ""

    def __call__(self, example: int) -> list[Generation]:
        if not self.error:
            try:
                return self._call([example])
            except RuntimeError as error:
                self.error = named(error)
        return []


def named(error: Exception) -> str:
    """An error as rows hold it."""
    return f"{type(error).__name__}: {error}"


def points_by_batch(rows: Sequence[SweepRow], points: Sequence[SweepPoint], margins: MarginSettings) -> list[SweepPoint]:
    """The points to time in batches: the fastest choice for each of `CHOICES`, and the fastest one with vanilla's own output.

    Args:
        rows: Of the sweep; the choices are those of the validation split.
        points: The grid.
        margins: What a choice may lose.
    """
    chosen = {key: rows[index] for key, index in choose_rows(rows, margins).items() if index is not None}
    found = {key: row for key, row in chosen.items() if isinstance(row, TimedRow)}
    groups = [[row for (_, choice), row in found.items() if choice == wanted] for wanted in CHOICES]
    by_row = {(point.method, str(point.plain_settings)): point for point in points}
    own_output = [row for row in found.values() if is_vanillas_output(by_row[row.method, str(row.settings)])]
    fastest = [max(group, key=lambda row: row.speedup) for group in (*groups, own_output) if group]
    return list(dict.fromkeys(by_row[row.method, str(row.settings)] for row in fastest))


def batch_timing(
    point: SweepPoint, size: int, vanilla: Sequence[Sequence[float]], own: Sequence[Sequence[float]]
) -> BatchTiming:
    """A point beside vanilla at the same batch size; the seconds of both by round and batch."""
    rounds = [sum(theirs) / sum(ours) for theirs, ours in zip(vanilla, own, strict=True)]
    # The median of the rounds' ratios lies within their range; a ratio of medians need not.
    speedup = statistics.median(rounds)
    return BatchTiming(method=point.method, settings=point.plain_settings, batch_size=size, speedup=speedup, rounds=rounds)


def _seconds(laps: Sequence[Sequence[float]]) -> float:
    """All batches, each the median of its rounds: against single slow calls."""
    return math.fsum(statistics.median(rounds) for rounds in zip(*laps, strict=True))


# Processes that time, one after the other.

Laps = Callable[..., list[Lap | str]]
"""`PointTimer.lap`, which may be that of another process."""
Start = Callable[[], AbstractContextManager[Laps]]
"""Starts what times, for the length of a block."""


def start_elsewhere(open_timer: Callable[[int], PointTimer], close: Callable[[], object]) -> Start:
    """Start a process whenever something is timed; this one waits and holds no model meanwhile.

    Args:
        open_timer: Opens the timer in the other process, given how many were started before; picklable.
        close: Closes the models of this one.

    Raises:
        OSError: in a block, the process died.
    """

    numbers = itertools.count()

    @contextlib.contextmanager
    def start() -> Iterator[Laps]:
        close()
        try:
            with supervisor.workers(1, _open, open_timer, next(numbers)) as executor:
                yield lambda *about: executor.submit(_lap, *about).result()
        except BrokenProcessPool as error:
            fix = "start the sweep again, which goes on from here"
            raise OSError(f"the process that times has ended ({error}); {fix}") from None

    return start


_OPENED = list[PointTimer]()
"""In a process that times."""


def _open(open_timer: Callable[[int], PointTimer], number: int) -> None:
    _OPENED.append(open_timer(number))


def _lap(*about: Any) -> list[Lap | str]:
    return _OPENED[0].lap(*about)
