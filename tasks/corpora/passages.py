"""Cuts a running text into passages for language models: the first half is the source, the second half its continuation."""

from __future__ import annotations

import re

from tasks.corpora.example import Example
from tasks.errors import InputError


def passages(text: str, size: int, location: str, setting: str) -> list[Example]:
    """Cut a text into passages of equal length; a shorter rest is left out.

    Args:
        text: The text; words are what white space separates, and the white space inside a half is kept.
        size: Words of a passage.
        location: Of the text, for an error.
        setting: What sets `size`, for an error.

    Raises:
        InputError: the text has fewer words than a passage.
    """
    words = [(word.start(), word.end()) for word in re.finditer(r"\S+", text)]
    half = size // 2
    begins = range(0, len(words) - size + 1, size)
    if not begins:
        raise InputError(f"{location}: has {len(words)} words, fewer than a passage of {size}; lower {setting}")
    return [
        Example(text[words[at][0] : words[at + half - 1][1]], (text[words[at + half][0] : words[at + size - 1][1]],))
        for at in begins
    ]
