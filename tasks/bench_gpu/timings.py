"""Timings of one pair of models, and of `generate` on the same inputs."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from tasks.bench.baselines import assisted, generate
from tasks.bench.timing import Work, median_ratio, time_interleaved, timed_by
from tasks.bench_gpu.roofline import step_bytes
from tasks.decoding.decoder import Capabilities, Decoder, Rows, StopRule
from tasks.decoding.generation import total
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes.fused import EACH_STEP, ONE_AHEAD, WHOLE_DRAFT, FusedDecoder, SyncPolicy
from tasks.decoding.settings import BildSettings, SpeculativeSettings, VanillaSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BATCH = 32
PACES = {"look at each step": EACH_STEP, "one step ahead": ONE_AHEAD, "look once a draft": WHOLE_DRAFT}
_STEPS = 30
_VERIFIED = (1, 2, 4, 6, 11)
_WRITTEN = 8
RATIOS = {
    "vanilla_over_generate": ("vanilla", "generate"),
    "drafter_step_over_generate": ("drafter", "generate, drafter"),
    "speculative_over_assisted": ("speculative", "assisted"),
    "bild_over_vanilla": ("bild", "vanilla"),
    "batched_over_generate": ("batched", "generate, batched"),
}


@dataclass(frozen=True)
class PairBenchmark:
    """A loaded pair of models, its sources, and how it is timed."""

    models: tuple[PreTrainedModel, PreTrainedModel]
    """The small and the large model of `transformers`."""
    pair: Pair
    sources: Rows
    limit: int
    rounds: int
    clock: Callable[[], float]

    def decoded(self, method: str, settings: object, count: int = 1) -> Work:
        """Decode the sources of a round with a method of this project."""
        return lambda round_index: decode(method, settings, self.pair, self.window(round_index, count), Request(self.limit))

    def generated(self, model: PreTrainedModel, count: int = 1, **options: Any) -> Work:
        """Decode the sources of a round with `generate`."""
        return lambda round_index: generate(model, self.window(round_index, count), self.limit, **options)

    def window(self, round_index: int, count: int) -> Rows:
        """The `count` sources of a round."""
        return [self.sources[(round_index * count + offset) % len(self.sources)] for offset in range(count)]

    def timed(self, ours: dict[str, Work], theirs: dict[str, Work]) -> dict[str, list[float]]:
        """Seconds of each contender in each round. Ours run each round once before, to capture their CUDA graphs."""
        for run in ours.values():
            for round_index in range(self.rounds + 1):
                run(round_index)
        contenders = {name: timed_by(run, self.clock) for name, run in (ours | theirs).items()}
        return time_interleaved(contenders, self.rounds, random.Random(0))  # noqa: S311 (an order, not a secret)

    def paced(self, pace: SyncPolicy, run: Work) -> Work:
        """The work with both models under a synchronisation policy."""

        def with_pace(round_index: int) -> None:
            decoders = [one for one in (self.pair.small, self.pair.large) if isinstance(one, FusedDecoder)]
            before = [one.sync_policy for one in decoders]
            for one in decoders:
                one.sync_policy = pace
            try:
                run(round_index)
            finally:
                for one, kept in zip(decoders, before, strict=True):
                    one.sync_policy = kept

        return with_pace


def comparisons(bench: PairBenchmark) -> dict[str, object]:
    """Ratios to `generate`, and milliseconds per token of every contender, the encoder included."""
    small, large = bench.models
    length = SpeculativeSettings().draft_length
    ours: dict[str, Work] = {
        "vanilla": bench.decoded("vanilla_large", VanillaSettings()),
        "drafter": bench.decoded("vanilla_small", VanillaSettings()),
        "speculative": bench.decoded("speculative", SpeculativeSettings()),
        "bild": bench.decoded("bild", BildSettings()),
        "batched": bench.decoded("vanilla_large", VanillaSettings(), BATCH),
    }
    theirs: dict[str, Work] = {
        "generate": bench.generated(large),
        "generate, drafter": bench.generated(small),
        "assisted": lambda round_index: assisted(large, small, bench.window(round_index, 1)[0], bench.limit, length),
        "assisted, its own lengths": lambda round_index: assisted(large, small, bench.window(round_index, 1)[0], bench.limit),
        "generate, batched": bench.generated(large, BATCH),
    }
    seconds = bench.timed(ours, theirs)
    if statistics.median(seconds["assisted, its own lengths"]) < statistics.median(seconds["assisted"]):
        seconds["assisted"] = seconds["assisted, its own lengths"]
    tokens = {name: bench.limit * (BATCH if "batched" in name else 1) for name in seconds}
    return {
        "ratios": {name: round(median_ratio(seconds[one], seconds[other]), 3) for name, (one, other) in RATIOS.items()},
        "ms_per_token": {name: milliseconds(taken) / tokens[name] for name, taken in seconds.items()},
        "acceptance": {method: _acceptance(bench, method) for method in ("speculative", "bild")},
    }


def _acceptance(bench: PairBenchmark, method: str) -> dict[str, float]:
    settings = {"speculative": SpeculativeSettings(), "bild": BildSettings()}[method]
    counts = total(decode(method, settings, bench.pair, bench.sources[: bench.rounds + 1], Request(bench.limit)))
    return {
        "accepted_of_drafted": round(counts.accepted / max(1, counts.drafted), 3),
        "large_calls_per_token": round(counts.large_calls / counts.tokens, 3),
        "small_steps_per_token": round(counts.small_steps / counts.tokens, 3),
    }


def sync_policies(bench: PairBenchmark) -> dict[str, dict[str, float]]:
    """Milliseconds per token of the drafter and of the methods that draft, under each synchronisation policy."""
    works = {
        "drafter": bench.decoded("vanilla_small", VanillaSettings()),
        "speculative": bench.decoded("speculative", SpeculativeSettings()),
        "bild": bench.decoded("bild", BildSettings()),
    }
    ours = {f"{name} | {label}": bench.paced(pace, run) for name, run in works.items() for label, pace in PACES.items()}
    seconds = bench.timed(ours, {})
    return {name: {label: milliseconds(seconds[f"{name} | {label}"]) / bench.limit for label in PACES} for name in works}


class WithoutDeviceCheck:
    """A decoder that does not declare `check_draft`, so that the loop verifies drafts on the host."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def __getattr__(self, name: str) -> object:
        return getattr(self._decoder, name)

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._decoder.capabilities, check_draft=None)


