"""The examples of a split, and what a point generates for them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tasks.corpora.example import Example
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts, Generation
from tasks.evaluation.settings import SweepSettings
from tasks.models.prompting import encode_sources
from tasks.models.settings import TextSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Split:
    """The tokenised examples of one split, and the random subset of them that is timed."""

    def __init__(
        self,
        name: str,
        examples: list[Example],
        tokenizer: PreTrainedTokenizerBase,
        text: TextSettings,
        sweep: SweepSettings,
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
    log_likelihoods: list[float] = field(default_factory=list)
    """Of given texts by example, in nats; empty for other outputs."""
    counts: Counts = field(default_factory=Counts)
    """Summed over all examples."""
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
        self.counts.add(counts)

    def extend(self, following: Outputs) -> None:
        """Add the examples that follow, which another process may have decoded."""
        self.behaviour += following.behaviour
        self.by_example |= following.by_example
        self.tokens += following.tokens
        self.counts.add(following.counts)


def collect_outputs(how: str, generations: Iterable[Generation], split: Split) -> Outputs:
    """The outputs of a split from its generations in order."""
    outputs, timed = Outputs(how), set(split.timed)
    for example, generation in enumerate(generations):
        outputs.add(example, generation, timed=example in timed)
    return outputs
