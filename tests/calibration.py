"""A tiny large model that writes texts of many lengths, some of them unfit, for tests of calibration."""

import functools
from pathlib import Path
from typing import Any

from tasks.corpora.example import Example
from tasks.decoding.method import SamplingSettings
from tasks.models.checkpoints import initial_model, save_model
from tasks.models.settings import ModelSettings, TextSettings, TokenizerSettings
from tasks.models.tokenizers import load_tokenizer, train_tokenizer

TEXT = TextSettings(max_source_tokens=12, max_target_tokens=32)
DRAWN = SamplingSettings(temperature=1.0)
"""How a random model must write: its greedy text never ends."""
WORDS = ["red", "blue", "green", "black", "white", "brown", "grey", "pink"]
SOURCES = [f"{WORDS[place % 8]} {WORDS[place // 8 % 8]} {place * 37}" for place in range(40)]


INPUTS = [Example(source, (source,)) for source in SOURCES]
"""The sources, each its own reference."""


@functools.cache
def tiny(architecture: str) -> tuple[Any, Any]:
    """A random model, and its tokenizer of 64 pieces."""
    tokenizer = train_tokenizer(SOURCES * 4, TokenizerSettings(vocabulary=64))
    shape = ModelSettings(architecture=architecture, d_model=32, d_ff=32, d_kv=16, heads=2, decoder_layers=1, encoder_layers=1)
    return initial_model(shape, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id).eval(), tokenizer


def saved(architecture: str, folder: Path) -> Any:
    """The same in a folder; gives the tokenizer as it is loaded from there."""
    save_model(*tiny(architecture), folder)
    return load_tokenizer(folder)
