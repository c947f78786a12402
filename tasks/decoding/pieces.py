"""A text cut where its proposer changes, for people to see what the small model wrote (BiLD, Figure 9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

Detokenise = Callable[[tuple[int, ...]], str]
"""Makes a text of tokens."""


def pieces_by_proposer(tokens: Sequence[int], proposers: str, text: Detokenise) -> list[tuple[str, str]]:
    """Return a text as (piece, proposer); joined, the pieces are the text.

    Args:
        tokens: Generated ids.
        proposers: One letter a token, as in `Generation.proposers`.
        text: Makes a text of tokens.
    """
    whole = text(tuple(tokens))
    pieces, begin, end = [], 0, 0
    for proposer, run in groupby(proposers):
        end += len(list(run))
        # A later token may complete a character, so a piece ends where the prefix stops matching the whole text.
        stop = max(begin, _common_prefix_length(text(tuple(tokens[:end])), whole))
        pieces.append((whole[begin:stop], proposer))
        begin = stop
    return pieces


def _common_prefix_length(one: str, other: str) -> int:
    shorter = min(len(one), len(other))
    return next((position for position in range(shorter) if one[position] != other[position]), shorter)
