"""Random T5s of a given shape, whose every text is as long as it may be, so that all contenders do the same work."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any

import torch

from tasks.decoding.decoder import Rows
from tasks.models.layers import first_layers

_START, _END = 0, 1
_EMBEDDED = 0.1
_LATER = 0.1


@dataclass(frozen=True)
class Shape:
    """What a random pair looks like, and how much of it is timed."""

    layers: int
    """Of the encoder, and of the large model's decoder."""
    width: int
    heads: int
    small_layers: int = 0
    """Decoder layers of the small model, which are the large one's first; 0: there is none."""
    vocabulary: int = 32128
    tokens: int = 40
    """Of every text."""
    examples: int = 1
    """Texts a round, one after the other."""
    batch: int = 16
    batch_tokens: int = 20
    batch_rounds: int = 5

    @property
    def name(self) -> str:
        return f"{self.layers} layers d {self.width}"


SHAPES = (
    Shape(2, 64, 2, examples=4, batch=32, batch_tokens=40),
    Shape(4, 256, 4, small_layers=1, batch=32),
    Shape(6, 512, 8, batch_rounds=3),
)


def random_pair(shape: Shape, seed: int = 0) -> tuple[Any, Any | None]:
    """A large model, and a small one that agrees with it on many tokens.

    Small embeddings keep a token from predicting itself for ever; the end token's are zero, so that it is never the likeliest.
    What later layers add is scaled down where there is a small model that lacks them.
    """
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=shape.vocabulary,
        d_model=shape.width,
        d_ff=4 * shape.width,
        d_kv=shape.width // shape.heads,
        num_heads=shape.heads,
        num_layers=shape.layers,
        pad_token_id=_START,
        eos_token_id=_END,
        decoder_start_token_id=_START,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        large = T5ForConditionalGeneration(config).eval()
        large.shared.weight.mul_(_EMBEDDED)
        large.shared.weight[_END] = 0
        if not shape.small_layers:
            return large, None
        for block in large.decoder.block[shape.small_layers :]:
            own, cross, feed = block.layer
            for out in (own.SelfAttention.o, cross.EncDecAttention.o, feed.DenseReluDense.wo):
                out.weight.mul_(_LATER)
    small = first_layers(large, shape.small_layers)
    small.config = copy.deepcopy(config)
    small.config.num_decoder_layers = shape.small_layers
    return large, small


def random_sources(shape: Shape, count: int, seed: int = 0) -> Rows:
    """Sources of 8 to 16 random tokens, the end token last."""
    chance = random.Random(seed)  # noqa: S311 (text, not a secret)
    return [[chance.randrange(2, shape.vocabulary) for _ in range(chance.randint(7, 15))] + [_END] for _ in range(count)]
