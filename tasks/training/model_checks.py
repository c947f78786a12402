"""What a model must be to be trained as the settings ask; checked before any work."""

from __future__ import annotations

from typing import Any

import torch

from tasks.errors import InputError
from tasks.models.pair import check_pair
from tasks.models.settings import ModelSettings
from tasks.models.tokenizers import load_tokenizer
from tasks.training.settings import TrainingSettings

_OVERFLOWING = ("t5", "mt5", "umt5", "longt5", "switch_transformers", "pix2struct", "udop")
"""Model types with T5's layers, which were trained in bfloat16 and grow past what float16 holds."""


def check_precision(model: Any, name: str, settings: TrainingSettings, device: torch.device) -> None:
    """Refuses float16 where it cannot be trained in.

    Raises:
        InputError: the model is of T5's kind, whose activations overflow in float16, or runs on a CPU.
    """
    if settings.precision != "float16":
        return
    if model.config.model_type in _OVERFLOWING:
        raise InputError(
            f"precision is float16, but the {name} model is of type {model.config.model_type}, whose activations overflow in "
            "it; set precision to bfloat16 or float32"
        )
    if device.type == "cpu":
        raise InputError(
            f"precision is float16, which trains on a GPU alone, but the {name} model trains on the CPU; set precision to "
            "bfloat16 or float32"
        )


def check_vocabulary(tokenizer: Any, tokenizer_name: str, settings: ModelSettings) -> None:
    """Refuses a pre-trained model that comes with a tokenizer of another vocabulary: its embeddings would mean other tokens.

    One without a tokenizer is taken as it is.

    Raises:
        InputError: naming the first token that differs.
    """
    if settings.pretrained is None:
        return
    try:
        own = load_tokenizer(settings.pretrained)
    except InputError:
        return
    check_pair(tokenizer, own, f"the tokenizer at {tokenizer_name}", f"that of {settings.pretrained}")


def check_trainable(model: Any, name: str) -> None:
    """Raises `InputError` where transformers would train a model on something else than its labels."""
    if model.config.model_type == "fsmt":
        raise InputError(
            f"the {name} model is of type fsmt, which transformers trains on its source; it can be decoded with, not trained: "
            "name another"
        )
