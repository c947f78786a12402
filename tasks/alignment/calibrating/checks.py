"""What makes an output of the large model unfit to learn from."""

from __future__ import annotations

from collections.abc import Collection, Sequence

FAULTS = ("over_long", "empty", "degenerate")
"""Cut before it ended, without a word, or repeating itself."""
_LONGEST_GROUP = 4
"""Tokens: longer groups hardly loop before the output is over-long."""


def find_fault(tokens: Sequence[int], text: str, ends: Collection[int], max_repeats: int) -> str | None:
    """The first fault of an output, one of `FAULTS`; none where it is fit.

    Args:
        tokens: As generated: the end token is last if it was reached.
        text: What they say.
        ends: Tokens that end a text.
        max_repeats: How often a group of tokens may stand in a row; 0: any number.
    """
    if not tokens or tokens[-1] not in ends:
        return "over_long" if tokens else "empty"
    if not text.strip():
        return "empty"
    return "degenerate" if 0 < max_repeats < count_repeats(tokens[:-1]) else None


def count_repeats(tokens: Sequence[int]) -> int:
    """How often, at most, one group of one to four tokens stands in a row; 0 where there are no tokens."""
    return max((_in_a_row(tokens, length) for length in range(1, _LONGEST_GROUP + 1) if length <= len(tokens)), default=0)


def _in_a_row(tokens: Sequence[int], length: int) -> int:
    most = equal = 0
    for earlier, later in zip(tokens, tokens[length:], strict=False):
        equal = equal + 1 if earlier == later else 0
        most = max(most, equal)
    return 1 + most // length
