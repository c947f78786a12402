"""Random draws, keyed by (seed, example, position, purpose).

With these keys, a batched, resumed or reordered run draws the same tokens as a run of one example at a time. Repeated draws at
one position, such as a new draft after a rollback, each have their own purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


class TokenSource:
    """Keyed uniform numbers, and tokens sampled with them by inverting the cumulative distribution."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniform(self, example: int, position: int, purpose: str) -> float:
        """Return a number in the open interval (0, 1) that depends only on the key."""
        key = f"{self.seed} {example} {position} {purpose}".encode()
        bits = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 11
        return (bits + 0.5) * 2.0**-53

    def draw(self, dist: Tensor, keys: Sequence[tuple[int, int, str]]) -> list[int]:
        """Sample one token for each row of `dist` (rows, vocabulary), not necessarily normalised, with one key for each row."""
        cumulative = dist.double().cumsum(-1)
        uniforms = torch.tensor([self.uniform(*key) for key in keys], dtype=torch.float64, device=dist.device)
        targets = uniforms[:, None] * cumulative[:, -1:]
        tokens: list[int] = torch.searchsorted(cumulative, targets).squeeze(-1).clamp_(max=dist.shape[-1] - 1).tolist()
        return tokens
