"""One point of a sweep, measured: quality on the whole split, latency beside vanilla on a subset, raw counts."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

from tasks.corpora.example import Example
from tasks.decoding.batches import decode_all
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts, Generation, total
from tasks.decoding.settings import VanillaSettings
from tasks.decoding.strategies import METHODS, Pair, Request, decode
from tasks.evaluation.quality import difference_interval, score
from tasks.evaluation.rows import Row
from tasks.evaluation.settings import SweepSettings
from tasks.evaluation.statistics import ratio_interval
from tasks.evaluation.timing import measure, on_threads, synchronised_clock
from tasks.models.tokenizers import encode


@dataclass(frozen=True)
class Point:
    """What is measured: a method at one setting."""

    method: str
    settings: Any

    def fields(self) -> Row:
        """How a row names the point; infinity, which JSON lacks, is written as text."""
        values = dataclasses.asdict(self.settings)
        return {
            "method": self.method,
            "settings": {name: "inf" if value == float("inf") else value for name, value in values.items()},
        }


VANILLA = Point("vanilla_large", VanillaSettings())


class Split:
    """The examples of one split, tokenised, and those among them that are timed."""

    def __init__(self, name: str, examples: list[Example], tokenizer: Any, limit: int, sweep: SweepSettings) -> None:
        self.name = name
        self.examples = examples
        self.sources: Rows = encode(tokenizer, [example.source for example in examples], limit)
        chance = random.Random(f"{sweep.seed} {name}")  # noqa: S311 (a sample, not a secret)
        self.timed = chance.sample(range(len(examples)), min(sweep.latency_examples, len(examples)))


class Bench:
    """A pair of models, ready to be measured."""

    def __init__(self, pair: Pair, tokenizer: Any, metric: str, request: Request, sweep: SweepSettings, device: str) -> None:
        self.pair = pair
        self.tokenizer = tokenizer
        self.metric = metric
        self.request = request
        self.sweep = sweep
        self.clock = synchronised_clock(device)
        self._vanilla: dict[str, list[str]] = {}

    def row(self, point: Point, split: Split) -> Row:
        """The measurements of a point; where decoding failed, its error and no number.

        A method that runs out of memory or meets broken logits costs its own row, not the sweep.
        """
        fields = {
            "split": split.name,
            **point.fields(),
            "lossless": METHODS[point.method].lossless,
            "metric": self.metric,
            "examples": len(split.examples),
            "sampling": dataclasses.asdict(self.request.sampling),
        }
        try:
            return {**fields, **self._quality(point, split), **self._latency(point, split)}
        except RuntimeError as error:
            return {**fields, "error": f"{type(error).__name__}: {error}"}

    def _quality(self, point: Point, split: Split) -> Row:
        generations = self._decode_all(point, split)
        texts = self._texts(generations)
        references = [example.references for example in split.examples]
        resampling = (self.metric, self.sweep.bootstrap_samples, self.sweep.seed)
        quality = score(texts, references, *resampling)
        return {
            "quality": quality.scores,
            "quality_interval": list(quality.interval),
            "quality_difference_interval": list(
                difference_interval(texts, self._vanilla_texts(split), references, *resampling)
            ),
            "signature": quality.signature,
            "counts": _as_json(total(generations)),
        }

    def _vanilla_texts(self, split: Split) -> list[str]:
        """What the large model alone writes, which quality is compared with example by example."""
        if split.name not in self._vanilla:
            self._vanilla[split.name] = self._texts(self._decode_all(VANILLA, split))
        return self._vanilla[split.name]

    def _decode_all(self, point: Point, split: Split) -> list[Generation]:
        batch = self.sweep.quality_batch
        return decode_all(point.method, point.settings, self.pair, split.sources, self.request, batch)

    def _texts(self, generations: list[Generation]) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode([one.tokens for one in generations], skip_special_tokens=True)
        return texts

    def _latency(self, point: Point, split: Split) -> Row:
        def run(method: str, settings: Any, example: int) -> None:
            decode(method, settings, self.pair, [split.sources[example]], self.request, [example])

        with on_threads(self.sweep.latency_threads):
            latencies = measure(
                lambda example: run(point.method, point.settings, example),
                lambda example: run(VANILLA.method, VANILLA.settings, example),
                split.timed,
                trials=self.sweep.latency_trials,
                warmup=self.sweep.warmup_examples,
                chance=random.Random(f"{self.sweep.seed} {point.fields()}"),  # noqa: S311 (an order, not a secret)
                clock=self.clock,
            )
        interval = ratio_interval(latencies.vanilla, latencies.method, self.sweep.bootstrap_samples, self.sweep.seed)
        return {
            "latency_ms": [round(one, 3) for one in latencies.method],
            "vanilla_latency_ms": [round(one, 3) for one in latencies.vanilla],
            "speedup": latencies.speedup,
            "speedup_interval": list(interval),
        }


def _as_json(counts: Counts) -> Row:
    return {**vars(counts), "verified": {str(positions): calls for positions, calls in sorted(counts.verified.items())}}
