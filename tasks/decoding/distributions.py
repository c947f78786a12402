"""Two views of a position, and draws from them: a model's own softmax (*scores*), and what tokens are sampled from (*dist*).

Thresholds, maxima, entropies and -log p read scores; drawing, acceptance, residuals and Σ min(p, q) read dist. A rule reads
them as `TokenStatistics`: of a block of positions as tensors (`PredictionBlock`), or of one cached position
(`CachedStatistics`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tasks.decoding.decoder import Rows
from tasks.decoding.method import SamplingSettings

Values = Tensor | float
"""One number for each position: a tensor (rows, positions), or a float for one cached position."""
TokenIds = Tensor | int
Mask = Tensor | bool


class TokenStatistics(Protocol):
    """One model's prediction, as a rule reads it.

    A `PredictionBlock` gives tensors (rows, positions), `CachedStatistics` plain numbers of one position. A rule that is
    written in terms of these, with comparisons, `+ - *`, `|` and `^ True`, runs on either.
    """

    @property
    def argmax(self) -> TokenIds:
        """The token of the highest score, the first one of a tie."""

    @property
    def top(self) -> Values:
        """The score of the argmax: max p."""

    @property
    def entropy(self) -> Values:
        """Entropy of the scores, in nats."""

    def of(self, tokens: Any) -> Values:
        """Return the scores of these tokens."""

    def surprisal(self, tokens: Any) -> Values:
        """Return -log of the scores of these tokens, in nats."""

    def total_variation(self, other: Any) -> Values:
        """Return D_TV of the two dists; of one-hot ones, 0 where both have one argmax, else 1."""


_WORD = (1 << 64) - 1
TokenScore = tuple[float, float]
"""The score of a token, and its surprisal in nats."""


class PredictionBlock:
    """One model's predictions at consecutive positions of every row."""

    def __init__(self, logits: Tensor, sampling: SamplingSettings, argmax: Rows | None = None) -> None:
        """Take logits of shape (rows, positions, vocabulary), and the argmax tokens if they are known already."""
        self.logits = logits
        self.sampling = sampling
        self._argmax = argmax

    @property
    def argmax_rows(self) -> Rows:
        """The argmax at each position of each row, the first token of a tie; undefined or missing at padding."""
        if self._argmax is None:
            self._argmax = self.logits.argmax(-1).tolist()
        return self._argmax

    @cached_property
    def argmax(self) -> Tensor:
        """The same as a tensor: int64 (rows, positions), undefined at padding."""
        if self._argmax is None:
            return self.logits.argmax(-1)
        # Rows may know fewer positions than the longest one has.
        most = self.logits.shape[1]
        rows = [row + [0] * (most - len(row)) for row in self._argmax]
        return torch.tensor(rows, dtype=torch.long).to(self.logits.device, non_blocking=True)

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
        """The score of the argmax, max p: (rows, positions)."""
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
        """Return D_TV = Σ max(0, p - q) = ½ Σ |p - q| = 1 - Σ min(p, q) of the two dists: (rows, positions).

        In the first form, rounding never makes it smaller than any single p(v) - q(v), and so never than max p - max q.
        """
        return (self.dist - other.dist).clamp_min(0.0).sum(-1)

    def head(self, positions: int) -> PredictionBlock:
        """Return the first `positions` positions."""
        if positions == self.logits.shape[1]:
            return self
        known = None if self._argmax is None else [row[:positions] for row in self._argmax]
        return PredictionBlock(self.logits[:, :positions], self.sampling, known)

    def at(self, rows: Sequence[int], positions: Sequence[int]) -> PredictionBlock:
        """Return one position of each of `rows`: (rows, 1, vocabulary)."""
        cells = list(zip(rows, positions, strict=True))
        known = None if self._argmax is None else [[self._argmax[row][column]] for row, column in cells]
        return PredictionBlock(torch.stack([self.logits[cell] for cell in cells])[:, None], self.sampling, known)


@dataclass(slots=True, eq=False)
class CachedStatistics:
    """The statistics of one position as numbers; what else a rule asks for is looked up or computed then, and kept."""

    argmax: int
    """The token of the highest score."""
    top: float
    """Its score."""
    entropy: float
    """Of the position, in nats."""
    token_scores: dict[int, TokenScore]
    """The scores that are known, by token."""
    look_up: Callable[[int], TokenScore]
    """Finds the score of another token."""

    def of(self, tokens: int) -> float:
        # A known score is a pair, and so never false.
        return (self.token_scores.get(tokens) or self._find(tokens))[0]

    def surprisal(self, tokens: int) -> float:
        return (self.token_scores.get(tokens) or self._find(tokens))[1]

    def total_variation(self, other: CachedStatistics) -> float:
        return float(self.argmax != other.argmax)

    def _find(self, token: int) -> TokenScore:
        score = self.token_scores[token] = self.look_up(token)
        return score


def empty_predictions(rows: int) -> PredictionBlock:
    """Return predictions at no position."""
    return PredictionBlock(torch.empty(rows, 0, 0), SamplingSettings())


def full_precision(logits: Tensor) -> Tensor:
    """Return logits as float32, or as they are where they are float64."""
    return logits if logits.dtype is torch.float64 else logits.float()