def verification_sites(bench: PairBenchmark) -> dict[str, dict[str, float]]:
    """Milliseconds per token of methods that verify drafts, with drafts checked on the device or by the loop on the host."""
    without_device_check = cast(Decoder, WithoutDeviceCheck(bench.pair.large))
    ways = {"on the device": bench, "by the loop": replace(bench, pair=replace(bench.pair, large=without_device_check))}
    methods: dict[str, object] = {"speculative": SpeculativeSettings(), "bild": BildSettings()}
    ours = {
        f"{method} | {way}": one.decoded(method, settings) for method, settings in methods.items() for way, one in ways.items()
    }
    seconds = bench.timed(ours, {})
    return {method: {way: milliseconds(seconds[f"{method} | {way}"]) / bench.limit for way in ways} for method in methods}


def steps(bench: PairBenchmark, bandwidth: float) -> dict[str, object]:
    """Milliseconds of single runs of each model, and their ratio to the memory-bandwidth bound of one token."""
    result: dict[str, object] = {}
    source = bench.sources[0]
    for model, name, decoder in zip(bench.models, ("small", "large"), (bench.pair.small, bench.pair.large), strict=True):
        taken = step_milliseconds(bench, decoder, _VERIFIED)
        moved = step_bytes(model, 1, _WRITTEN, len(source) * (1 if model.config.is_encoder_decoder else 0))
        floor = 1000 * moved / bandwidth
        over = {"floor_ms": floor, "run_over_floor": taken["1"] / floor, "chained_over_floor": taken["chained"] / floor}
        result[name] = {"ms": taken, "bytes_moved": moved} | over
    return result


def step_milliseconds(bench: PairBenchmark, decoder: Any, counts: Sequence[int]) -> dict[str, float]:
    """Milliseconds of a run over each number of new tokens, and of a step of a greedy loop that synchronises once."""
    [start] = decoder.start(decoder.encode([bench.sources[0]]))
    decoder.forward([start + [2] * _WRITTEN])
    kept, taken = decoder.lengths[0], {}
    for count in counts:
        seconds = []
        for _ in range(_STEPS + 3):
            begun = bench.clock()
            decoder.forward([[3] * count])
            seconds.append(bench.clock() - begun)
            decoder.rewind([kept])
        taken[str(count)] = milliseconds(seconds[3:])
    before, decoder.sync_policy = decoder.sync_policy, WHOLE_DRAFT
    seconds = []
    for _ in range(6):
        begun = bench.clock()
        found = decoder.continue_greedily([3], _STEPS, StopRule(), with_logits=False)
        seconds.append((bench.clock() - begun) / len(found.tokens))
        decoder.rewind([kept])
    decoder.sync_policy = before
    return taken | {"chained": milliseconds(seconds[1:])}


def encoder_milliseconds(bench: PairBenchmark) -> float:
    """Milliseconds of encoding one source, the cross-attention keys and values included."""
    decoder, seconds = bench.pair.large, []
    for _ in range(_STEPS):
        begun = bench.clock()
        decoder.start(decoder.encode([bench.sources[0]]))
        seconds.append(bench.clock() - begun)
    return milliseconds(seconds[3:])


def peaks(bench: PairBenchmark) -> dict[str, float]:
    """Peak GiB allocated, with the models and everything cached by earlier runs; empty on a CPU."""
    large = bench.models[1]
    works = {
        "vanilla": bench.decoded("vanilla_large", VanillaSettings()),
        "generate": bench.generated(large),
        "batched": bench.decoded("vanilla_large", VanillaSettings(), BATCH),
        "generate, batched": bench.generated(large, BATCH),
    }
    found: dict[str, float] = {}
    if large.device.type == "cuda":
        for name, run in works.items():
            with _peak(found, name):
                run(0)
    return found


@contextmanager
def _peak(found: dict[str, float], name: str) -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    yield
    torch.cuda.synchronize()
    found[name] = round(torch.cuda.max_memory_allocated() / 2**30, 3)


def milliseconds(seconds: list[float]) -> float:
    """The median of seconds, in milliseconds."""
    return 1000 * statistics.median(seconds)
