"""Replay many points on one split from cached predictions: their exact outputs, at a fraction of the cost of decoding each.

Points that cannot be replayed are decoded ahead, batch by batch, where several processes share the sweep. Where tokens are
drawn these are all points, which share what the models predict along equal texts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.console import progress
from tasks.corpora.example import Example
from tasks.decoding.decoder import BrokenLogitsError, Rows
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.method import DecodingMethod, Pair, Request
from tasks.decoding.native_loop import keeping_predictions
from tasks.decoding.predictions import LARGE_MODEL, SMALL_MODEL, PredictionCache
from tasks.decoding.registry import METHODS, ConfiguredMethod, decode, decode_all
from tasks.decoding.replay import NotReplayableError, replay_pair
from tasks.errors import InputError
from tasks.evaluation.settings import SweepSettings
from tasks.evaluation.sweep.fan_out import FanOut
from tasks.evaluation.sweep.grid import SweepPoint
from tasks.models.prompting import encode_sources
from tasks.models.settings import TextSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# The examples of a split, and what a point generates for them.


class Split:
    """The tokenised examples of one split, and the random subset of them that is timed."""

    def __init__(
        self, name: str, examples: list[Example], tokenizer: PreTrainedTokenizerBase, text: TextSettings, sweep: SweepSettings
    ) -> None:
        self.name = name
        self.examples = examples
        self.sources: Rows = encode_sources(tokenizer, [example.source for example in examples], text)
        rng = random.Random(f"{sweep.seed} {name}")  # noqa: S311 (a sample, not a secret)
        self.timed = rng.sample(range(len(examples)), min(sweep.latency_examples, len(examples)))


@dataclass
class Outputs:
    """Tokens and counts of a point on a split, example by example."""

    how: str
    """`replayed`, `decoded` or, of given texts, `scored`."""
    tokens: list[Sequence[int]] = field(default_factory=list)
    """New tokens by example."""
    further: list[Sequence[int]] = field(default_factory=list)
    """New tokens of further samples, one sample of all examples after the other; counts and work are the first one's."""
    log_likelihoods: list[float] = field(default_factory=list)
    """Of given texts by example, in nats; empty for other outputs."""
    counts: Counts = field(default_factory=Counts)
    """Summed over all examples."""
    work: list[tuple[int, int, int]] = field(default_factory=list)
    """By example large calls, checked positions and drafter steps (`results.files.WORK`)."""
    by_example: dict[int, Counts] = field(default_factory=dict)
    """Counts of the timed examples."""
    behaviour: int = 0
    """Of tokens and runs: equal for two points that generate the same tokens by the same runs on every example."""

    def timed(self, split: Split) -> list[Counts]:
        """Counts of the timed examples in the order of their latencies."""
        return [self.by_example[example] for example in split.timed]

    def add(self, example: int, generation: Generation, *, timed: bool) -> None:
        """Add the next example, by its index in the split."""
        counts = generation.counts
        tokens = tuple(generation.tokens)
        runs = (counts.small_steps, counts.large_calls, counts.fallbacks, *sorted(counts.kept.items()))
        self.behaviour += hash((example, tokens, generation.proposers.count("s"), runs))
        if timed:
            self.by_example[example] = counts
        self.tokens.append(tokens)
        positions = sum(width * calls for width, calls in counts.verified.items())
        self.work.append((counts.large_calls, positions, counts.small_steps))
        self.counts.add(counts)

    def extend(self, following: Outputs) -> None:
        """Add the examples that follow, which another process may have decoded."""
        self.behaviour += following.behaviour
        self.by_example |= following.by_example
        self.tokens += following.tokens
        self.further += following.further
        self.work += following.work
        self.counts.add(following.counts)


def decoded_outputs(point: ConfiguredMethod, pair: Pair, split: Split, request: Request, sweep: SweepSettings) -> Outputs:
    """The outputs of a point on a split, decoded in batches; where tokens are drawn, `sweep.samples` of each example."""
    sources = split.sources * (1 if request.sampling.greedy else sweep.samples)
    generations = decode_all(point.method, point.settings, pair, sources, request, sweep.quality_batch)
    return collect_outputs("decoded", generations, split)


def collect_outputs(how: str, generations: Iterable[Generation], split: Split, begin: int = 0) -> Outputs:
    """The outputs of a split from its generations, from the place `begin` on: of all examples, then of each further sample."""
    outputs, timed = Outputs(how), set(split.timed)
    for number, generation in enumerate(generations, start=begin):
        if number < len(split.examples):
            outputs.add(number, generation, timed=number in timed)
        else:
            outputs.further.append(tokens := tuple(generation.tokens))
            outputs.behaviour += hash((number, tokens))
    return outputs


# Replay, example by example.

_UNITS_A_PROCESS = 16
"""Units of work for each process: small enough that none waits long for the last one."""