def one_hot_predictions(tokens: Tensor, vocabulary: int, sampling: SamplingSettings) -> PredictionBlock:
    """Return the predictions of a deterministic drafter: all probability on `tokens` (rows, positions)."""
    logits = torch.full((*tokens.shape, vocabulary), -torch.inf, device=tokens.device)
    # One logit of 0 among -infinity: its softmax is 1 at any temperature.
    return PredictionBlock(logits.scatter_(-1, tokens[..., None], 0.0), sampling)


def probability(dist: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability in `dist` (rows, n, vocabulary) of `tokens` (rows, n): (rows, n)."""
    return dist.gather(-1, tokens[..., None]).squeeze(-1)


def entropy(scores: Tensor, log_scores: Tensor) -> Tensor:
    """Return -Σ p log p over the last dimension, in nats; 0 log 0 is 0.

    `torch.special.entr` takes the logarithms itself and three times as long.
    """
    # The log of a score of 0 is -infinity, whose product with 0 would be NaN.
    return -(scores * log_scores.clamp_min(torch.finfo(log_scores.dtype).min)).sum(-1)


def transform(logits: Tensor, sampling: SamplingSettings) -> Tensor:
    """Turn logits (..., vocabulary) into the distribution that tokens are sampled from, summing to 1, in `full_precision`."""
    logits = full_precision(logits)
    if sampling.greedy:
        # Greedy: all probability on the argmax, the first one of a tie.
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    # Relative to the maximum, so that no temperature is low enough to overflow.
    logits = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        # Ties with the k-th token are kept.
        smallest = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p < 1:
        logits = logits.masked_fill(_outside_nucleus(logits, sampling.top_p), -torch.inf)
    return torch.softmax(logits, dim=-1)


def _outside_nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Return True for tokens that are not needed to reach probability `top_p`; the argmax always is, and so are ties."""
    ordered, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
    # A token is needed while all those before it, in falling order, have less than top_p together.
    needed = (ordered.cumsum(-1) - ordered < top_p).sum(-1, keepdim=True)
    # Of broken logits none is, and an index of -1 would end the process on a GPU before they are reported.
    return logits < logits.gather(-1, order.gather(-1, needed.clamp_min(1) - 1))


def invert(dist: Tensor, uniforms: Tensor) -> Tensor:
    """Return where the cumulative distribution of each row of `dist` (rows, vocabulary) reaches its number: int64 (rows,).

    The total of a row, which need not be 1, scales its number; `uniforms` is float64 (rows,). Nothing waits for the device.
    """
    cumulative = dist.double().cumsum(-1)
    targets = uniforms[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets).squeeze(-1).clamp_(max=dist.shape[-1] - 1)


class Purpose(IntEnum):
    """What a random number decides; the kernel has the same numbers (`kernel/sampling.h`)."""

    TARGET = 0
    """A token of the target's own or of a residual."""
    ACCEPT = 1
    """Whether a drafted token stays."""
    DRAFT = 2
    """A token of a model that drafts."""
    RANDOM = 3
    """A token of the random drafter."""


class Key(NamedTuple):
    """What a random number depends on, beside the seed."""

    example: int
    position: int
    """Tokens before the one that is decided on, the prompt's among them."""
    purpose: Purpose
    turn: int = 0
    """Tokens before the turn, where a later turn may decide on the same position anew, such as a draft after a rollback."""


class TokenSource:
    """Keyed uniform numbers, and tokens sampled with them by inverting the cumulative distribution.

    A number depends on the seed and its key alone, so that a batched, resumed or reordered run draws the same tokens as a run
    of one example at a time.
    """

    kernel: Literal["computes", "asks", "never"] = "computes"
    """How the kernel draws: by its own computation of these numbers, by asking this object for each outcome, or not at all."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.stream = 0
        """Keeps numbers of one seed apart."""
        self._generator = np.random.Philox()

    @property
    def known_before(self) -> bool:
        """Whether a number may be asked for before what it decides on is known."""
        return self.kernel == "computes"

    def uniform(self, key: Key) -> float:
        """Return a number in the open interval (0, 1) that depends only on the key."""
        # Philox (Salmon et al., 2011) counts where other generators keep a state.
        words = np.array([number & _WORD for number in key], dtype=np.uint64)
        keyed = np.array([self.seed & _WORD, self.stream], dtype=np.uint64)
        # Setting a generator takes half the time of making one; it reads no buffer from position 4 on.
        self._generator.state = {
            "bit_generator": "Philox",
            "state": {"counter": words, "key": keyed},
            "buffer": words,
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        bits = int(self._generator.random_raw())
        # 53 bits, as many as a float64 holds, and half a step so that 0 and 1 are never met.
        return ((bits >> 11) + 0.5) * 2.0**-53

    def draw(self, dist: Tensor, keys: Sequence[Key]) -> list[int]:
        """Sample one token for each row of `dist` (rows, vocabulary), not necessarily normalised, with one key for each row."""
        uniforms = torch.tensor([self.uniform(key) for key in keys], dtype=torch.float64)
        tokens: list[int] = invert(dist, uniforms.to(dist.device, non_blocking=True)).tolist()
        return tokens

    def deferred(self) -> TokenSource:
        """Return numbers of their own: a deferred answer must not be sampled with those whose result caused the deferral."""
        found = copy.copy(self)
        found.stream += 1
        return found
