"""Weights of positions in a draft window: a late position matters only if all earlier ones are accepted.

Both kinds cut a text into windows of γ tokens from its first target on, and start again at weight 1 in each: the windows of a
drafter whose tokens are all accepted, without bonus tokens. Decoding also begins a window after each rejection, which training
on given texts does not know in advance.

- `decay`: d^j at the j-th position of a window, j from 0, as Medusa-1 weighs its k-th head by d^k, d = 0.8 (Cai et al., 2024,
  equation 1).
- `acceptance`: Π a_i over the earlier positions i of the window, the probability that verification reaches the position, with
  the acceptance probability a = Σ min(p, q) of the drafter in training. No gradient flows through the weights. The gradient of
  the expected number of accepted tokens would also weigh a position by what may follow it (D-PACE: Wu et al., 2026, arXiv
  2605.18810); that part is left out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tasks.models.pruned_head import pruned_head
from tasks.training.data import IGNORED, Batch
from tasks.training.losses import TokenLevelLoss
from tasks.training.predictions import drafted_logits, target_positions
from tasks.training.sources import BatchSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class DecayedSource:
    """A `BatchSource` that weighs the positions of another's batches by `decayed`."""

    def __init__(self, source: BatchSource, window: int, decay: float) -> None:
        self._source, self._window, self._decay = source, window, decay

    def microbatches(self, step: int) -> list[Batch]:
        return [decayed(batch, self._window, self._decay) for batch in self._source.microbatches(step)]


def decayed(batch: Batch, window: int, decay: float) -> Batch:
    """Return the batch with the weight of each labelled position times decay^j, j its index in its window, from 0.

    Args:
        batch: Its texts may have weights already, such as those of a replay.
        window: γ, in tokens.
        decay: In 0…1.
    """
    labelled = batch.labels != IGNORED
    weights = labelled.float() if batch.weights is None else batch.weights
    # Positions before the first label have the index -1, which the remainder makes γ - 1; their weight is 0.
    places = (labelled.cumsum(1) - 1) % window
    return dataclasses.replace(batch, weights=weights * decay**places)


def reach(acceptance: Tensor, indices: Tensor, window: int) -> Tensor:
    """Return the probability that verification reaches each position: that all earlier ones of its window are accepted.

    Args:
        acceptance: Acceptance probability of each position, float32 (positions,), one text after the other.
        indices: Index of each position in its text, from 0: int64 (positions,).
        window: γ, in tokens.

    Returns:
        float32 (positions,): 1 at the first position of each window; without gradient.
    """
    places = indices % window
    windows = (places == 0).cumsum(0) - 1
    # A row for each window, of which there are at most as many as positions; column j + 1 holds the acceptance of place j.
    table = torch.ones((len(acceptance), window + 1), device=acceptance.device)
    table[windows, places + 1] = acceptance.detach()
    return table.cumprod(1)[windows, places]


class ReachedCrossEntropyLoss(TokenLevelLoss):
    """Cross-entropy of the text, weighted by `reach` in training.

    Without the large model's prediction, p is the one-hot distribution of the text's token y, so that Σ min(p, q) is q(y). It
    is 0 for a token outside of the draft vocabulary.
    """

    def __init__(self, window: int) -> None:
        """Take γ, in tokens."""
        self._window = window

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        targets, head = target_positions(model, batch), pruned_head(model)
        logits = drafted_logits(model, batch).float()
        labels, inside = (targets.tokens, None) if head is None else head.positions(targets.tokens)
        losses = functional.cross_entropy(logits, labels, reduction="none")
        if batch.progress is not None:
            accepted = (-losses).exp() if inside is None else (-losses).exp() * inside
            losses = losses * reach(accepted, targets.indices, self._window)
        return [(losses * targets.weights).sum()]
