"""Finds outputs of the large model that are unfit for training."""

from __future__ import annotations

from collections.abc import Collection, Sequence

FAULTS = ("over_long", "empty", "degenerate")
"""No end token, no word, or repetitive."""
_LONGEST_GROUP = 4
"""In tokens. An output that repeats longer groups is over-long anyway."""


def find_fault(tokens: Sequence[int], text: str, ends: Collection[int], max_repeats: int) -> str | None:
    """Return the first fault of an output, one of `FAULTS`, or None.

    Args:
        tokens: Generated tokens; the last one is the end token if it was reached.
        text: Their text.
        ends: End tokens.
        max_repeats: Most consecutive repetitions of a group of tokens; 0: any number.
    """
    if not tokens or tokens[-1] not in ends:
        return "over_long" if tokens else "empty"
    if not text.strip():
        return "empty"
    return "degenerate" if 0 < max_repeats < count_repeats(tokens[:-1]) else None


def count_repeats(tokens: Sequence[int]) -> int:
    """Return the most consecutive repetitions of any group of one to four tokens; 0 without tokens."""
    return max((_in_a_row(tokens, length) for length in range(1, _LONGEST_GROUP + 1) if length <= len(tokens)), default=0)


def _in_a_row(tokens: Sequence[int], length: int) -> int:
    most = equal = 0
    for earlier, later in zip(tokens, tokens[length:], strict=False):
        equal = equal + 1 if earlier == later else 0
        most = max(most, equal)
    return 1 + most // length
