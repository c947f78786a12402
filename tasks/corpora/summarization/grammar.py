"""The notation in which reports and summaries are written down.

`[a|b|c]` is a free choice, also nested or with an empty option; `{name}` is a slot. The value of a slot may hold choices
of its own, which are drawn anew at each use: the same fact is then told in several ways.
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
    """Puts values into the slots, also into those that the values bring along.

    Raises:
        KeyError: a slot without a value.
    """
    while "{" in template:
        template = _SLOT.sub(lambda match: slots[match[1]], template)
    return template


def choose(text: str, rng: random.Random) -> str:
    """Decides every choice, the innermost first."""
    while "[" in text:
        text = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), text)
    return text


def polish(text: str) -> str:
    """Makes one sentence, or several, of expanded text: spaces, `a` or `an`, capitals, the full stop."""
    text = " ".join(text.split()).replace(" ,", ",").replace(" .", ".")
    text = _ARTICLE.sub(r"\1n ", text)
    return _SENTENCE_START.sub(lambda match: match[0].upper(), text) + "."


def write(template: str, slots: Mapping[str, str], rng: random.Random) -> str:
    """One reading of a template: slots filled, choices made, polished."""
    return polish(choose(fill(template, slots), rng))
