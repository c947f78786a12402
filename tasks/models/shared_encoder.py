"""A drafter that reads the large model's encoder: training leaves the encoder as it is, and decoding runs it once.

BiLD-v1 (section 4.1) makes its small FSMT models so. The embedding that an encoder reads is a part of it; T5 and BART read the
same matrix in the decoder, where it is frozen too. A head that is tied to it becomes a matrix of its own, which is trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MARK = "shares_encoder"


def mark_shared_encoder(model: PreTrainedModel) -> None:
    """Note in a model's configuration, which is saved with it, that its encoder is the large model's."""
    setattr(model.config, _MARK, True)


def reads_large_encoder(model: PreTrainedModel) -> bool:
    """Return whether a model was made to read the large model's encoder."""
    return bool(getattr(model.config, _MARK, False))


def freeze_encoder(model: PreTrainedModel) -> None:
    """Exclude the encoder from training, and all weights that are tied to its embedding."""
    model.get_encoder().requires_grad_(False)


@torch.no_grad()
def keep_encoder_once(small: PreTrainedModel, large: PreTrainedModel) -> None:
    """Let the encoder of `small`, whose weights equal those of `large`, be in memory once: its tensors become the other's."""
    theirs = dict(large.get_encoder().named_parameters())
    for name, weight in small.get_encoder().named_parameters():
        weight.data = theirs[name].data


def shared_parameters(small: PreTrainedModel, large: PreTrainedModel) -> int:
    """Return how many parameters of `small` are in memory as tensors of `large`."""
    theirs = {weight.data_ptr() for weight in large.parameters()}
    return sum(weight.numel() for weight in small.parameters() if weight.data_ptr() in theirs)
