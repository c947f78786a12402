"""Finds outputs that run away: those in which a stretch of tokens repeats itself."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PERIOD = 16
"""Tokens of the longest group whose repetition is looked for."""
LEAST_TOKENS = 12
LEAST_REPEATS = 3


def is_looping(tokens: Sequence[int]) -> bool:
    """Whether an output contains a loop.

    A loop is a stretch of at least 12 tokens in which a group of n tokens, 1 ≤ n ≤ 16, occurs at least 3 times in a row: one
    token 12 times, two tokens 6 times, three tokens 4 times, four to sixteen tokens 3 times. Where the stretch lies does not
    matter: a loop that an output leaves again is a loop.

    Args:
        tokens: The output, with or without its end token.
    """
    # A loop of 12 tokens has at most 4 different ones, so any loop has 8 repetitions of tokens; most outputs have fewer.
    if len(tokens) - len(set(tokens)) < LEAST_TOKENS - LEAST_TOKENS // LEAST_REPEATS:
        return False
    longest = min(LONGEST_PERIOD, len(tokens) // LEAST_REPEATS)
    return any(_repeats(tokens, period) for period in range(1, longest + 1))


def _repeats(tokens: Sequence[int], period: int) -> bool:
    """Whether a stretch that is long enough has this period."""
    needed = max(LEAST_TOKENS, LEAST_REPEATS * period) - period
    equal = 0
    for earlier, later in zip(tokens, tokens[period:], strict=False):
        equal = equal + 1 if earlier == later else 0
        if equal >= needed:
            return True
    return False
