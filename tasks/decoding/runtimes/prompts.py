"""The source as a prompt: what decoder-only models begin with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.errors import InputError


def encode_prompts(prompts: Rows, name: str, device: torch.device) -> EncoderOutput:
    """The prompts, kept as they are.

    Raises:
        InputError: a prompt is empty, and a model without an encoder has nothing to begin with.
    """
    if not all(prompts):
        number = [len(prompt) for prompt in prompts].index(0) + 1
        raise InputError(f"source {number} is empty; the {name} model is decoder-only and needs a prompt of at least one token")
    rows = len(prompts)
    return EncoderOutput(torch.empty(rows, 0, 0, device=device), torch.empty(rows, 0, dtype=torch.long), prompts)


def skipped_columns(prompts: Sequence[int], cached: Sequence[int], counts: Sequence[int]) -> int:
    """New columns at the front after which every row's prompt goes on: what they predict is known already.

    Takes the tokens of each row's prompt, those cached, and those that are new.
    """
    inside = [prompt - 1 - before for prompt, before, count in zip(prompts, cached, counts, strict=True) if count]
    return max(0, min(min(inside), max(counts) - 1))
