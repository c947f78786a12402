"""Agreement of two models: the acceptance rate α, which belongs to the pair, whatever the method."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows, Step
from tasks.decoding.distributions import transform
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.settings import SamplingSettings, VanillaSettings
from tasks.evaluation.results.pair import AcceptanceRate
from tasks.evaluation.statistics import ratio_interval

_CELLS = 2**24
"""Probabilities of one model in memory at a time: 64 MiB as float32."""


@torch.inference_mode()
def measure_acceptance(
    pair: Pair,
    sources: Rows,
    sampling: SamplingSettings,
    seed: int,
    limit: int,
    batch: int,
    most_tokens: int = 10_000,
    samples: int = 1000,
) -> AcceptanceRate:
    """α = E Σ min(p, q) over prefixes that the large model generates (SD, Corollary 3.6; Table 3 takes 10 000 tokens).

    p and q are the distributions that tokens are drawn from. Greedy, α is the share of positions at which both models put the
    same token.

    Args:
        pair: The two models.
        sources: Token ids of each source; they are taken in random order until there are enough tokens.
        sampling: The sampling transform, with which the large model generates and which both models' predictions go through.
        seed: Of the order, the draws and the bootstrap.
        limit: Most tokens of a text, the end token included.
        batch: Sources in a batch.
        most_tokens: Most positions in all; the last text is cut there.
        samples: Bootstrap resamples of the examples, for the interval.

    Raises:
        ValueError: there is no source.
    """
    order = random.Random(seed).sample(range(len(sources)), len(sources))  # noqa: S311 (an order, not a secret)
    request = Request(limit, sampling, seed)
    sums: list[float] = []
    lengths: list[int] = []
    for begin in range(0, len(order), batch):
        chosen = order[begin : begin + batch]
        rows = [sources[index] for index in chosen]
        written = decode("vanilla_large", VanillaSettings(), pair, rows, request, chosen)
        texts = list(_at_most([one.tokens for one in written], most_tokens - sum(lengths)))
        sums += _agreements(pair, rows[: len(texts)], texts, sampling)
        lengths += map(len, texts)
        if sum(lengths) == most_tokens:
            break
    interval = ratio_interval(sums, lengths, samples, seed)
    return AcceptanceRate(
        rate=sum(sums) / sum(lengths), interval=interval, tokens=sum(lengths), temperature=sampling.temperature
    )


def _at_most(texts: Rows, tokens: int) -> Iterator[list[int]]:
    """The first texts, up to this many tokens in all."""
    for text in texts:
        if tokens <= 0:
            return
        yield text[:tokens]
        tokens -= len(text)


def _agreements(pair: Pair, sources: Rows, texts: Rows, sampling: SamplingSettings) -> list[float]:
    """Σ min(p, q), summed over the positions of each text."""
    encoder_output = pair.large.encode(sources)
    streams = (
        _predictions(pair.small, encoder_output if pair.shares_encoder else pair.small.encode(sources), texts),
        _predictions(pair.large, encoder_output, texts),
    )
    sums = torch.zeros(len(texts), dtype=torch.float64)
    for small, large in zip(*streams, strict=True):
        q, p = (transform(step.logits, sampling) for step in (small, large))
        agreed = torch.minimum(p, q).sum(-1, dtype=torch.float64).cpu()
        real = torch.arange(agreed.shape[1]) < torch.tensor(large.lengths)[:, None]
        sums += agreed.masked_fill(~real, 0.0).sum(-1)
    return [float(one) for one in sums]


def _predictions(decoder: Decoder, encoder_output: EncoderOutput, texts: Rows) -> Iterator[Step]:
    """A model's predictions at each token of given texts, a few positions at a time."""
    starts = decoder.start(encoder_output)
    if max(map(len, starts)) > 1:
        # A run of its own, so that each position of the later runs predicts a token of a text.
        decoder.forward([start[:-1] for start in starts])
    fed = [[start[-1], *text[:-1]] for start, text in zip(starts, texts, strict=True)]
    size = max(1, _CELLS // (len(texts) * decoder.vocabulary))
    for begin in range(0, max(map(len, fed)), size):
        yield decoder.forward([row[begin : begin + size] for row in fed])
