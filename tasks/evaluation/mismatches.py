"""Where two token sequences differ, and by which top-2 logit margin a model decided there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tasks.decoding.decoder import Decoder, Rows

MARGIN_TOLERANCE = 1e-4
"""Top-2 logit margin below which two float32 runtimes may choose different tokens, since they sum in different orders."""


@dataclass(frozen=True)
class Mismatch:
    """The first position at which two texts differ."""

    example: int
    position: int
    margin: float
    """Top-2 logit margin of the model at that position."""


def first_mismatch(tokens: Sequence[int], expected: Sequence[int]) -> int | None:
    """The first position at which the texts differ, None for equal texts; a text that ends early differs at its end."""
    pairs = enumerate(zip(tokens, expected, strict=False))
    differing = next((position for position, (token, other) in pairs if token != other), None)
    if differing is None and len(tokens) != len(expected):
        return min(len(tokens), len(expected))
    return differing


def find_mismatches(decoder: Decoder, sources: Rows, texts: Rows, expected: Rows) -> list[Mismatch]:
    """The first mismatch of each text that differs from the expected one; a final end token is not compared.

    Args:
        decoder: The model that wrote the expected texts; its margins are reported.
        sources: Token ids of each source.
        texts: New tokens of each source.
        expected: New tokens of each source.
    """
    found = []
    for example, (source, *pair) in enumerate(zip(sources, texts, expected, strict=True)):
        text, other = (tokens[:-1] if tokens and tokens[-1] in decoder.end_tokens else tokens for tokens in pair)
        position = first_mismatch(text, other)
        if position is not None:
            found.append(Mismatch(example, position, top_two_margin(decoder, source, text[:position])))
    return found


def widest_margin(mismatches: Sequence[Mismatch]) -> float:
    """The widest margin; 0 for no mismatch."""
    return max((mismatch.margin for mismatch in mismatches), default=0.0)


@torch.inference_mode()
def top_two_margin(decoder: Decoder, source: list[int], prefix: Sequence[int]) -> float:
    """Difference between the model's two highest logits after `prefix`, the new tokens so far."""
    [start] = decoder.start(decoder.encode([source]))
    logits = decoder.forward([start + list(prefix)]).last([1])[0, 0]
    first, second = logits.float().topk(2).values.tolist()
    return float(first - second)
