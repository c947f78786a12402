"""A large model that does not fit one card: `accelerate` spreads its layers over the cards and the host, for decoding alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from tasks import machine
from tasks.console import log
from tasks.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

USABLE = 0.8
"""The part of a card that layers may fill: the rest is for caches and for the small model, which is on the first card."""


def room_for_layers(weights: int, cards: list[int], host: int) -> dict[int | str, int] | None:
    """Return the bytes of layers that each card and the host (`cpu`) may have; None where one card has room for all.

    What is more than all of it stays on the disk.

    Args:
        weights: Bytes of the model.
        cards: Bytes of memory of each card.
        host: Bytes of memory of the host.
    """
    if weights <= USABLE * cards[0]:
        return None
    return {**{number: int(USABLE * one) for number, one in enumerate(cards)}, "cpu": int(USABLE * host)}


def room_here(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> dict[int | str, int] | None:
    """Return `room_for_layers` on this machine of a model with this configuration; None where `device` is no GPU.

    Raises:
        InputError: the model is to be spread in each of several processes that train.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    if device.type != "cuda":
        return None
    cards = [torch.cuda.get_device_properties(number).total_memory for number in range(torch.cuda.device_count())]
    with torch.device("meta"):  # shapes without memory
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        weights = dtype.itemsize * sum(one.numel() for one in kind.from_config(config).parameters())
    room = room_for_layers(weights, cards, machine.memory())
    if room is not None and os.environ.get("WORLD_SIZE", "1") != "1":
        said = "the large model does not fit one GPU, and each process would spread it over all of them"
        raise InputError(f"{said}; set machine.processes to 1")
    return room


def places_of(model: PreTrainedModel) -> str:
    """Return where the layers of a model are, such as `2 GPUs and the cpu`; nothing where all are in one place."""
    places = set(map(str, getattr(model, "hf_device_map", {}).values()))
    if len(places) < 2:
        return ""
    gpus = len(places - {"cpu", "disk"})
    named = [f"{gpus} GPU{'s' if gpus > 1 else ''}"] if gpus else []
    return " and ".join(named + [f"the {name}" for name in ("cpu", "disk") if name in places])


def say_what_it_costs(model: PreTrainedModel, source: object) -> None:
    """Log that a model is spread, and what that means for its speed."""
    places = places_of(model)
    slow = "the layers that no card holds are copied to one for every token" if "the " in places else "one card works at a time"
    log.warning(
        "the model at %s does not fit one GPU: its layers are spread over %s, in the reference runtime; %s. Its tokens are the "
        "same, and how much slower it is was not measured: compare no times with those of a model on one GPU",
        source,
        places,
        slow,
    )
