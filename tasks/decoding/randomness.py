"""Where drawn tokens come from: draws keyed by (seed, example, position, purpose).

So keyed, a batched, resumed or reordered run draws the same tokens as a run of one example at a time. What is drawn more
than once at a position, as a draft is after a rollback, has a purpose of its own each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


class TokenSource:
    """Keyed uniforms, and tokens drawn by them through the inverse of the cumulative distribution."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def uniform(self, example: int, position: int, purpose: str) -> float:
        """A number in the open interval (0, 1) that depends on the key alone."""
        key = f"{self.seed} {example} {position} {purpose}".encode()
        bits = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 11
        return (bits + 0.5) * 2.0**-53

    def draw(self, dist: Tensor, keys: Sequence[tuple[int, int, str]]) -> list[int]:
        """One token a row from `dist` (rows, vocabulary), which need not be normalised; one key a row."""
        cumulative = dist.double().cumsum(-1)
        uniforms = torch.tensor([self.uniform(*key) for key in keys], dtype=torch.float64, device=dist.device)
        targets = uniforms[:, None] * cumulative[:, -1:]
        tokens: list[int] = torch.searchsorted(cumulative, targets).squeeze(-1).clamp_(max=dist.shape[-1] - 1).tolist()
        return tokens
