"""Models as `transformers` folders with safetensors: initialise, load, save."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from tasks.errors import InputError
from tasks.models.settings import ModelSettings
from tasks.models.tokenizers import load_from


def initial_model(settings: ModelSettings, vocabulary: int, pad: int, end: int) -> Any:
    """The model that training starts from: `settings.pretrained`, or a random start that depends on them alone.

    Called twice with the same arguments it gives the same weights, which is what makes an aligned and an unaligned
    drafter differ in their training text only.

    Raises:
        InputError: the checkpoint does not exist, or its vocabulary is smaller than the tokenizer's.
    """
    if settings.pretrained is not None:
        return _sized(load_model(settings.pretrained), vocabulary, settings.pretrained)
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=vocabulary,
        d_model=settings.d_model,
        d_ff=settings.d_ff,
        d_kv=settings.d_kv,
        num_heads=settings.heads,
        num_layers=settings.encoder_layers,
        num_decoder_layers=settings.decoder_layers,
        dropout_rate=settings.dropout,
        feed_forward_proj=settings.feed_forward,
        pad_token_id=pad,
        eos_token_id=end,
        decoder_start_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        # Not `torch.manual_seed`, which would seed the GPUs as well, for good.
        torch.default_generator.manual_seed(settings.seed)
        return T5ForConditionalGeneration(config)


def _sized(model: Any, vocabulary: int, name: str) -> Any:
    if model.config.vocab_size < vocabulary:
        raise InputError(
            f"the tokenizer has {vocabulary} tokens but the model {name} has {model.config.vocab_size}; "
            "set tokenizer.pretrained to the model's own tokenizer"
        )
    return model


def load_model(source: str | Path, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> Any:
    """The encoder-decoder of a local folder or of the hub, in evaluation mode.

    Raises:
        InputError: nothing loadable is there, or weights are missing, which transformers would draw at random.
    """
    from transformers import AutoModelForSeq2SeqLM

    load = AutoModelForSeq2SeqLM.from_pretrained
    model, info = load_from(load, source, "encoder-decoder model", dtype=dtype, use_safetensors=True, output_loading_info=True)
    if info["missing_keys"]:
        raise InputError(
            f"the model at {source} lacks {len(info['missing_keys'])} of its weights, {min(info['missing_keys'])} among them; "
            "name a folder or a hub model whose weights fit its config.json"
        )
    return model.to(device).eval()


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Writes weights (safetensors), configuration and tokenizer; the folder appears whole or not at all."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
