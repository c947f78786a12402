"""Counts drafted and accepted tokens of speculative decoding from what the large model read, call by call.

An engine's own statistics follow its own definitions: `transformers` subtracts an accepted end token from its number of
matches, for one. What the large model reads and what it finally wrote suffice to count exactly as `tasks.decoding` counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.decoding.generation import Counts


def count_drafts(calls: Sequence[Sequence[int]], prompt: int, tokens: Sequence[int]) -> Counts:
    """Count the drafts of one greedy text.

    Args:
        calls: Token ids that each call of the large model read: in the first the prompt and a draft, in each other one the
            last final token and a draft. A draft may be empty.
        prompt: Tokens of the prompt; of an encoder-decoder, its start token alone.
        tokens: New tokens of the text, the end token included if it was reached.

    Returns:
        `tokens`, `large_calls`, `drafted`, `accepted`, `rollbacks`, `verified` and `kept`.

    Raises:
        ValueError: the calls are not those of this text.
    """
    counts = Counts(tokens=len(tokens))
    final = 0  # new tokens so far, those that no later call can change
    for number, read in enumerate(calls):
        if number and (final >= len(tokens) or read[0] != tokens[final - 1]):
            raise ValueError(f"call {number + 1} does not continue the text after {final} tokens")
        draft = read[1:] if number else read[prompt:]
        accepted = _common_prefix(draft, tokens[final:])
        counts.large_calls += 1
        counts.verified[len(draft) + 1] += 1
        if draft:
            counts.drafted += len(draft)
            counts.accepted += accepted
            counts.rollbacks += accepted < len(draft)
            counts.kept[len(draft), accepted] += 1
        # The call also gave the token after the accepted ones, unless the draft ended the text.
        final = min(final + accepted + 1, len(tokens))
    if final != len(tokens):
        raise ValueError(f"{len(calls)} calls account for {final} of {len(tokens)} tokens")
    return counts


def count_calls(written: Sequence[int], tokens: Sequence[int]) -> Counts:
    """Count the calls of one text by the number of tokens that each wrote.

    Args:
        written: New tokens of each call of the large model: the accepted ones and one of its own.
        tokens: New tokens of the text, the end token included if it was reached.

    Returns:
        `tokens` and `large_calls`.

    Raises:
        ValueError: the calls are not those of this text.
    """
    if sum(written) != len(tokens) or not all(written):
        raise ValueError(f"{len(written)} calls account for {sum(written)} of {len(tokens)} tokens")
    return Counts(tokens=len(tokens), large_calls=len(written))


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    shorter = min(len(one), len(other))
    return next((place for place in range(shorter) if one[place] != other[place]), shorter)
