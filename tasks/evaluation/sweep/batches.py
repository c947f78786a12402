"""Vanilla and the fastest chosen points of all drafters at several batch sizes, on the same texts, side by side.

At batch 1 the fastest executor runs each method, as in the sweep. Larger batches of a speculative method run in the general
loop, which decides between two model runs in Python; so does vanilla.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tasks.decoding.decoder import TokenGuarantee
from tasks.decoding.generation import Generation
from tasks.decoding.method import DecodingMethod, Pair, Request
from tasks.decoding.registry import METHODS
from tasks.evaluation.results.pair import BatchTiming, BatchTimings, VanillaBatch
from tasks.evaluation.results.rows import SweepRow, TimedRow
from tasks.evaluation.selection import choose_rows
from tasks.evaluation.settings import CHOICES, MarginSettings, SweepSettings
from tasks.evaluation.sweep.grid import VANILLA, Drafter, SweepPoint, is_vanillas_output
from tasks.evaluation.timing import Expected, TimedTokensError, guarantee_of, on_threads

if TYPE_CHECKING:
    from tasks.evaluation.sweep.replay import Split

_ROUNDS = 3


def points_by_batch(rows: Sequence[SweepRow], points: Sequence[SweepPoint], margins: MarginSettings) -> list[SweepPoint]:
    """The points to time: the fastest choice for each of `CHOICES`, and the fastest one with vanilla's own output.

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


_Contender = tuple[Drafter, SweepPoint]
_Laps = dict[tuple[_Contender, int], list[list[float]]]
"""By contender and batch size: the seconds of every batch, round by round; all rounds have the same batches."""


class BatchTimer:
    """Times points on a few examples of a split in batches."""

    def __init__(
        self, pairs: Mapping[Drafter, Pair], sweep: SweepSettings, clock: Callable[[], float], split: Split, request: Request
    ) -> None:
        """Take the pairs, and draw the examples."""
        self._rng = random.Random(f"{sweep.seed} batches {split.name}")  # noqa: S311 (a sample, not a secret)
        count = min(sweep.batch_examples, len(split.examples))
        # In random order, so that texts of unequal length share a batch.
        self._examples = self._rng.sample(range(len(split.examples)), count)
        self._sizes = [size for size in sweep.batch_sizes if size <= count]
        self._pairs, self._sweep, self._clock, self._split, self._request = pairs, sweep, clock, split, request
        self._known: dict[_Contender, Mapping[int, Sequence[int]]] = {}

    def measure(self, points: Mapping[Drafter, Sequence[SweepPoint]], vanilla: Expected) -> dict[Drafter, BatchTimings]:
        """Time the points and vanilla in rounds: in each, all batch sizes, and at each batch all contenders back to back.

        What cannot be measured leaves its error in the records, and does not fail the sweep.

        Args:
            points: By drafter.
            vanilla: The outputs of the large model alone.
        """
        about: dict[str, Any] = {"split": self._split.name, "examples": len(self._examples)}
        alone = next(iter(points)), VANILLA
        wanted = [alone, *((drafter, point) for drafter, own in points.items() for point in own)]
        try:
            contenders = {
                (drafter, point): METHODS[point.method].make(point.settings, self._pairs[drafter], self._request)
                for drafter, point in wanted
            }
            with on_threads(self._sweep.latency_threads):
                self._known = {one: self._outputs(one, method, vanilla) for one, method in contenders.items()}
                laps: _Laps = {(one, size): [] for one in contenders for size in self._sizes}
                for _ in range(_ROUNDS):
                    self._round(contenders, laps)
        except RuntimeError as error:
            return dict.fromkeys(points, BatchTimings(**about, error=f"{type(error).__name__}: {error}"))
        tokens = {size: sum(len(vanilla.tokens[one]) for batch in self._batches(size) for one in batch) for size in self._sizes}
        rates = {size: tokens[size] / _seconds(laps[alone, size]) for size in self._sizes}
        batches = [VanillaBatch(batch_size=size, throughput=rate / rates[self._sizes[0]]) for size, rate in rates.items()]
        return {
            drafter: BatchTimings(
                **about,
                vanilla=batches,
                points=[
                    batch_timing(point, size, laps[alone, size], laps[(drafter, point), size])
                    for point in own
                    for size in self._sizes
                ],
            )
            for drafter, own in points.items()
        }

    def _outputs(self, contender: _Contender, method: DecodingMethod, vanilla: Expected) -> Mapping[int, Sequence[int]]:
        """The tokens that timed calls have to generate, by example; decoding them warms the caches as well."""
        decoded = self._decode(method, self._examples)
        if is_vanillas_output(contender[1]):
            return vanilla.tokens
        return {example: one.tokens for example, one in zip(self._examples, decoded, strict=True)}

    def _batches(self, size: int) -> list[list[int]]:
        """Examples that are decoded side by side; an incomplete last batch is left out."""
        return [self._examples[begin : begin + size] for begin in range(0, len(self._examples) // size * size, size)]

    def _round(self, contenders: Mapping[_Contender, DecodingMethod], laps: _Laps) -> None:
        for size in self._rng.sample(self._sizes, len(self._sizes)):
            for contender in contenders:
                laps[contender, size].append([])
            for batch in self._batches(size):
                for contender in self._rng.sample(list(contenders), len(contenders)):
                    begun = self._clock()
                    generations = self._decode(contenders[contender], batch)
                    laps[contender, size][-1].append(self._clock() - begun)
                    self._check(contender, batch, generations)

    def _decode(self, method: DecodingMethod, batch: list[int]) -> list[Generation]:
        return method.run([self._split.sources[example] for example in batch], batch, self._request.max_new_tokens)

    def _check(self, contender: _Contender, batch: list[int], generations: Sequence[Generation]) -> None:
        """Refuse other tokens than those known, where the runtimes and the sampling promise the same."""
        drafter, point = contender
        if not self._request.sampling.greedy or guarantee_of(self._pairs[drafter]) is not TokenGuarantee.EQUAL:
            return
        for example, one in zip(batch, generations, strict=True):
            if tuple(one.tokens) != tuple(self._known[contender][example]):
                raise TimedTokensError(f"{point}: batches of {len(batch)} changed the tokens of {self._split.name} {example}")


def batch_timing(
    point: SweepPoint, size: int, vanilla: Sequence[Sequence[float]], own: Sequence[Sequence[float]]
) -> BatchTiming:
    """A point beside vanilla at the same batch size; the seconds of both by round and batch."""
    rounds = [sum(theirs) / sum(ours) for theirs, ours in zip(vanilla, own, strict=True)]
    return BatchTiming(
        method=point.method,
        settings=point.plain_settings,
        batch_size=size,
        # Of the rounds' ratios, so that it lies within their range; a ratio of medians need not.
        speedup=statistics.median(rounds),
        rounds=rounds,
    )


def _seconds(laps: Sequence[Sequence[float]]) -> float:
    """All batches, each the median of its rounds: against single slow calls."""
    return math.fsum(statistics.median(rounds) for rounds in zip(*laps, strict=True))
