"""Perplexity with fallback: language models evaluated as the Big Little Decoder decodes (BiLD-v1, sections 3.3 and 4.2).

The text is given. Each position is scored by the model whose turn it is: the small one where its top probability is above
the threshold, else the large one, run once over all that it has not seen. Nothing is rolled back, since the next token is
the text's own whatever a model would have put.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.drafters.choose import make_drafter
from tasks.decoding.drafting import DraftRule
from tasks.decoding.generation import Counts, total
from tasks.decoding.loop import Method
from tasks.decoding.methods.vanilla import alone
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.strategy import Pair, Strategy
from tasks.decoding.verdicts import keep_all
from tasks.evaluation.timing import Latencies, measure
from tasks.settings import setting, settings

_UNTRUNCATED = SamplingSettings(temperature=1.0)


@settings
class PerplexitySettings:
    """How a text is scored."""

    fallback_threshold: float = setting(
        "The small model scores a position where its top probability is above this; 0: every one, 1: none.",
        default=0.05,
        ge=0,
        le=1,
    )
    chunk: int = setting("Tokens scored together as one piece; the first one is only read.", default=512, unit="tokens", ge=2)
    batch_size: int = setting("Pieces scored side by side.", default=4, unit="chunks", ge=1)


@dataclass(frozen=True)
class Perplexity:
    """What a text was scored as, and the runs of the two models that it took."""

    log_likelihood: float
    """Σ log P(token) over all positions, in nats."""
    counts: Counts

    @property
    def value(self) -> float:
        """exp of minus the mean; infinity where a model gives a token no probability that float32 can hold."""
        mean = self.log_likelihood / self.counts.tokens
        return math.exp(-mean) if mean > -700 else math.inf

    @property
    def large_share(self) -> float:
        """The share of positions that the large model scored: one with each of its runs."""
        return self.counts.large_calls / self.counts.tokens


class GivenText(TokenSource):
    """Draws the tokens of given texts, whatever the distribution, and notes what that gives to them."""

    def __init__(self, texts: Rows) -> None:
        """Takes each example's tokens from the first one that is drawn."""
        super().__init__(0)
        self.texts = texts
        self._first: dict[int, int] = {}
        self._noted: list[dict[int, float]] = [{} for _ in texts]

    def draw(self, dist: Tensor, keys: Sequence[tuple[int, int, str]]) -> list[int]:
        positions = [position - self._first.setdefault(example, position) for example, position, _ in keys]
        # Rows whose draft has stopped are asked as well, past the text's end too; who has the turn is asked last.
        tokens = [
            self.texts[example][index] if index < len(self.texts[example]) else 0
            for (example, _, _), index in zip(keys, positions, strict=True)
        ]
        given = dist.gather(-1, torch.tensor(tokens, device=dist.device)[:, None]).squeeze(-1).double().log().tolist()
        for (example, _, _), index, value in zip(keys, positions, given, strict=True):
            self._noted[example][index] = value
        return tokens

    def log_likelihood(self) -> float:
        """Of all texts, in nats, each token under the model that was asked for it last."""
        noted = zip(self.texts, self._noted, strict=True)
        return math.fsum(values[index] for text, values in noted for index in range(len(text)))


Compose = Callable[[Pair, GivenText], Strategy]
"""(models, texts) to what runs over them."""


def with_fallback(threshold: float) -> Compose:
    """The small model, and the large one where that is not sure; no draft is ended by its length."""

    def compose(pair: Pair, given: GivenText) -> Strategy:
        rule = DraftRule(window=sys.maxsize, fallback_threshold=threshold, ends_unverified=True)
        return Method(pair.large, keep_all, _UNTRUNCATED, given, make_drafter("small", pair, _UNTRUNCATED, given), rule)

    return compose


def _large_alone(pair: Pair, given: GivenText) -> Strategy:
    return alone(pair.large, _UNTRUNCATED, given)


def chunks(tokens: Sequence[int], size: int) -> tuple[Rows, Rows]:
    """A stream of tokens in pieces of `size`: the first token of each, which is only read, and those to score.

    The last piece may be shorter; a single token that is left over cannot be scored.
    """
    pieces = [list(tokens[begin : begin + size]) for begin in range(0, len(tokens) - 1, size)]
    return [piece[:1] for piece in pieces], [piece[1:] for piece in pieces]


def perplexity(pair: Pair, sources: Rows, texts: Rows, options: PerplexitySettings, label: str | None = None) -> Perplexity:
    """Scores texts token by token, as they would be decoded.

    Args:
        pair: The two models.
        sources: What each text follows: the source of an encoder-decoder, the first tokens of a decoder-only model.
        texts: The tokens to score, none of them empty.
        options: Threshold and batch size; `chunk` is for `chunks`, which cuts a stream.
        label: Shows a progress bar on standard error.
    """
    compose, parts = with_fallback(options.fallback_threshold), []
    with tqdm(total=len(texts), desc=label, unit="text", mininterval=2.0, disable=label is None) as bar:
        for batch in _batches(texts, options.batch_size):
            parts.append(_score(compose, pair, [sources[index] for index in batch], [texts[index] for index in batch]))
            bar.update(len(batch))
    return Perplexity(math.fsum(part.log_likelihood for part in parts), sum((part.counts for part in parts), Counts()))


def latencies(
    pair: Pair, sources: Rows, texts: Rows, options: PerplexitySettings, examples: int, clock: Callable[[], float]
) -> Latencies:
    """Times the evaluation beside the large model alone, text by text at batch 1, on `examples` random texts."""

    def timed(compose: Compose) -> Callable[[int], None]:
        def run(index: int) -> None:
            _score(compose, pair, [sources[index]], [texts[index]])

        return run

    rng = random.Random(0)  # noqa: S311 (a sample and an order, not a secret)
    chosen = rng.sample(range(len(texts)), min(examples, len(texts)))
    method, vanilla = timed(with_fallback(options.fallback_threshold)), timed(_large_alone)
    return measure(method, vanilla, chosen, trials=1, warmup=1, rng=rng, clock=clock)


def _score(compose: Compose, pair: Pair, sources: Rows, texts: Rows) -> Perplexity:
    """Texts of one length, side by side."""
    given = GivenText(texts)
    endless = dataclasses.replace(pair, small=_endless(pair.small), large=_endless(pair.large))
    done = compose(endless, given).run(sources, range(len(texts)), len(texts[0]))
    return Perplexity(given.log_likelihood(), total(done))


def _endless(decoder: Decoder) -> Decoder:
    """The same model, for which no token ends a text: a text that is given ends where it ends."""
    other = copy.copy(decoder)
    other.end_token, other.end_tokens = -1, frozenset()
    return other


def _batches(texts: Rows, size: int) -> Iterator[list[int]]:
    """Numbers of texts of one length, at most `size` of them: the loop decodes side by side up to one limit."""
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    for _, group in itertools.groupby(order, key=lambda index: len(texts[index])):
        same = list(group)
        yield from (same[begin : begin + size] for begin in range(0, len(same), size))
