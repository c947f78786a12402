"""The clock of a sweep: what is compared in time is timed in one process, in turn.

The points of all drafters are timed in groups. Each example is decoded by the large model alone and by every point of the
group, back to back in random order, so that a machine that slows down slows all of them. Every round of a point has a process
of its own, started for it: code and caches lie differently in each, and a difference that lasts as long as a process would
otherwise be taken for one between the points.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks import supervisor
from tasks.decoding.decoder import Rows, TokenGuarantee
from tasks.decoding.generation import Generation
from tasks.decoding.method import Pair, Request
from tasks.decoding.registry import METHODS
from tasks.evaluation.results.pair import BatchTimings, Costs
from tasks.evaluation.settings import SweepSettings
from tasks.evaluation.sweep.batches import BatchTimer
from tasks.evaluation.sweep.grid import VANILLA, Drafter, SweepPoint
from tasks.evaluation.sweep.plan import measure_costs
from tasks.evaluation.timing import (
    Expected,
    TimedTokensError,
    count_mismatches,
    guarantee_of,
    measure_in_turn,
    on_threads,
    synchronised_clock,
)

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from tasks.evaluation.sweep.replay import Split


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


class PointTimer:
    """Times the points of all drafters in this process."""

    def __init__(self, pairs: Mapping[Drafter, Pair], sweep: SweepSettings, device: str) -> None:
        """Take the pairs of all drafters, each ready to decode."""
        self.pairs = dict(pairs)
        self.clock = synchronised_clock(device)
        self._sweep = sweep

    def costs(self, sources: Rows, request: Request) -> dict[Drafter, Costs]:
        """Time the parts of decoding with every drafter; one whose models cannot run is left out."""
        found = {}
        with on_threads(self._sweep.latency_threads):
            for drafter, pair in self.pairs.items():
                with contextlib.suppress(RuntimeError):  # the rows of the baselines report it
                    found[drafter] = measure_costs(pair, sources, request, self.clock)
        return found

    def use(self, cost_ratio: float | None) -> None:
        """Let methods that decode by the cost ratio use this one, as their replay did."""
        known = {} if cost_ratio is None else {"small": cost_ratio}
        for pair in self.pairs.values():
            pair.cost_ratios.update(known | pair.cost_ratios)

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
            times, outputs = measure_in_turn(
                dict(enumerate(calls)),
                split.timed,
                warmup=self._sweep.warmup_examples,
                rng=random.Random(f"{self._sweep.seed} {label}"),  # noqa: S311 (an order, not a secret)
                clock=self.clock,
            )
        mismatches: dict[int, int | None] = {}
        for number, visit in enumerate((alone, *visits)):
            if not calls[number].error:
                try:
                    mismatches[number] = self._mismatches(visit, [one for [one] in outputs[number]], split, request)
                except TimedTokensError as error:
                    calls[number].error = named(error)
        # Where the large model alone fails, nothing stands beside it.
        return [
            calls[number].error
            or calls[0].error
            or Lap(times[number], times[0], mismatches[number], [one for [one] in outputs[number][:SHOWN]])
            for number in range(1, len(calls))
        ]

    def batches(
        self, points: Mapping[Drafter, Sequence[SweepPoint]], vanilla: Expected, split: Split, request: Request
    ) -> dict[Drafter, BatchTimings]:
        """Time points of all drafters at several batch sizes (`batches.BatchTimer`)."""
        return BatchTimer(self.pairs, self._sweep, self.clock, split, request).measure(points, vanilla)

    def _timed_call(self, visit: Visit, split: Split, request: Request) -> Callable[[int], list[Generation]]:
        """What is timed of a point: decoding one example alone, by its number."""
        method = METHODS[visit.point.method].make(visit.point.settings, self.pairs[visit.drafter], request)
        return lambda example: method.run([split.sources[example]], [example], request.max_new_tokens)

    def _mismatches(self, visit: Visit, generations: Sequence[Generation], split: Split, request: Request) -> int | None:
        """Timed examples whose tokens are not the expected ones.

        Raises:
            TimedTokensError: a text differs beyond what the runtimes allow.
        """
        if not request.sampling.greedy:
            return None
        pair = self.pairs[visit.drafter]
        found = count_mismatches(visit.point, generations, visit.expected, split, pair)
        return None if guarantee_of(pair) is TokenGuarantee.EQUAL else found


class _Contender:
    """A point's calls; after one that fails (out of memory, broken logits), it does nothing more."""

    def __init__(self, call: Callable[[int], list[Generation]]) -> None:
        self._call = call
        self.error = ""

    def __call__(self, example: int) -> list[Generation]:
        if not self.error:
            try:
                return self._call(example)
            except RuntimeError as error:
                self.error = named(error)
        return []


def named(error: Exception) -> str:
    """An error as rows hold it."""
    return f"{type(error).__name__}: {error}"


# Processes that time, one after the other.


class Starts:
    """Starts a process whenever something is timed; this one waits and holds no model meanwhile."""

    def __init__(self, open_timer: Callable[[], PointTimer], close: Callable[[], object]) -> None:
        """Take what opens the timer in another process, picklable, and what closes the models of this one."""
        self._open_timer = open_timer
        self._close = close

    @contextlib.contextmanager
    def start(self, cost_ratio: float | None = None) -> Iterator[PointTimer]:
        """A process for the length of the block.

        Raises:
            OSError: the process died.
        """
        self._close()
        try:
            with supervisor.workers(1, _open, self._open_timer, cost_ratio) as executor:
                yield _Elsewhere(executor)
        except BrokenProcessPool as error:
            raise OSError(
                f"the process that times has ended ({error}); start the sweep again, which goes on from here"
            ) from None


class Here(Starts):
    """Times in this process, where its starts are not compared: in a benchmark of sweeps, and in tests."""

    def __init__(self, timer: PointTimer) -> None:
        """Take the only timer."""
        super().__init__(lambda: timer, lambda: None)
        self.timer = timer

    @contextlib.contextmanager
    def start(self, cost_ratio: float | None = None) -> Iterator[PointTimer]:
        """The timer."""
        self.timer.use(cost_ratio)
        yield self.timer


class _Elsewhere(PointTimer):
    """Stands for the timer of another process: each lap waits for its result."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def lap(self, *arguments: Any, **named: Any) -> list[Lap | str]:
        laps: list[Lap | str] = self._executor.submit(_lap, *arguments, **named).result()
        return laps


_OPENED = list[PointTimer]()
"""In a process that times."""


def _open(open_timer: Callable[[], PointTimer], cost_ratio: float | None) -> None:
    _OPENED.append(open_timer())
    _OPENED[0].use(cost_ratio)


def _lap(*arguments: Any, **named: Any) -> list[Lap | str]:
    return _OPENED[0].lap(*arguments, **named)
