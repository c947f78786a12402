"""Two views of a position: what a model thinks (*scores*) and what tokens are taken from (*dist*)."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from tasks.decoding.settings import SamplingSettings


class Block:
    """One model's predictions at consecutive positions of every row.

    Thresholds, maxima, entropies and -log p read `scores`; drawing, acceptance, residuals and Σ min(p, q) read `dist`.
    """

    def __init__(self, logits: Tensor, sampling: SamplingSettings) -> None:
        """Takes logits of shape (rows, positions, vocabulary)."""
        self.logits = logits
        self.sampling = sampling

    @cached_property
    def scores(self) -> Tensor:
        """The model's own softmax, untruncated: float32 (rows, positions, vocabulary)."""
        return torch.softmax(self.logits.float(), dim=-1)

    @cached_property
    def dist(self) -> Tensor:
        """After the sampling transform, one-hot when greedy: float32 (rows, positions, vocabulary)."""
        return transform(self.logits, self.sampling)

    def head(self, positions: int) -> Block:
        """The first `positions` positions."""
        return Block(self.logits[:, :positions], self.sampling)


def transform(logits: Tensor, sampling: SamplingSettings) -> Tensor:
    """Logits (..., vocabulary) to the distribution that tokens are drawn from, float32, summing to 1."""
    logits = logits.float()
    if sampling.greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    # From the top, so that no temperature is cold enough to overflow.
    logits = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p < 1:
        logits = logits.masked_fill(_outside_nucleus(logits, sampling.top_p), -torch.inf)
    return torch.softmax(logits, dim=-1)


def _outside_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """True where a token is not needed to reach probability `top_p`; the likeliest token is always inside."""
    ordered, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    unneeded = ordered.cumsum(-1) - ordered >= top_p
    return torch.zeros_like(unneeded).scatter_(-1, order, unneeded)
