"""The memory that the two models of a sweep take, as a part of `pair.json`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelMemory:
    """Bytes that a model takes while it decodes."""

    weights: int
    """As the runtime holds them."""
    cache: int
    """Keys and values of one text of the task's maximal lengths."""


@dataclass(frozen=True, kw_only=True)
class PairMemory:
    """Memory of both models, and the lengths of the text that the caches are for."""

    small: ModelMemory
    large: ModelMemory
    source_tokens: int
    target_tokens: int
