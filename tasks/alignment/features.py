"""Trains a drafter that reads the large model's states (`models.extras.FeatureProjection`) over the chain that it will draft.

In the first pass each token is read with the large model's state before it. In each further pass that state is the drafter's
own, from the pass before. What lies further back is as it will be in decoding: up to where the chain begins it was read with
the large model's states, and along the chain in the passes before (training-time test: EAGLE-3, Li et al., 2025, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tasks.models.extras import features_of
from tasks.models.pruned_head import pruned_head, spread
from tasks.training.data import Batch
from tasks.training.objective import Loss, head_logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CHAIN = 3
"""Passes: tokens of a chain whose losses are taken."""
_DECAY = 0.8
"""Weight of each token's loss relative to that of the token before it (EAGLE-3)."""


class ChainLoss(Loss):
    """The mean of a loss over the tokens of a chain, of which later ones weigh less."""

    def __init__(self, each: Loss, large: PreTrainedModel) -> None:
        """Take the loss of one token, and the large model, whose states are read."""
        self._each, self._large = each, large

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        weights = [_DECAY**number for number in range(_CHAIN)]
        passes = zip(weights, chain_logits(model, self._large, batch, _CHAIN), strict=True)
        total = torch.stack([weight * self._each.of_logits(model, batch, logits) for weight, logits in passes]).sum()
        return [total / sum(weights)]


def states_before(large: PreTrainedModel, batch: Batch) -> Tensor:
    """Return the large model's last state before each token, 0 before the first: (examples, positions, width)."""
    with torch.no_grad():
        output = large.get_decoder()(input_ids=batch.source, attention_mask=batch.mask, use_cache=False)
    return _shifted(output.last_hidden_state)


def chain_logits(model: PreTrainedModel, large: PreTrainedModel, batch: Batch, passes: int) -> Iterator[Tensor]:
    """Yield the logits at each target position in each pass: (positions, tokens), as `objective.drafted_logits` gives them.

    Those of pass i are of the i-th token of chains that begin everywhere.
    """
    from transformers import DynamicCache

    body, project, states = model.get_decoder(), features_of(model), states_before(large, batch)
    if project is None:
        raise ValueError("the model has no projection of states")
    # One cache: the keys and values of each pass follow those of the pass before, at the same positions.
    cache, embedded = DynamicCache(), model.get_input_embeddings()(batch.source)
    positions = torch.arange(batch.source.shape[1], device=batch.source.device)[None]
    for number in range(passes):
        hidden = body(
            inputs_embeds=embedded + project(states),
            attention_mask=_visible(batch.mask, number, embedded.dtype),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        yield head_logits(model, batch, hidden)
        states = _shifted(hidden)


def log_probs_with_features(model: PreTrainedModel, large: PreTrainedModel, batch: Batch, vocabulary: int) -> Tensor:
    """Do what `objective.target_log_probs` does, for a drafter with the large model's states."""
    [logits] = chain_logits(model, large, batch, 1)
    head = pruned_head(model)
    whole = logits if head is None else spread(logits, head.tokens, head.out_features)
    return whole[:, :vocabulary].float().log_softmax(-1)


def _shifted(hidden: Tensor) -> Tensor:
    """Return the state before each position, 0 before the first; both (examples, positions, width)."""
    return functional.pad(hidden, (0, 0, 1, 0))[:, :-1]


def _visible(mask: Tensor, number: int, dtype: torch.dtype) -> Tensor:
    """Return what pass `number` adds to scores: (examples, 1, positions, positions of all passes), 0 where attended, else tiny.

    A token of that pass is the last of `number` drafted ones: it attends to the first pass up to where its chain begins, then
    to one position of each pass, along the chain.
    """
    length = mask.shape[1]
    square = torch.ones(length, length, dtype=torch.bool, device=mask.device)
    first = square.tril(-number) & mask[:, None, :].bool()  # (examples, positions, positions)
    # The token `back` places before this one was read in pass `number - back`.
    later = [square.tril(-back) & square.triu(-back) for back in range(number - 1, -1, -1)]
    attended = torch.cat([first, *(one.expand_as(first) for one in later)], -1)
    # The first tokens of a text have no chain of that length behind them, and attend to themselves.
    hidden = torch.zeros(attended.shape, dtype=dtype, device=mask.device).masked_fill(~attended, torch.finfo(dtype).min)
    return hidden[:, None]
