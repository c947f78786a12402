"""Checks that a model can be trained with the given settings, before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tasks.errors import InputError
from tasks.models.layers import reads_large_encoder
from tasks.models.pair import check_pair
from tasks.models.settings import ModelSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_OVERFLOWING = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "pix2struct", "udop")
"""Model types with T5's layers; their activations exceed float16's range."""


def check_precision(model: PreTrainedModel, name: str, settings: TrainingSettings, device: torch.device) -> None:
    """Refuse float16 for models and devices that cannot train in it.

    Raises:
        InputError: the model has T5's layers, whose activations overflow in float16, reads the large model's encoder, or trains
            on a CPU.
    """
    if settings.precision != "float16":
        return
    if model.config.model_type in _OVERFLOWING:
        raise InputError(
            f"precision is float16, but the {name} model is of type {model.config.model_type}, whose activations overflow in "
            "it; set precision to bfloat16 or float32"
        )
    if reads_large_encoder(model):
        raise InputError(
            f"precision is float16, which rounds all weights, but with from_large.share_encoder the {name} model's encoder "
            "stays the large model's; set precision to bfloat16 or float32"
        )
    if device.type == "cpu":
        raise InputError(
            f"precision is float16, which trains on a GPU alone, but the {name} model trains on the CPU; set precision to "
            "bfloat16 or float32"
        )


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, tokenizer_name: str, settings: ModelSettings) -> None:
    """Refuse a pre-trained model whose tokenizer has another vocabulary: its embeddings would stand for other tokens.

    A pre-trained model without a tokenizer is accepted.

    Raises:
        InputError: the message names the first token that differs.
    """
    if settings.pretrained is None:
        return
    try:
        own = load_tokenizer(settings.pretrained)
    except InputError:
        return
    try:
        check_pair(tokenizer, own, f"the tokenizer at {tokenizer_name}", f"that of {settings.pretrained}")
    except InputError as error:
        raise InputError(f"{error}; a small model may keep its own with own_tokenizer: true") from None


def check_trainable(model: PreTrainedModel, name: str) -> None:
    """Raise `InputError` for model types that transformers does not train on their labels."""
    if model.config.model_type == "fsmt":
        raise InputError(
            f"the {name} model is of type fsmt, which transformers trains on its source; it can be decoded with, not trained: "
            "name another"
        )
