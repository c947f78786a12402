"""How many texts are decoded side by side where a setting leaves that open: as many as the memory of the device holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tasks import machine
from tasks.console import log
from tasks.errors import InputError
from tasks.models.settings import TextSettings
from tasks.models.spread import places_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MOST = 128
"""Texts: with more, a batch waits longer for its last text than it gains."""
REMEDY = "set machine.dtype to bfloat16, or take a smaller pair"
"""Where not one text fits beside the models."""
USABLE = 0.9
"""The part of a device's memory that may be filled: the rest is the driver's, and gaps between tensors."""


def text_bytes(config: PreTrainedConfig, source: int, target: int) -> int:
    """Return the bytes of a text of so many tokens that is decoded, in float32.

    These are keys and values of all layers, its logits with a copy, and in a T5's encoder the bias of each two tokens for each
    head, with a masked copy.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    own = getattr(config, "d_kv", None) or getattr(config, "head_dim", None)
    depth = getattr(config, "num_decoder_layers", None) or config.num_hidden_layers
    width = own or config.hidden_size // config.num_attention_heads
    biases = 2 * config.num_attention_heads * source**2 if hasattr(config, "relative_attention_num_buckets") else 0
    return int(4 * (2 * depth * heads * width * (source + target) + 2 * config.vocab_size + biases))


def fitting_batch(wanted: int, room: float, text: float) -> int:
    """Return the texts of a batch, at most `wanted`, or `MOST` where that is 0; 0 where not even one text fits.

    Args:
        wanted: What is set.
        room: Bytes beside the weights.
        text: Bytes of a text.
    """
    return max(0, int(min(wanted or MOST, room // text)))


def batch_for(wanted: int, name: str, models: Sequence[PreTrainedModel], text: TextSettings, sharing: int = 1) -> int:
    """Return the texts that are decoded side by side: what is set, or where that is 0 what fits beside the models.

    Args:
        wanted: The setting.
        name: Its name, for messages.
        models: Those that decode, on one device.
        text: The longest source and target.
        sharing: Processes of the device that each do the same; a model that is spread over devices is in one process alone.

    Raises:
        InputError: not even one text fits.
    """
    if wanted:
        return wanted
    device, sharing = models[0].device, 1 if any(map(places_of, models)) else sharing
    on_cpu = device.type == "cpu"
    whole = machine.memory() if on_cpu else torch.cuda.get_device_properties(device).total_memory
    held = sum(one.nbytes for model in models for one in model.parameters() if one.device == device)
    each = sum(text_bytes(model.config, text.max_source_tokens, text.max_target_tokens) for model in models)
    found = fitting_batch(wanted, USABLE * whole / sharing - held, each)
    said = f"{held / 1e9:.1f} GB of weights and {each / 1e9:.2g} GB a text, of {whole / 1e9:.0f} GB"
    said += f" for {sharing} processes" if sharing > 1 else ""
    if not found:
        fewer = "set machine.workers to 0, which is one process, or " if sharing > 1 else ""
        raise InputError(f"{name}: not one text fits ({said}); {fewer}{REMEDY}")
    log.info("%s: %d texts side by side (%s)", name, found, said)
    return found
