"""Two views of a position: a model's own softmax (*scores*) and the distribution that tokens are sampled from (*dist*)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from tasks.decoding.decoder import Rows
from tasks.decoding.settings import SamplingSettings


class PredictionBlock:
    """One model's predictions at consecutive positions of every row.

    Thresholds, maxima, entropies and -log p read `scores`; drawing, acceptance, residuals and Σ min(p, q) read `dist`.
    """

    def __init__(self, logits: Tensor, sampling: SamplingSettings, likeliest: Rows | None = None) -> None:
        """Take logits of shape (rows, positions, vocabulary), and the likeliest tokens if they are known already."""
        self.logits = logits
        self.sampling = sampling
        self._likeliest = likeliest

    @property
    def likeliest(self) -> Rows:
        """The likeliest token at each position of each row, the first one of a tie; undefined or missing at padding."""
        if self._likeliest is None:
            self._likeliest = self.logits.argmax(-1).tolist()
        return self._likeliest

    @cached_property
    def best(self) -> Tensor:
        """The likeliest tokens as a tensor: int64 (rows, positions), 0 where none is known."""
        most = self.logits.shape[1]
        rows = [row + [0] * (most - len(row)) for row in self.likeliest]
        return torch.tensor(rows, dtype=torch.long, device=self.logits.device)

    @cached_property
    def scores(self) -> Tensor:
        """The model's own softmax, untruncated: `full_precision` (rows, positions, vocabulary)."""
        return torch.softmax(full_precision(self.logits), dim=-1)

    @cached_property
    def log_scores(self) -> Tensor:
        """The logarithm of `scores`, finite even where a score rounds to zero: as `scores`."""
        return torch.log_softmax(full_precision(self.logits), dim=-1)

    @cached_property
    def dist(self) -> Tensor:
        """The distribution after the sampling transform, one-hot when greedy: as `scores`."""
        return transform(self.logits, self.sampling)

    @cached_property
    def top(self) -> Tensor:
        """The score of the likeliest token: (rows, positions)."""
        return self.scores.amax(-1)

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of the scores, in nats: (rows, positions)."""
        return entropy(self.scores, self.log_scores)

    def of(self, tokens: Tensor) -> Tensor:
        """Return the scores of these tokens: (rows, positions)."""
        return probability(self.scores, tokens)

    def surprisal(self, tokens: Tensor) -> Tensor:
        """Return -log of the scores of these tokens, in nats, finite even if a score rounds to zero: (rows, positions)."""
        return -probability(self.log_scores, tokens)

    def total_variation(self, other: PredictionBlock) -> Tensor:
        """Return D_TV of the two dists: (rows, positions)."""
        return total_variation(self.dist, other.dist)

    def head(self, positions: int) -> PredictionBlock:
        """Return the first `positions` positions."""
        if positions == self.logits.shape[1]:
            return self
        known = None if self._likeliest is None else [row[:positions] for row in self._likeliest]
        return PredictionBlock(self.logits[:, :positions], self.sampling, known)

    def at(self, rows: Sequence[int], positions: Sequence[int]) -> PredictionBlock:
        """Return one position of each of `rows`: (rows, 1, vocabulary)."""
        cells = list(zip(rows, positions, strict=True))
        known = None if self._likeliest is None else [[self._likeliest[row][column]] for row, column in cells]
        return PredictionBlock(self.logits[list(rows), list(positions)][:, None], self.sampling, known)


def full_precision(logits: Tensor) -> Tensor:
    """Return logits as float32, or as they are where they are float64."""
    return logits if logits.dtype is torch.float64 else logits.float()


def one_hot_predictions(tokens: Tensor, vocabulary: int, sampling: SamplingSettings) -> PredictionBlock:
    """Return the predictions of a deterministic drafter: all probability on `tokens` (rows, positions)."""
    logits = torch.full((*tokens.shape, vocabulary), -torch.inf, device=tokens.device)
    return PredictionBlock(logits.scatter_(-1, tokens[..., None], 0.0), sampling)


def probability(dist: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability in `dist` (rows, n, vocabulary) of `tokens` (rows, n): (rows, n)."""
    return dist.gather(-1, tokens[..., None]).squeeze(-1)


def entropy(scores: Tensor, log_scores: Tensor) -> Tensor:
    """Return -Σ p log p over the last dimension, in nats; 0 log 0 is 0.

    `torch.special.entr` takes the logarithms itself and three times as long.
    """
    return -(scores * log_scores.clamp_min(torch.finfo(log_scores.dtype).min)).sum(-1)


def total_variation(one: Tensor, other: Tensor) -> Tensor:
    """Return D_TV = Σ max(0, p - q) = ½ Σ |p - q| = 1 - Σ min(p, q) over the last dimension.

    In the first form, rounding never makes it smaller than any single p(v) - q(v), and so never than max p - max q.
    """
    return (one - other).clamp_min(0.0).sum(-1)


def transform(logits: Tensor, sampling: SamplingSettings) -> Tensor:
    """Turn logits (..., vocabulary) into the distribution that tokens are sampled from, summing to 1, in `full_precision`."""
    logits = full_precision(logits)
    if sampling.greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    # Relative to the maximum, so that no temperature is low enough to overflow.
    logits = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p < 1:
        logits = logits.masked_fill(_outside_nucleus(logits, sampling.top_p), -torch.inf)
    return torch.softmax(logits, dim=-1)


def _outside_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Return True for tokens that are not needed to reach probability `top_p`; the likeliest token is always needed."""
    ordered, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    unneeded = ordered.cumsum(-1) - ordered >= top_p
    return torch.zeros_like(unneeded).scatter_(-1, order, unneeded)
