"""Time vanilla and the fastest chosen points at several batch sizes, on the same texts, side by side.

At batch 1 the fastest executor runs each method, as in the sweep. Larger batches of a speculative method run in the general
loop, which decides between two model runs in Python; so does vanilla.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.decoding.decoder import TokenGuarantee
from tasks.decoding.generation import Generation
from tasks.decoding.method import DecodingMethod
from tasks.decoding.registry import build_method
from tasks.errors import InputError
from tasks.evaluation.results.codec import Source, decode, encode, parse
from tasks.evaluation.results.pair import BatchTiming, BatchTimings, VanillaBatch
from tasks.evaluation.results.rows import SweepRow, TimedRow
from tasks.evaluation.selection.choosing import choose_rows
from tasks.evaluation.settings import CHOICES, MarginSettings
from tasks.evaluation.sweeping.grid import VANILLA, SweepPoint
from tasks.evaluation.sweeping.outputs import Split
from tasks.evaluation.sweeping.point_evaluator import PointEvaluator, is_vanillas_output
from tasks.evaluation.sweeping.token_check import TimedTokensError, guarantee_of
from tasks.evaluation.timing import on_threads
from tasks.files import atomic_write
from tasks.fingerprint import fingerprint

_ROUNDS = 3

Batch = list[int]
"""Examples of the split that are decoded side by side."""


def points_by_batch(rows: Sequence[SweepRow], points: Sequence[SweepPoint], margins: MarginSettings) -> list[SweepPoint]:
    """The points to time: the fastest choice for each of `CHOICES`, and the fastest one with vanilla's own output.

    Args:
        rows: Of the sweep; the choices are those of the validation split.
        points: The grid.
        margins: What a choice may lose.
    """
    found = {key: rows[index] for key, index in choose_rows(rows, margins).items() if index is not None}
    groups: list[Iterable[SweepRow]] = [[row for (_, choice), row in found.items() if choice == wanted] for wanted in CHOICES]
    by_row = {(point.method, str(point.row_settings)): point for point in points}
    own_output = [row for row in found.values() if is_vanillas_output(by_row[row.method, str(row.settings)])]
    fastest = [max(group, key=_speedup, default=None) for group in (*groups, own_output)]
    wanted_rows = [row for row in fastest if row is not None]
    return list(dict.fromkeys(by_row[row.method, str(row.settings)] for row in wanted_rows))


def _speedup(row: SweepRow) -> float:
    return row.speedup if isinstance(row, TimedRow) else 0.0


@dataclass
class _Lap:
    """What one contender took at one batch size in one round, batch by batch."""

    seconds: list[float] = field(default_factory=list)
    texts: int = 0
    tokens: int = 0


_Laps = dict[tuple[SweepPoint, int], list[_Lap]]
"""By contender and batch size, a lap a round; all rounds have the same batches."""


class BatchTimer:
    """Times points on a few examples of a split in batches."""

    def __init__(self, evaluator: PointEvaluator, split: Split) -> None:
        """Take the evaluator of the sweep and the examples."""
        sweep = evaluator.sweep
        rng = random.Random(f"{sweep.seed} batches {split.name}")  # noqa: S311 (a sample, not a secret)
        count = min(sweep.batch_examples, len(split.examples))
        # In random order, so that texts of unequal length share a batch.
        self._examples = rng.sample(range(len(split.examples)), count)
        self._sizes = [size for size in sweep.batch_sizes if size <= count]
        self._evaluator, self._split, self._rng = evaluator, split, rng
        self._known: dict[tuple[SweepPoint, int], Sequence[int]] = {}

    def load_or_measure(self, points: Sequence[SweepPoint], cache: Path) -> BatchTimings:
        """What `measure` gives, from the folder of an earlier process of the same sweep if it measured the same there."""
        wanted = {"points": list(map(str, points)), "sizes": self._sizes, "examples": self._examples}
        path = cache / f"batches-{fingerprint(wanted, [], [])}.json"
        source = Source(str(path), "remove it")
        with contextlib.suppress(FileNotFoundError, InputError):
            return decode(BatchTimings, parse(path.read_text(encoding="utf-8"), source), source)
        found = self.measure(points)
        if found.error is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, json.dumps(encode(found)))
        return found

    def measure(self, points: Sequence[SweepPoint]) -> BatchTimings:
        """Time the points and vanilla in rounds: in each, all batch sizes, and at each batch all contenders back to back.

        What cannot be measured leaves its error in the record, and does not fail the sweep.
        """
        record = BatchTimings(split=self._split.name, examples=len(self._examples))
        evaluator = self._evaluator
        try:
            contenders = {
                point: build_method(point.method, point.settings, evaluator.pair, evaluator.request)
                for point in (VANILLA, *points)
            }
            with on_threads(evaluator.sweep.latency_threads):
                for point, method in contenders.items():
                    self._learn(point, method)
                laps: _Laps = {(point, size): [] for point in contenders for size in self._sizes}
                for _ in range(_ROUNDS):
                    self._round(contenders, laps)
        except RuntimeError as error:
            return BatchTimings(split=record.split, examples=record.examples, error=f"{type(error).__name__}: {error}")
        return BatchTimings(
            split=record.split,
            examples=record.examples,
            vanilla=[_vanilla(size, laps[VANILLA, size], laps[VANILLA, self._sizes[0]]) for size in self._sizes],
            points=[_timing(point, size, laps) for point in points for size in self._sizes],
        )

    def _learn(self, point: SweepPoint, method: DecodingMethod) -> None:
        """Keep the tokens that timed calls have to generate; decoding them warms the caches as well."""
        if is_vanillas_output(point):
            outputs = self._evaluator.vanilla(self._split).tokens
            self._known |= {(point, example): outputs[example] for example in self._examples}
        generations = self._decode(method, self._examples)
        for example, one in zip(self._examples, generations, strict=True):
            self._known.setdefault((point, example), one.tokens)

    def _round(self, contenders: Mapping[SweepPoint, DecodingMethod], laps: _Laps) -> None:
        for size in self._rng.sample(self._sizes, len(self._sizes)):
            for point in contenders:
                laps[point, size].append(_Lap())
            for begin in range(0, len(self._examples) // size * size, size):
                batch = self._examples[begin : begin + size]
                for point in self._rng.sample(list(contenders), len(contenders)):
                    self._time(point, contenders[point], batch, laps[point, size][-1])

    def _time(self, point: SweepPoint, method: DecodingMethod, batch: Batch, lap: _Lap) -> None:
        clock = self._evaluator.clock
        begun = clock()
        generations = self._decode(method, batch)
        lap.seconds.append(clock() - begun)
        lap.texts += len(batch)
        lap.tokens += sum(len(one.tokens) for one in generations)
        self._check(point, batch, generations)

    def _decode(self, method: DecodingMethod, batch: Batch) -> list[Generation]:
        return method.run([self._split.sources[example] for example in batch], batch, self._evaluator.request.max_new_tokens)

    def _check(self, point: SweepPoint, batch: Batch, generations: Sequence[Generation]) -> None:
        """Refuse other tokens than those known, where the runtimes and the sampling promise the same."""
        evaluator = self._evaluator
        if not evaluator.request.sampling.greedy or guarantee_of(evaluator.pair) is not TokenGuarantee.EQUAL:
            return
        for example, one in zip(batch, generations, strict=True):
            if tuple(one.tokens) != tuple(self._known[point, example]):
                raise TimedTokensError(f"{point}: batches of {len(batch)} changed the tokens of {self._split.name} {example}")


def _vanilla(size: int, laps: Sequence[_Lap], alone: Sequence[_Lap]) -> VanillaBatch:
    """Vanilla at a batch size, beside itself at batch 1."""
    rate, rate_alone = (one[0].tokens / _seconds(one) for one in (laps, alone))
    return VanillaBatch(batch_size=size, tokens_per_second=rate, throughput=rate / rate_alone)


def _timing(point: SweepPoint, size: int, laps: _Laps) -> BatchTiming:
    own, vanilla = laps[point, size], laps[VANILLA, size]
    rounds = [sum(theirs.seconds) / sum(ours.seconds) for theirs, ours in zip(vanilla, own, strict=True)]
    return BatchTiming(
        method=point.method,
        settings=point.row_settings,
        batch_size=size,
        # Of the rounds' ratios, so that it lies within their range; a ratio of medians need not.
        speedup=statistics.median(rounds),
        rounds=rounds,
    )


def _seconds(laps: Sequence[_Lap]) -> float:
    """All batches, each the median of its rounds: against single slow calls."""
    batches: Iterable[tuple[float, ...]] = zip(*(lap.seconds for lap in laps), strict=True)
    return sum(statistics.median(rounds) for rounds in batches)
