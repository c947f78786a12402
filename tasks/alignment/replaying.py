"""Replay of rejections: what verification corrected in the drafter's proposals is what it learns next.

Online speculative decoding (Liu et al., 2023, Algorithm 2) distils the drafter on the positions where its proposals fell, in
use; Draft-OPD (2026) on the states that its own drafts lead to. Here that goes by rounds, each on fresh proposals.
"""

from __future__ import annotations

from tasks.decoding.generation import CORRECTED, Generation


def rejection_weights(generation: Generation, kept: float) -> list[float]:
    """What each token weighs in the loss: 1 where it stands in place of a rejected one, `kept` elsewhere."""
    return [1.0 if proposer == CORRECTED else kept for proposer in generation.proposers]
