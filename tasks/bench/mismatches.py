"""Whether two ways of decoding a model give the same tokens, and if not, how close the call was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tasks.decoding.decoder import Rows

MARGIN_TOLERANCE = 1e-4
"""Top-2 logit margin under which float32 may differ between two orders of summing."""


@dataclass(frozen=True)
class Mismatch:
    """The first token at which two texts differ."""

    example: int
    position: int
    margin: float
    """Between the likeliest and the second likeliest logit there, by the model of `transformers` itself."""


def find_mismatches(model: Any, sources: Rows, ours: Rows, theirs: Rows) -> list[Mismatch]:
    """The texts that are not the same, each with its first difference; end tokens are not compared."""
    ends = model.generation_config.eos_token_id
    found = []
    for example, (source, *texts) in enumerate(zip(sources, ours, theirs, strict=True)):
        our, their = (text[:-1] if text and text[-1] == ends else text for text in texts)
        if our != their:
            position = first_mismatch(our, their)
            found.append(Mismatch(example, position, _margin(model, source, our[:position])))
    return found


def first_mismatch(one: list[int], other: list[int]) -> int:
    """The place of the first token that is not the same in both; where one text goes on after the other, its end."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(one), len(other)))


def widest_margin(found: Sequence[Mismatch]) -> float:
    """The widest margin; 0 where nothing differs."""
    return max((one.margin for one in found), default=0.0)


@torch.inference_mode()
def _margin(model: Any, source: list[int], written: list[int]) -> float:
    if model.config.is_encoder_decoder:
        start = [model.config.decoder_start_token_id]
        run = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([start + written]), use_cache=False)
    else:
        run = model(input_ids=torch.tensor([source + written]), use_cache=False)
    first, second = run.logits[0, -1].float().topk(2).values.tolist()
    return float(first - second)
