"""Measures two pairs on the same examples: quality on all of them, latency in rounds in which both decode the timed ones."""

from __future__ import annotations

import functools
import gc
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.corpora.example import Example
from tasks.decoding.batches import decode_all
from tasks.decoding.generation import Generation
from tasks.decoding.inference import DecodingPair, load_pair
from tasks.decoding.method import DecodingMethod, Request
from tasks.decoding.settings.configured import ConfiguredMethod
from tasks.evaluation.mismatches import count_mismatches
from tasks.evaluation.quality import Quality, score
from tasks.evaluation.results.rows import TimedRound
from tasks.evaluation.settings import SweepSettings
from tasks.evaluation.sweep.grid import SweepPoint
from tasks.evaluation.sweep.replay import Split, collect_outputs
from tasks.evaluation.timing import measure, on_threads, synchronised_clock
from tasks.machine import MachineSettings


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    name: str
    folder: Path
    """The folder of its pair."""
    point: ConfiguredMethod | None = None
    """What it decodes with; None: the pair's operating point."""


@dataclass(frozen=True)
class Setting:
    """The examples that both decode, and how they are measured."""

    examples: list[Example]
    split: str
    metric: str
    sweep: SweepSettings
    """Sampling, batch size, timed examples, warm-up, threads, resamples and seed."""
    machine: MachineSettings


@dataclass(frozen=True)
class MeasuredSides:
    """What was measured of two sides, in their order."""

    qualities: tuple[Quality, Quality]
    rounds: list[TimedRound]
    """Milliseconds of the first side, and of the second in the place of vanilla."""
    vocabularies_differ: bool
    runtimes: tuple[str, str]


def measure_sides(sides: tuple[Side, Side], setting: Setting, rounds: int, say: Callable[[str], object]) -> MeasuredSides:
    """Decode the examples with both sides, then time both.

    Both pairs are opened anew for each round, in alternating order. An advantage that lasts as long as a pair is open, such as
    where its weights happen to lie in memory, then counts as scatter of the rounds; within one opening it would be a bias.

    Args:
        sides: What is compared; two sides with one folder share its models.
        setting: The examples, and how they are measured.
        rounds: How often each timed example is decoded by both.
        say: Receives a line before each part.

    Raises:
        InputError: a folder is damaged, or its pair does not run with these settings.
        TimedTokensError: a timed call generated other tokens than were scored.
    """
    found: list[TimedRound] = []
    runners: list[_Runner] = []
    for number in range(rounds):
        opened = _open([side.folder for side in (sides if number % 2 == 0 else sides[::-1])], setting.machine)
        for side in () if runners else sides:
            say(f"{side.name}: {len(setting.examples)} examples of {setting.split} are decoded")
            runners.append(_Runner(side, setting, opened[side.folder]))
        say(f"round {number + 1} of {rounds}: {len(runners[0].split.timed)} examples are timed with both")
        found.append(_time_round(runners, [opened[side.folder] for side in sides], setting, number))
        del opened
        gc.collect()
    first, second = runners
    differ = first.vocabulary != second.vocabulary
    return MeasuredSides((first.quality, second.quality), found, differ, (first.runtime, second.runtime))


def _open(folders: Sequence[Path], machine: MachineSettings) -> dict[Path, DecodingPair]:
    device, dtype, runtime, threads = machine.device, machine.dtype, machine.runtime, machine.threads
    return {one: load_pair(one, device=device, dtype=dtype, runtime=runtime, threads=threads) for one in dict.fromkeys(folders)}


def _time_round(runners: Sequence[_Runner], pairs: Sequence[DecodingPair], setting: Setting, number: int) -> TimedRound:
    """Time each timed example with both, back to back in random order."""
    sweep = setting.sweep
    ours, theirs = (functools.partial(runner.run, runner.method(pair)) for runner, pair in zip(runners, pairs, strict=True))
    with on_threads(sweep.latency_threads):
        latencies = measure(
            ours,
            theirs,
            runners[0].split.timed,
            warmup=sweep.warmup_examples,
            rng=random.Random(f"{sweep.seed} promotion {number}"),  # noqa: S311 (an order, not a secret)
            clock=synchronised_clock(pairs[0].device),
        )
    if sweep.sampling.greedy:
        for runner, pair, timed in zip(runners, pairs, (latencies.method_outputs, latencies.vanilla_outputs), strict=True):
            count_mismatches(runner.point, timed, runner.outputs, runner.split, pair.opened.pair)
    return TimedRound(latency_ms=latencies.method, vanilla_latency_ms=latencies.vanilla)


class _Runner:
    """A side whose examples are encoded, decoded and scored; each round gives it a pair that was opened anew."""

    def __init__(self, side: Side, setting: Setting, pair: DecodingPair) -> None:
        sweep, chosen = setting.sweep, side.point or pair.manifest.point
        self.point = SweepPoint(chosen.method, chosen.settings)
        self.split = Split(setting.split, setting.examples, pair.tokenizer, pair.manifest.text, sweep)
        self.vocabulary = pair.tokenizer.get_vocab()
        self.runtime = pair.opened.described
        self._request = Request(pair.manifest.text.max_target_tokens, sweep.sampling, sweep.seed)
        generations = decode_all(
            *(self.point.method, self.point.settings, pair.opened.pair, self.split.sources),
            *(self._request, sweep.quality_batch),
        )
        self.outputs = collect_outputs("decoded", generations, self.split)
        texts = [pair.decode(tokens) for tokens in self.outputs.tokens]
        references = [example.references for example in setting.examples]
        self.quality = score(texts, references, setting.metric, sweep.bootstrap_samples, sweep.seed)

    def method(self, pair: DecodingPair) -> DecodingMethod:
        """Compose the method of this side with its pair."""
        return pair.method(self.point, self._request)

    def run(self, method: DecodingMethod, example: int) -> Generation:
        """Decode one example alone."""
        [generation] = method.run([self.split.sources[example]], [example], self._request.max_new_tokens)
        return generation
