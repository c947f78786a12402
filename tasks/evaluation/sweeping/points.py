"""What is swept, on what, and what it gives: points, splits, outputs."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.corpora.example import Example
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.settings import VanillaSettings
from tasks.evaluation.frontier import VANILLA as LARGE_ALONE
from tasks.evaluation.rows import Row, as_json
from tasks.evaluation.settings import SweepSettings
from tasks.models.tokenizers import encode


@dataclass(frozen=True)
class SweepPoint:
    """What is measured: a method at one setting."""

    method: str
    settings: Any

    def fields(self) -> Row:
        """How a row names the point."""
        return {"method": self.method, "settings": as_json(dataclasses.asdict(self.settings))}


VANILLA = SweepPoint(LARGE_ALONE, VanillaSettings())
BASELINES = (VANILLA, SweepPoint("vanilla_small", VanillaSettings()))


class Split:
    """The examples of one split, tokenised, and those among them that are timed."""

    def __init__(self, name: str, examples: list[Example], tokenizer: Any, limit: int, sweep: SweepSettings) -> None:
        self.name = name
        self.examples = examples
        self.sources: Rows = encode(tokenizer, [example.source for example in examples], limit)
        rng = random.Random(f"{sweep.seed} {name}")  # noqa: S311 (a sample, not a secret)
        self.timed = rng.sample(range(len(examples)), min(sweep.latency_examples, len(examples)))


@dataclass
class Outputs:
    """What a point gives on a split, example by example."""

    how: str
    """`replayed` or `decoded`."""
    tokens: list[Sequence[int]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    """Of all examples together."""
    by_example: dict[int, Counts] = field(default_factory=dict)
    """Of those that are timed."""
    behaviour: int = 0
    """Equal where two points gave the same tokens by the same runs on every example."""

    def timed(self, split: Split) -> list[Counts]:
        """The counts of the timed examples, in the order in which latencies are given."""
        return [self.by_example[example] for example in split.timed]

    def add(self, generation: Generation, *, timed: bool) -> None:
        """Takes the next example."""
        counts = generation.counts
        tokens = tuple(generation.tokens)
        runs = (counts.small_steps, counts.large_calls, counts.fallbacks, *sorted(counts.kept.items()))
        self.behaviour = hash((self.behaviour, tokens, generation.proposers.count("s"), runs))
        if timed:
            self.by_example[len(self.tokens)] = counts
        self.tokens.append(tokens)
        self.counts.add(counts)


def collect_outputs(how: str, generations: Iterable[Generation], split: Split) -> Outputs:
    """Generations of all examples of a split, in order."""
    outputs, timed = Outputs(how), set(split.timed)
    for index, generation in enumerate(generations):
        outputs.add(generation, timed=index in timed)
    return outputs
