"""Toy models for the decoding tests: tiny T5s with random weights, and a decoder without any cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.decoding.decoder import Memory, Rows, Step, require_finite

START, END, VOCABULARY = 0, 1, 24
SHARED_SEED=3
SHARPNESS=6.0;EMB=5

Prefix = tuple[int, ...]
Predict = Callable[[Prefix, Prefix], Tensor]
"""(source, target prefix with its start token) to the logits of the next token."""


def toy_t5(seed: int, encoder_layers: int, decoder_layers: int, feed_forward: str = "relu", noise: float = 1.0) -> Any:
    """A T5 whose next token hangs on its last one and, `noise` times as strongly as untrained, on all before it.

    All toys share their embeddings and their head, so that a deep and a shallow one agree on some tokens, not on all, as a
    drafter and its large model do. The end token comes up every ten tokens or so.
    """
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_ff=24,
        d_kv=8,
        num_heads=2,
        num_layers=encoder_layers,
        num_decoder_layers=decoder_layers,
        feed_forward_proj=feed_forward,
        dropout_rate=0.0,
        pad_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config).eval()
        for name, weight in model.decoder.named_parameters():
            if name.endswith((".o.weight", ".wo.weight")):
                weight *= noise
        torch.manual_seed(SHARED_SEED)
        words = torch.nn.init.orthogonal_(torch.empty(VOCABULARY, 32))
        model.shared.weight.copy_(EMB * words)
        follows = [1 + torch.randperm(VOCABULARY - 1) for _ in range(2)]
        head = torch.zeros(VOCABULARY, 32)
        for order in follows:
            head[order.roll(1)] += words[order]
        model.lm_head.weight = torch.nn.Parameter(SHARPNESS * head)
    return model


