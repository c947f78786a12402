"""Replay many points on one split from cached predictions: their exact outputs, at a fraction of the cost of decoding each."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from tasks.decoding.decoder import BrokenLogitsError
from tasks.decoding.method import DecodingMethod
from tasks.decoding.registry import Pair, Request, build_method
from tasks.decoding.replay.prediction_cache import PredictionCache
from tasks.decoding.replay.prefix_trie import LARGE_MODEL, SMALL_MODEL
from tasks.decoding.replay.replay_decoder import replay_pair
from tasks.decoding.replay.replayer import NotReplayableError
from tasks.errors import InputError
from tasks.evaluation.sweeping.grid import SweepPoint
from tasks.evaluation.sweeping.outputs import Outputs, Split


@dataclass
class ReplayedGrid:
    """Outcomes of replaying a grid, by the index of a point in it."""

    outputs: dict[int, Outputs] = field(default_factory=dict)
    """Points that failed or cannot be replayed are missing."""
    errors: dict[int, str] = field(default_factory=dict)
    """Failures of a model, such as broken logits, at points that reached them."""


def replay_grid(
    points: Sequence[SweepPoint],
    pair: Pair,
    request: Request,
    split: Split,
    folder: Path,
    label: str,
    known: Sequence[Sequence[Sequence[int]]] = (),
) -> ReplayedGrid:
    """Replay every point that allows it, example by example. Each prediction is computed once for all points.

    Args:
        points: The grid.
        pair: The models, which run where no prediction is cached.
        request: Length limit, sampling and seed.
        split: The examples.
        folder: Stores the predictions of each example, so that an interrupted sweep or a larger grid computes only new ones.
        label: Text before the progress bar.
        known: Texts by example, any number of times: before the replay, both models predict along each text in one run.
    """
    cache = PredictionCache(pair, folder)
    replayed = ReplayedGrid()
    methods: dict[int, DecodingMethod] = _composed(points, replay_pair(pair, cache), request)
    replayed.outputs = {index: Outputs("replayed") for index in methods}
    timed = set(split.timed)
    with _collector_paused():
        for example, source in enumerate(tqdm(split.sources, desc=label, unit="example", mininterval=2.0)):
            name, before = f"{split.name}-{example}", cache.runs
            cache.open_source(source, name)
            if methods:
                _predict_small_text(cache, request.max_new_tokens)
                _predict_along(cache, [texts[example] for texts in known])
            for index, method in list(methods.items()):
                try:
                    [generation] = method.run([source], [example], request.max_new_tokens)
                except NotReplayableError:
                    del methods[index], replayed.outputs[index]
                except RuntimeError as error:
                    replayed.errors[index] = f"{type(error).__name__}: {error}"
                    del methods[index], replayed.outputs[index]
                else:
                    replayed.outputs[index].add(generation, timed=example in timed)
            if cache.runs > before:
                cache.save(name)
    return replayed


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
