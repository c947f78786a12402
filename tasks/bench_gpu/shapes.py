"""Random models of well-known shapes, in pairs that agree on most tokens as a trained drafter and its large model do."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.decoding.decoder import Rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

START, END = 0, 1
_SHARES = (1.0, 0.85)
"""Head weight of each of a token's two successors. The layers' output decides between them, mostly alike in both models."""
_LOUDNESS = 0.75
"""Approximate norm of all layers' contributions to the residual stream, relative to the embedding."""

_WRITING = ("Attention.o.weight", ".wo.weight", ".o_proj.weight", ".down_proj.weight")
"""Parameters whose output is added to the residual stream."""


@dataclass(frozen=True)
class Shape:
    """Dimensions of one model."""

    family: str
    """t5 (encoder and decoder of equal depth) or llama."""
    width: int
    layers: int
    inner: int
    heads: int
    key_value_heads: int
    vocabulary: int = 32128


@dataclass(frozen=True)
class PairShape:
    """A large model and its drafter."""

    name: str
    large: Shape
    small: Shape
    compiled: bool = False
    """Whether the slow measurements that need a compiler run too."""


_T5_SMALL = Shape("t5", 512, 6, 2048, 8, 8)
SHAPES = (
    PairShape("t5-large", Shape("t5", 1024, 24, 4096, 16, 16), _T5_SMALL, compiled=True),
    PairShape("llama-1b", Shape("llama", 2048, 16, 8192, 32, 8), Shape("llama", 512, 4, 2048, 8, 2)),
    PairShape("t5-base", Shape("t5", 768, 12, 3072, 12, 12), _T5_SMALL),
    PairShape("t5-small", _T5_SMALL, Shape("t5", 512, 2, 2048, 8, 8)),
)
QUICK = (
    PairShape("tiny t5", Shape("t5", 64, 3, 96, 4, 4, 96), Shape("t5", 64, 1, 96, 4, 4, 96), compiled=True),
    PairShape("tiny llama", Shape("llama", 64, 3, 96, 4, 2, 96), Shape("llama", 64, 1, 96, 4, 2, 96)),
)


def random_model(shape: Shape, device: torch.device, seed: int) -> PreTrainedModel:
    """A float32 model in evaluation mode, in which one of two tokens follows each token and no text ends before its limit."""
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device]), torch.no_grad(), device:
        torch.manual_seed(seed)
        model = _BUILDERS[shape.family](shape).eval()
        for name, weight in model.named_parameters():
            if name.endswith(_WRITING):
                weight.normal_(std=_LOUDNESS / math.sqrt(3 * shape.layers * weight.shape[1]))
        words = torch.randn(shape.vocabulary, shape.width)
        model.get_input_embeddings().weight.copy_(words)
        # The head gets its own weight even where the architecture ties it to the embedding.
        model.get_output_embeddings().weight = torch.nn.Parameter(_head(words))
    return model


def _head(words: Tensor) -> Tensor:
    """Head weights that favour each token's two successors; start and end tokens are nobody's successor."""
    head = torch.zeros_like(words)
    generator = torch.Generator().manual_seed(1)
    for share in _SHARES:
        order = 2 + torch.randperm(len(words) - 2, generator=generator, device="cpu").to(words.device)
        head[order.roll(1)] += share * words[order] / math.sqrt(words.shape[1])
    return head


def random_sources(vocabulary: int, count: int, longest: int) -> Rows:
    """Sources of random tokens with the end token last, each at least half as long as `longest`."""
    rng = random.Random(0)  # noqa: S311 (text, not a secret)
    lengths = [rng.randint(longest // 2, longest) for _ in range(count)]
    return [[rng.randrange(2, vocabulary) for _ in range(length - 1)] + [END] for length in lengths]


def _t5(shape: Shape) -> PreTrainedModel:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=shape.vocabulary,
            d_model=shape.width,
            d_ff=shape.inner,
            d_kv=shape.width // shape.heads,
            num_heads=shape.heads,
            num_layers=shape.layers,
            num_decoder_layers=shape.layers,
            pad_token_id=START,
            eos_token_id=END,
            decoder_start_token_id=START,
            tie_word_embeddings=False,
        )
    )


def _llama(shape: Shape) -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_value_heads,
            pad_token_id=START,
            bos_token_id=None,
            eos_token_id=END,
        )
    )


_BUILDERS = {"t5": _t5, "llama": _llama}