@dataclass
class ReplayedGrid:
    """Outcomes of replaying a grid, or of decoding it where tokens are drawn, by the index of a point in it."""

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
class GridReplay:
    """A grid to be replayed on a split."""

    points: Sequence[SweepPoint]
    request: Request
    """Length limit, sampling and seed."""
    split: Split
    folder: Path
    """Stores the predictions of each example, so that an interrupted sweep or a larger grid computes only new ones."""
    known: Sequence[Sequence[int]] = ()
    """By example, a text along which both models predict in one run before the replay; empty for none."""
    decoded: bool = False
    """Decode the points instead."""
    samples: int = 1
    """Outputs of each example. Those of the first sample come first, all examples in order, then those of the next."""
    batch: int = 1
    """Outputs that are decoded together."""

    def opened(self, pair: Pair, on_example: Callable[[], object] = int) -> Callable[[range], ReplayedGrid]:
        """What replays some outputs, given by their places, and calls `on_example` after each.

        The models run where no prediction is cached; each prediction is computed once for all points.
        """
        if self.decoded:
            return functools.partial(self._decode, pair, on_example)
        cache = PredictionCache(pair, self.folder)
        methods = _composed(self.points, replay_pair(pair, cache), self.request)
        return functools.partial(self._replay, cache, methods, on_example)

    def _replay(
        self, cache: PredictionCache, composed: Mapping[int, DecodingMethod], on_example: Callable[[], object], examples: range
    ) -> ReplayedGrid:
        """Replay every point that allows it; a point is left out after its first failure."""
        methods, timed, limit = dict(composed), set(self.split.timed), self.request.max_new_tokens
        replayed = ReplayedGrid({index: Outputs("replayed") for index in methods})
        with _collector_paused():
            for example in examples:
                source, name, before = self.split.sources[example], f"{self.split.name}-{example}", cache.runs
                cache.open_source(source, name)
                if methods:
                    _predict_small_text(cache, limit)
                    if self.known:
                        _predict_along(cache, self.known[example])
                for index, method in list(methods.items()):
                    try:
                        [generation] = method.run([source], [example], limit)
                    except NotReplayableError:
                        del methods[index], replayed.outputs[index]
                    except RuntimeError as error:
                        replayed.errors[index] = f"{type(error).__name__}: {error}"
                        del methods[index], replayed.outputs[index]
                    else:
                        replayed.outputs[index].add(example, generation, timed=example in timed)
                if cache.runs > before:
                    cache.save(name)
                on_example()
        return replayed

    def _decode(self, pair: Pair, on_example: Callable[[], object], numbers: range) -> ReplayedGrid:
        """Decode every point on a batch of outputs, the points one after the other."""
        found, count = ReplayedGrid(), len(self.split.sources)
        sources = [self.split.sources[number % count] for number in numbers]
        with keeping_predictions(pair):
            for index, point in enumerate(self.points):
                try:
                    made = decode(point.method, point.settings, pair, sources, self.request, numbers)
                    found.outputs[index] = collect_outputs("decoded", made, self.split, numbers.start)
                except RuntimeError as error:
                    found.errors[index] = f"{type(error).__name__}: {error}"
        for _ in numbers:
            on_example()
        return found


def replay_grid(grid: GridReplay, pair: Pair, label: str, fan_out: FanOut | None = None) -> ReplayedGrid:
    """Replay a grid in one process or in several, with equal results.

    Args:
        grid: The grid and its split.
        pair: The models.
        label: Text before the progress bar.
        fan_out: The processes that share the examples; None: this one alone.
    """
    count = len(grid.split.sources) * grid.samples
    processes = 1 if fan_out is None else fan_out.size
    with progress(total=count, desc=label, unit="example", mininterval=2.0) as bar:
        own = grid.opened(pair, bar.update)
        size = math.ceil(count / processes)
        size = min(grid.batch, size) if grid.decoded else size if fan_out is None else math.ceil(size / _UNITS_A_PROCESS)
        units = [range(begin, min(begin + size, count)) for begin in range(0, count, max(1, size))]
        if fan_out is None:
            parts = list(map(own, units))
        else:
            parts = fan_out.map(units, own, grid.opened, lambda unit: bar.update(len(unit)))
    whole = parts[0]
    for following in parts[1:]:
        whole.extend(following)
    whole.errors = dict(sorted(whole.errors.items()))
    return whole


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


def _predict_along(cache: PredictionCache, text: Sequence[int]) -> None:
    """Cache both models' predictions at every prefix of the text; a point that reaches broken logits reports them itself."""
    nodes = cache.trie.root.path(text[:-1])
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
        with contextlib.suppress(InputError):  # the method needs a model's layers or heads, which the cache does not hold
            methods[index] = METHODS[point.method].make(point.settings, replaying, request)
    return methods


def duplicates(outputs: Mapping[int, Outputs], points: Sequence[SweepPoint]) -> dict[int, int]:
    """Points that behave exactly like an earlier point of their method on every example.

    Returns:
        Index of the point to the index of the first point like it.
    """
    first: dict[tuple[str, int], int] = {}
    found = {index: first.setdefault((points[index].method, outputs[index].behaviour), index) for index in sorted(outputs)}
    return {index: earliest for index, earliest in found.items() if earliest != index}
