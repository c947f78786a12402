"""Perplexity with fallback: language models evaluated as the Big Little Decoder decodes (BiLD-v1, sections 3.3 and 4.2).

The text is given. The small model scores a position where its top probability is above the threshold; otherwise the large model
scores it, in one run over all positions that it has not read. There is no rollback, since the next token is always that of the
text.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tasks.console import progress
from tasks.decoding.acceptance_rules import accept_all
from tasks.decoding.decoder import Rows
from tasks.decoding.drafters.choose import make_drafter
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.generation import Counts, total
from tasks.decoding.given_text import UNTRUNCATED, GivenText, without_end_tokens
from tasks.decoding.method import DecodingMethod, Pair
from tasks.decoding.methods.vanilla import single_model_method
from tasks.decoding.turn import DraftRule
from tasks.evaluation.timing import Latencies, measure
from tasks.settings import setting, settings


@settings
class PerplexitySettings:
    """Settings of scoring a text."""

    fallback_threshold: float = setting(
        "The small model scores positions where its top probability is above this; 0 for all positions, 1 for none.",
        default=0.05,
        ge=0,
        le=1,
    )
    chunk: int = setting("Tokens scored together as one piece; the first one is only read.", default=512, unit="tokens", ge=2)
    batch_size: int = setting("Chunks scored as a batch.", default=4, unit="chunks", ge=1)


@dataclass(frozen=True)
class Perplexity:
    """The score of a text, and the model runs that it took."""

    log_likelihood: float
    """Σ log P(token) over all positions, in nats."""
    counts: Counts

    @property
    def value(self) -> float:
        """exp(-mean log-likelihood); infinity where a token's probability underflows float32."""
        mean = self.log_likelihood / self.counts.tokens
        return math.exp(-mean) if mean > -700 else math.inf

    @property
    def large_share(self) -> float:
        """Share of positions that the large model scored, one with each of its runs."""
        return self.counts.large_calls / self.counts.tokens


@dataclass(frozen=True)
class FallbackPoint:
    """One threshold of a sweep."""

    threshold: float
    found: Perplexity
    times: Latencies[None] | None
    """Beside the large model alone; None where nothing was timed."""


Compose = Callable[[Pair, GivenText], DecodingMethod]
"""(models, texts) to the method that scores them."""


def with_fallback(threshold: float) -> Compose:
    """The small model with fallback to the large one; the length of a draft is not limited."""

    def compose(pair: Pair, given: GivenText) -> DecodingMethod:
        rule = DraftRule(window=sys.maxsize, fallback_threshold=threshold, ends_unverified=True)
        drafter = make_drafter("small", pair, UNTRUNCATED, given)
        return SpeculativeLoop(pair.large, accept_all, UNTRUNCATED, given, drafter, rule)

    return compose


def _large_alone(pair: Pair, given: GivenText) -> DecodingMethod:
    return single_model_method(pair.large, UNTRUNCATED, given)


def chunks(tokens: Sequence[int], size: int) -> tuple[Rows, Rows]:
    """Chunks of `size` tokens, each as its first token, which is only read, and the tokens to score.

    The last chunk may be shorter; a single remaining token cannot be scored and is dropped.
    """
    pieces = [list(tokens[begin : begin + size]) for begin in range(0, len(tokens) - 1, size)]
    return [piece[:1] for piece in pieces], [piece[1:] for piece in pieces]


def perplexity(pair: Pair, sources: Rows, texts: Rows, options: PerplexitySettings, label: str | None = None) -> Perplexity:
    """Score texts token by token, as they would be decoded.

    Args:
        pair: The two models.
        sources: The context of each text: the source of an encoder-decoder, the first tokens of a decoder-only model.
        texts: The tokens to score, none of them empty.
        options: Threshold and batch size; `chunk` is not used here, but by `chunks`.
        label: Text before a progress bar on standard error; None for no bar.
    """
    compose, parts = with_fallback(options.fallback_threshold), []
    with progress(total=len(texts), desc=label, unit="text", mininterval=2.0, disable=label is None) as bar:
        for batch in _batches(texts, options.batch_size):
            parts.append(_score(compose, pair, [sources[index] for index in batch], [texts[index] for index in batch]))
            bar.update(len(batch))
    return Perplexity(math.fsum(part.log_likelihood for part in parts), sum((part.counts for part in parts), Counts()))


def latencies(
    pair: Pair, sources: Rows, texts: Rows, options: PerplexitySettings, examples: int, clock: Callable[[], float]
) -> Latencies[None]:
    """Time the evaluation beside the large model alone on `examples` random texts, at batch 1."""

    def timed(compose: Compose) -> Callable[[int], None]:
        def run(index: int) -> None:
            _score(compose, pair, [sources[index]], [texts[index]])

        return run

    rng = random.Random(0)  # noqa: S311 (a sample and an order, not a secret)
    chosen = rng.sample(range(len(texts)), min(examples, len(texts)))
    method, vanilla = timed(with_fallback(options.fallback_threshold)), timed(_large_alone)
    return measure(method, vanilla, chosen, warmup=1, rng=rng, clock=clock)


def _score(compose: Compose, pair: Pair, sources: Rows, texts: Rows) -> Perplexity:
    """Score texts of equal length as a batch."""
    given = GivenText(texts)
    done = compose(without_end_tokens(pair), given).run(sources, range(len(texts)), len(texts[0]))
    return Perplexity(given.log_likelihood(), total(done))


def _batches(texts: Rows, size: int) -> Iterator[list[int]]:
    """Indices of texts of equal length, at most `size` at a time, since a batch has one length limit."""
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    for _, group in itertools.groupby(order, key=lambda index: len(texts[index])):
        same = list(group)
        yield from (same[begin : begin + size] for begin in range(0, len(same), size))
