"""Copies from the context after a matching suffix (SD, 3.6; later known as prompt lookup)."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.drafters.deterministic import LookUpDrafter

_LONGEST_MATCH = 3
"""Tokens that are compared; longer matches are not preferred."""
BREAK = -1
"""Separates texts in the context: no match and no copy crosses it."""


class ContextDrafter(LookUpDrafter):
    """Knows the source of each row, and which tokens in it and in the row are text."""

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        super().start(encoder_output, sources)
        self.sources = sources
        self.contexts = [[*self.text(source), BREAK] for source in sources]

    def reorder(self, rows: Sequence[int]) -> None:
        self.sources = [self.sources[row] for row in rows]
        self.contexts = [self.contexts[row] for row in rows]

    def text(self, tokens: list[int]) -> list[int]:
        """Replace each token that the target never generates as text by a break."""
        return [BREAK if token in self.specials or token >= self.vocabulary else token for token in tokens]


class CopyDrafter(ContextDrafter):
    """Finds an earlier occurrence of the last tokens, in the source or the text, and proposes the tokens that followed it.

    The longest match wins, up to `_LONGEST_MATCH` tokens; among equally long ones, the most recent. If the last token has no
    earlier occurrence with text after it, nothing is proposed.
    """

    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        context = self.contexts[row] + self.text(tokens)
        index = after_match(context)
        if index is None:
            return []
        copy = context[index : index + budget]
        return copy[: copy.index(BREAK)] if BREAK in copy else copy


def after_match(context: Sequence[int]) -> int | None:
    """Return the index after the longest, then latest, earlier occurrence of the context's end; `None` if there is none."""
    best, index = 0, None
    end = len(context) - 1
    last = context[end]
    if last == BREAK:
        return None
    for candidate in range(end - 1, -1, -1):
        if context[candidate] != last or context[candidate + 1] == BREAK:
            continue
        length = 1
        while length < min(_LONGEST_MATCH, candidate + 1) and context[candidate - length] == context[end - length] != BREAK:
            length += 1
        if length > best:
            best, index = length, candidate + 1
        if best == _LONGEST_MATCH:
            break
    return index
