"""Random T5 pairs of given shapes whose texts always reach the length limit, so that all contenders do equal work."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tasks.decoding.decoder import Rows
from tasks.models.layers import first_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_START, _END = 0, 1
# These scales make a random decoder generate varied text: embeddings are too small for a token to predict itself forever, the
# source, which is the same at every position, has little influence, and feed-forward layers amplify the previous token.
_EMBEDDED, _CROSS, _FEED = 0.1, 0.2, 3.0
# This scale makes the first layers alone generate nearly the same text.
_LATER = 0.03


@dataclass(frozen=True)
class Shape:
    """The dimensions of a random pair, and how much of it is timed."""

    layers: int
    """Layers of the encoder and of the large model's decoder."""
    width: int
    heads: int
    small_layers: int = 0
    """Decoder layers of the small model, the first ones of the large model; 0 for a case without a small model."""
    vocabulary: int = 32128
    tokens: int = 40
    """New tokens of every text."""
    examples: int = 1
    """Texts of a round, decoded one after the other."""
    batch: int = 16
    batch_tokens: int = 20
    batch_rounds: int = 5
    memory: bool = False
    """Whether to measure the peak memory of each contender, in a process for each."""

    @property
    def name(self) -> str:
        return f"{self.layers} layers d {self.width}"


SHAPES = (
    Shape(2, 64, 2, examples=4, batch=32, batch_tokens=40),
    Shape(4, 256, 4, small_layers=1, batch=32, memory=True),
    Shape(6, 512, 8, tokens=32, batch_rounds=3),
)


def random_pair(shape: Shape, seed: int = 0) -> tuple[PreTrainedModel, PreTrainedModel | None]:
    """A large model and a small one that agrees with it on many tokens.

    The end token's embedding, tied to its row of the head, is zero; its logit is therefore 0 and never the highest. The
    contribution of layers that the small model lacks is scaled down.
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
        for layer, block in enumerate(large.decoder.block):
            own, cross, feed = block.layer
            later = _LATER if 0 < shape.small_layers <= layer else 1.0
            own.SelfAttention.o.weight.mul_(later)
            cross.EncDecAttention.o.weight.mul_(later * _CROSS)
            feed.DenseReluDense.wo.weight.mul_(later * _FEED)
    if not shape.small_layers:
        return large, None
    small = first_layers(large, shape.small_layers)
    small.config = copy.deepcopy(config)
    small.config.num_decoder_layers = shape.small_layers
    return large, small


def random_sources(shape: Shape, count: int, seed: int = 0) -> Rows:
    """Sources of 8 to 16 random tokens, each ending with the end token."""
    rng = random.Random(seed)  # noqa: S311 (text, not a secret)
    return [[rng.randrange(2, shape.vocabulary) for _ in range(rng.randint(7, 15))] + [_END] for _ in range(count)]
