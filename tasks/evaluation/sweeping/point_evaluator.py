"""Points of a sweep, measured: quality on the whole split, latency beside vanilla on a subset, raw counts."""

from __future__ import annotations

import dataclasses
import functools
import random
import statistics
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tasks.decoding.batches import decode_all
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.strategies import METHODS, Pair, Request, compose, decode
from tasks.evaluation.quality import Quality, score
from tasks.evaluation.rows import Row
from tasks.evaluation.settings import SweepSettings
from tasks.evaluation.statistics import ratio_interval
from tasks.evaluation.sweeping.costs import Costs
from tasks.evaluation.sweeping.points import VANILLA, Outputs, Split, SweepPoint, collect_outputs
from tasks.evaluation.timing import Latencies, measure, on_threads, synchronised_clock

_SHOWN = 6
"""Examples whose texts a timed row holds."""
_REMEMBERED = 1 << 16


class PointEvaluator:
    """A pair of models, ready to be measured."""

    def __init__(self, pair: Pair, tokenizer: Any, metric: str, request: Request, sweep: SweepSettings, device: str) -> None:
        self.pair = pair
        self.metric = metric
        self.request = request
        self.sweep = sweep
        self.clock = synchronised_clock(device)
        self._tokenizer = tokenizer
        # Points of a grid give the same text for most examples.
        self._text = functools.lru_cache(maxsize=_REMEMBERED)(self._decoded_text)
        self._qualities: dict[tuple[str, int], Quality] = {}
        self._vanilla: dict[str, tuple[Outputs, Quality]] = {}

    def fields(self, point: SweepPoint, split: Split) -> Row:
        """What a row says of its point before anything is measured."""
        return {
            "split": split.name,
            **point.fields(),
            "lossless": METHODS[point.method].lossless,
            "metric": self.metric,
            "examples": len(split.examples),
            "sampling": dataclasses.asdict(self.request.sampling),
        }

    def decoded(self, point: SweepPoint, split: Split) -> Outputs:
        """The point's outputs on the whole split, decoded in batches."""
        batch = self.sweep.quality_batch
        generations = decode_all(point.method, point.settings, self.pair, split.sources, self.request, batch)
        return collect_outputs("decoded", generations, split)

    def vanilla(self, split: Split) -> Outputs:
        """What the large model alone writes."""
        return self._vanilla_of(split)[0]

    def assessed(self, outputs: Outputs, split: Split) -> Row:
        """Quality, its difference from vanilla's, and counts."""
        quality = self._quality(outputs, split)
        return {
            "how": outputs.how,
            "quality": quality.scores,
            "quality_interval": list(quality.interval),
            "quality_difference_interval": list(quality.minus(self._vanilla_of(split)[1])),
            "signature": quality.signature,
            "counts": counts_as_json(outputs.counts),
        }

    def timed(self, point: SweepPoint, outputs: Outputs, split: Split, costs: Costs | None) -> Row:
        """Latency beside vanilla, where the time went, and what a few of the outputs look like."""
        # Put together once: what is timed is decoding.
        method, alone = (compose(one.method, one.settings, self.pair, self.request) for one in (point, VANILLA))
        limit = self.request.max_new_tokens
        with on_threads(self.sweep.latency_threads):
            latencies = measure(
                lambda example: method.run([split.sources[example]], [example], limit),
                lambda example: alone.run([split.sources[example]], [example], limit),
                split.timed,
                trials=self.sweep.latency_trials,
                warmup=self.sweep.warmup_examples,
                rng=random.Random(f"{self.sweep.seed} {point.fields()}"),  # noqa: S311 (an order, not a secret)
                clock=self.clock,
            )
        interval = ratio_interval(latencies.vanilla, latencies.method, self.sweep.bootstrap_samples, self.sweep.seed)
        row = {
            "latency_ms": [round(one, 3) for one in latencies.method],
            "vanilla_latency_ms": [round(one, 3) for one in latencies.vanilla],
            "speedup": latencies.speedup,
            "speedup_interval": list(interval),
        }
        if costs is not None and _of_whole_models(point, outputs):
            row["time_ms"] = _spent(costs, outputs.timed(split), self.vanilla(split).timed(split), latencies)
        return {**row, "shown": self._shown(point, split)}

    def _vanilla_of(self, split: Split) -> tuple[Outputs, Quality]:
        if split.name not in self._vanilla:
            outputs = self.decoded(VANILLA, split)
            self._vanilla[split.name] = outputs, self._quality(outputs, split)
        return self._vanilla[split.name]

    def _quality(self, outputs: Outputs, split: Split) -> Quality:
        texts = tuple(self._text(tuple(tokens)) for tokens in outputs.tokens)
        known = (split.name, hash(texts))
        if known not in self._qualities:
            self._qualities[known] = self._score(texts, split)
        return self._qualities[known]

    def _score(self, texts: Sequence[str], split: Split) -> Quality:
        references = [example.references for example in split.examples]
        return score(texts, references, self.metric, self.sweep.bootstrap_samples, self.sweep.seed)

    def _decoded_text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _shown(self, point: SweepPoint, split: Split) -> list[Row]:
        """The first timed examples: source, reference, vanilla's text, and the point's in pieces by who proposed them."""
        shown = []
        for example in split.timed[:_SHOWN]:
            [generation] = decode(point.method, point.settings, self.pair, [split.sources[example]], self.request, [example])
            shown.append(
                {
                    "source": split.examples[example].source,
                    "reference": split.examples[example].references[0],
                    "vanilla": self._text(tuple(self.vanilla(split).tokens[example])),
                    "pieces": self._pieces(generation),
                }
            )
        return shown

    def _pieces(self, generation: Generation) -> list[list[str]]:
        """The text cut where its proposer changes; the pieces put together are the text."""
        whole = self._text(tuple(generation.tokens))
        pieces, said, end = [], 0, 0
        for proposer, run in groupby(generation.proposers):
            end += len(list(run))
            # A word, or a letter, may only come out whole with the token after it: what counts is what stays in the end.
            cut = max(said, _alike(self._text(tuple(generation.tokens[:end])), whole))
            pieces.append([whole[said:cut], proposer])
            said = cut
        return pieces


