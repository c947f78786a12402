"""The template notation of reports and summaries.

`[a|b|c]` is a free choice, also nested or with an empty option; `{name}` is a slot. The value of a slot may hold choices
of its own, which are drawn anew at each use, so that the same fact appears in several wordings.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

_SLOT = re.compile(r"\{(\w+)\}")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])")
_SENTENCE_START = re.compile(r"(?:^|(?<=[.!?] ))[a-z]")


def fill(template: str, slots: Mapping[str, str]) -> str:
    """Replace slots by their values, including slots inside values.

    Raises:
        KeyError: a slot has no value.
    """
    while "{" in template:
        template = _SLOT.sub(lambda match: slots[match[1]], template)
    return template


def choose(text: str, rng: random.Random) -> str:
    """Resolve every choice at random, the innermost first."""
    while "[" in text:
        text = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), text)
    return text


def polish(text: str) -> str:
    """Turn expanded text into one or more sentences: spaces, `a` or `an`, capitals, the full stop."""
    text = " ".join(text.split()).replace(" ,", ",").replace(" .", ".")
    text = _ARTICLE.sub(r"\1n ", text)
    return _SENTENCE_START.sub(lambda match: match[0].upper(), text) + "."


def write(template: str, slots: Mapping[str, str], rng: random.Random) -> str:
    """Expand a template once: fill slots, resolve choices, polish."""
    return polish(choose(fill(template, slots), rng))
