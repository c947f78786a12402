"""Sources as the prompts of decoder-only models."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.errors import InputError


def encode_prompts(prompts: Rows, name: str, device: torch.device) -> EncoderOutput:
    """Return the prompts unchanged.

    Raises:
        InputError: a prompt is empty; a model without an encoder needs at least one token to start from.
    """
    if not all(prompts):
        number = [len(prompt) for prompt in prompts].index(0) + 1
        raise InputError(f"source {number} is empty; the {name} model is decoder-only and needs a prompt of at least one token")
    rows = len(prompts)
    return EncoderOutput(torch.empty(rows, 0, 0, device=device), torch.empty(rows, 0, dtype=torch.long), prompts)


def skipped_columns(prompts: Sequence[int], cached: Sequence[int], counts: Sequence[int]) -> int:
    """Return how many leading new columns lie inside every row's prompt; the tokens that they would predict are known.

    Takes the number of tokens in each row's prompt, in its cache, and in this run.
    """
    inside = [prompt - 1 - before for prompt, before, count in zip(prompts, cached, counts, strict=True) if count]
    return max(0, min(min(inside), max(counts) - 1))
