"""Replay many points on one split from cached predictions: their exact outputs, at a fraction of the cost of decoding each."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.console import progress
from tasks.decoding.decoder import BrokenLogitsError, Rows
from tasks.decoding.method import DecodingMethod
from tasks.decoding.registry import Pair, Request, build_method
from tasks.decoding.replay.prediction_cache import PredictionCache
from tasks.decoding.replay.prefix_trie import LARGE_MODEL, SMALL_MODEL
from tasks.decoding.replay.replay_decoder import replay_pair
from tasks.decoding.replay.replayer import NotReplayableError
from tasks.errors import InputError
from tasks.evaluation.sweeping.fan_out import ALONE, FanOut
from tasks.evaluation.sweeping.grid import SweepPoint
from tasks.evaluation.sweeping.outputs import Outputs, Split

_UNITS_A_PROCESS = 16
"""Units of work for each process: small enough that none waits long for the last one."""


@dataclass
class ReplayedGrid:
    """Outcomes of replaying a grid, by the index of a point in it."""

    outputs: dict[int, Outputs] = field(default_factory=dict)
    """Points that failed or cannot be replayed are missing."""
    errors: dict[int, str] = field(default_factory=dict)
    """Failures of a model, such as broken logits, at points that reached them; in the order of the grid."""

    def extend(self, following: ReplayedGrid) -> None:
        """Add the examples that follow; of a point that fails, the first failure counts."""
        for index in list(self.outputs):
            if index in following.outputs:
                self.outputs[index].extend(following.outputs[index])
            else:
                del self.outputs[index]
                if index in following.errors:
                    self.errors[index] = following.errors[index]


@dataclass(frozen=True)
class ReplayUnit:
    """Consecutive examples of a split, which one process replays."""

    split: str
    first: int
    """Index of the first example."""
    sources: Rows
    timed: frozenset[int]
    """Indices of the timed examples among them."""
    known: Sequence[Sequence[Sequence[int]]]
    """By example, texts along which both models predict in one run before the replay."""


class GridReplay:
    """Replays every point of a grid that allows it, example by example. Each prediction is computed once for all points."""

    def __init__(
        self,
        points: Sequence[SweepPoint],
        request: Request,
        folder: Path,
        pair: Pair,
        on_example: Callable[[], object] = int,
    ) -> None:
        """Compose the points with a cache of predictions.

        Args:
            points: The grid.
            request: Length limit, sampling and seed.
            folder: Stores the predictions of each example.
            pair: The models, which run where no prediction is cached.
            on_example: Called after each example.
        """
        self._cache = PredictionCache(pair, folder)
        self._methods = _composed(points, replay_pair(pair, self._cache), request)
        self._limit = request.max_new_tokens
        self._on_example = on_example

    def __call__(self, unit: ReplayUnit) -> ReplayedGrid:
        """Replay some examples; a point is left out after its first failure."""
        methods = dict(self._methods)
        replayed = ReplayedGrid({index: Outputs("replayed") for index in methods})
        with _collector_paused():
            for example, (source, known) in enumerate(zip(unit.sources, unit.known, strict=True), unit.first):
                name, before = f"{unit.split}-{example}", self._cache.runs
                self._cache.open_source(source, name)
                if methods:
                    _predict_small_text(self._cache, self._limit)
                    _predict_along(self._cache, known)
                for index, method in list(methods.items()):
                    try:
                        [generation] = method.run([source], [example], self._limit)
                    except NotReplayableError:
                        del methods[index], replayed.outputs[index]
                    except RuntimeError as error:
                        replayed.errors[index] = f"{type(error).__name__}: {error}"
                        del methods[index], replayed.outputs[index]
                    else:
                        replayed.outputs[index].add(example, generation, timed=example in unit.timed)
                if self._cache.runs > before:
                    self._cache.save(name)
                self._on_example()
        return replayed


def replay_grid(
    points: Sequence[SweepPoint],
    pair: Pair,
    request: Request,
    split: Split,
    folder: Path,
    label: str,
    known: Sequence[Sequence[Sequence[int]]] = (),
    fan_out: FanOut = ALONE,
) -> ReplayedGrid:
    """Replay a grid on a split, in one process or in several, with equal results.

    Args:
        points: The grid.
        pair: The models, which run where no prediction is cached.
        request: Length limit, sampling and seed.
        split: The examples.
        folder: Stores the predictions of each example, so that an interrupted sweep or a larger grid computes only new ones.
        label: Text before the progress bar.
        known: Texts by example, any number of times: before the replay, both models predict along each text in one run.
        fan_out: The processes that share the examples.
    """
    with progress(total=len(split.sources), desc=label, unit="example", mininterval=2.0) as bar:
        own = GridReplay(points, request, folder, pair, bar.update)
        first, *rest = _units(split, known, fan_out.size)
        # Here and alone: a method that measures what its drafter costs does so in the first text, for all processes.
        whole = own(first)
        others = fan_out.map(
            rest,
            own,
            functools.partial(GridReplay, points, request, folder),
            pair,
            lambda unit: bar.update(len(unit.sources)),
        )
    for following in others:
        whole.extend(following)
    whole.errors = dict(sorted(whole.errors.items()))
    return whole


def _units(split: Split, known: Sequence[Sequence[Sequence[int]]], processes: int) -> list[ReplayUnit]:
    """Cut a split into units of work: one for one process, or the first example alone and then equal parts."""
    count = len(split.sources)
    size = max(1, math.ceil(count / (_UNITS_A_PROCESS * processes)))
    cuts = [0, count] if processes == 1 else [0, *range(1, count, size), count]
    timed = frozenset(split.timed)
    return [
        ReplayUnit(
            split.name,
            first,
            split.sources[first:end],
            timed & frozenset(range(first, end)),
            [[texts[example] for texts in known] for example in range(first, end)],
        )
        for first, end in itertools.pairwise(cuts)
    ]


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which would go over the nodes of tries again and again; these are taken apart instead."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _predict_along(cache: PredictionCache, texts: Sequence[Sequence[int]]) -> None:
    """Cache both models' predictions at every prefix of the texts; a point that reaches broken logits reports them itself."""
    for text in texts:
        nodes = [cache.trie.root]
        for token in text[:-1]:
            nodes.append(nodes[-1].step(token))
        for side in (SMALL_MODEL, LARGE_MODEL):
            with contextlib.suppress(BrokenLogitsError):
                cache.read(side, nodes)


def _predict_small_text(cache: PredictionCache, limit: int) -> None:
    """Cache the small model's predictions along its own text."""
    if cache.trie.root.statistics[SMALL_MODEL] is None:
        with contextlib.suppress(BrokenLogitsError):
            cache.read_ahead(SMALL_MODEL, cache.trie.root, limit)


def _composed(points: Sequence[SweepPoint], replaying: Pair, request: Request) -> dict[int, DecodingMethod]:
    methods = {}
    for index, point in enumerate(points):
        try:
            methods[index] = build_method(point.method, point.settings, replaying, request)
        except InputError:  # the method needs a model's layers or heads, which the cache does not hold
            continue
    return methods


def duplicates(outputs: Mapping[int, Outputs], points: Sequence[SweepPoint]) -> dict[int, int]:
    """Points that behave exactly like an earlier point of their method on every example.

    Returns:
        Index of the point to the index of the first point like it.
    """
    first: dict[tuple[str, int], int] = {}
    found = {}
    for index in sorted(outputs):
        earliest = first.setdefault((points[index].method, outputs[index].behaviour), index)
        if earliest != index:
            found[index] = earliest
    return found