def _alike(one: str, other: str) -> int:
    """How many letters two texts begin with alike."""
    shorter = min(len(one), len(other))
    return next((index for index in range(shorter) if one[index] != other[index]), shorter)


def _of_whole_models(point: SweepPoint, outputs: Outputs) -> bool:
    """Whether every run was one of the two models, whole: not of the large one's first layers, or of heads on it."""
    return getattr(point.settings, "drafter", "small") not in ("early_layer", "heads") and not outputs.counts.layers


def _spent(costs: Costs, ours: Sequence[Counts], vanilla: Sequence[Counts], latencies: Latencies) -> Row:
    """Mean milliseconds of an example by what they went to; `other` is what the measured parts do not account for.

    The parts are read in this row's own time: the machine is as fast or slow as it is for the vanilla runs between.
    """
    pace = statistics.fmean(latencies.vanilla) / statistics.fmean(sum(costs.parts(counts).values()) for counts in vanilla)
    parts = [costs.parts(counts) for counts in ours]
    means = {name: pace * statistics.fmean(part[name] for part in parts) for name in parts[0]}
    return {**means, "other": statistics.fmean(latencies.method) - sum(means.values())}


def counts_as_json(counts: Counts) -> Row:
    """`verified` by the number of positions as text, `kept` by `drafted/kept`: JSON has no other keys."""
    return {
        **vars(counts),
        "verified": {str(positions): calls for positions, calls in sorted(counts.verified.items())},
        "kept": {f"{drafted}/{kept}": drafts for (drafted, kept), drafts in sorted(counts.kept.items())},
    }
