"""The memory-bandwidth bound of a decoding step: the bytes that it must move, and how fast the device moves bytes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from tasks.decoding.runtimes.blueprint import Layer, Linear, blueprint_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_COPIES = 5


def copy_bandwidth(device: torch.device, size: int, clock: Callable[[], float]) -> float:
    """Bytes read and written per second while copying `size` random bytes on the device; the median of a few copies."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(_COPIES + 1):
        begun = clock()
        target.copy_(source)
        seconds.append(clock() - begun)
    return 2 * size / statistics.median(seconds[1:])


def step_bytes(model: PreTrainedModel, rows: int, written: int, source: int) -> int:
    """Bytes that one decoding step must read.

    Args:
        model: An encoder-decoder or decoder-only model of `transformers`.
        rows: Texts decoded as a batch; the weights are read once for all of them.
        written: Tokens of each text so far, whose keys and values are read.
        source: Tokens of each source, whose cross-attention keys and values are read; 0 without an encoder.

    Raises:
        ValueError: the architecture has no blueprint.
    """
    blueprint = blueprint_of(model)
    if blueprint is None:
        raise ValueError(f"no blueprint of a {model.config.model_type}")
    stack = blueprint.decoder
    weights = sum(map(_layer_numbers, stack.layers)) + (0 if stack.head is None else _numbers(stack.head))
    own = 2 * stack.key_value_heads * stack.head_width * written
    cross = 2 * stack.heads * stack.head_width * source if stack.layers[0].cross is not None else 0
    return int(model.dtype.itemsize * (weights + rows * len(stack.layers) * (own + cross)))


def _layer_numbers(layer: Layer) -> int:
    used = [layer.query_key_value, layer.out, layer.feed_in, layer.feed_out]
    if layer.cross is not None:
        used += [layer.cross.query, layer.cross.out]
    return sum(map(_numbers, used))


def _numbers(linear: Linear) -> int:
    return sum(part.numel() for part in linear.parts) + (0 if linear.bias is None else linear.bias.numel())
