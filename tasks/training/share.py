"""What a training takes of the machine, estimated before its first step, and what the machine has."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from tasks import cgroups
from tasks.locks import Share
from tasks.training.context import TrainingContext

_LOADED = 600_000_000
"""Bytes of a process that has imported torch, transformers and DeepSpeed, and of the examples."""
_USABLE = 0.9
"""The part of a machine's memory that trainings may fill."""
_EAGER = 2
"""Factor on the formula's activations: gradients of activations and copies that PyTorch makes between its kernels come to 1.5
times it for a T5 of 7.6 million parameters on a CPU."""
_OPTIMIZER_VALUES = {"adamw": 2, "adafactor": 1}
"""Values that the optimiser holds for each trained weight; adafactor's factors are few, but its update is of the same size."""


def training_share(opened: TrainingContext) -> Share:
    """Return the threads of a training and an estimate of its memory.

    Weights, gradients and the optimiser's values are counted in float32, teachers with their files. Activations follow
    equation 1 of Korthikanti et al. (2022), "Reducing Activation Recomputation in Large Transformer Models", but in float32:
    2 (34 s b h + 5 a s² b) bytes a layer, for s tokens, b texts, width h and a heads. Logits and two copies of them are added.
    """
    model, training, text = opened.model, opened.job.training, opened.job.text
    parameters, config = list(model.parameters()), model.config
    trained = sum(one.numel() for one in parameters if one.requires_grad)
    state = 4 * (sum(one.numel() for one in parameters) + trained * (1 + _OPTIMIZER_VALUES[training.optimizer]))
    teachers = sum(file.stat().st_size for folder in opened.job.teachers for file in Path(folder).glob("*.safetensors"))
    both = text.max_source_tokens + text.max_target_tokens
    texts = max(1, training.batch_tokens // both) if training.batch_tokens else training.batch_size
    layers = config.num_hidden_layers + (getattr(config, "num_decoder_layers", 0) or 0)
    longest = max(text.max_source_tokens, text.max_target_tokens) if config.is_encoder_decoder else both
    activations = _EAGER * layers * 2 * texts * longest * (34 * config.hidden_size + 5 * config.num_attention_heads * longest)
    predicted = text.max_target_tokens if config.is_encoder_decoder else both
    logits = 3 * 4 * texts * predicted * config.vocab_size
    loaded = _LOADED if opened.device.type == "cpu" else 0
    memory = loaded + state + teachers + (activations + logits) // training.accumulation
    return Share(_threads(opened.device), memory)


def room_of(device: torch.device) -> Share:
    """Return the cores of this process's machine, and the memory of the device that trainings may fill."""
    if device.type == "cuda":
        return Share(_cores(), int(_USABLE * torch.cuda.get_device_properties(device).total_memory))
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Share(_cores(), int(_USABLE * min(whole, cgroups.memory_limit() or whole)))


def _threads(device: torch.device) -> int:
    return min(torch.get_num_threads(), _cores()) if device.type == "cpu" else 1


def _cores() -> int:
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(own, cgroups.core_limit() or own)))
