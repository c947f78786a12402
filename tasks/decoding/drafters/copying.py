"""Copies from the context after a matching suffix (SD, 3.6; later known as prompt lookup)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.distributions import PredictionBlock, one_hot_predictions
from tasks.decoding.drafters.deterministic import DeterministicDrafter

_LONGEST_MATCH = 3
"""Tokens that are compared; longer matches are not preferred."""
_BREAK = -1
"""Separates texts in the context: no match and no copy crosses it."""


class CopyDrafter(DeterministicDrafter):
    """Finds an earlier occurrence of the last tokens, in the source or the text, and proposes the tokens that followed it.

    The longest match wins, up to `_LONGEST_MATCH` tokens; among equally long ones, the most recent. If the last token has no
    earlier occurrence with text after it, nothing is proposed.
    """

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        super().start(encoder_output, sources)
        self._sources = [[*self._text(source), _BREAK] for source in sources]

    def reorder(self, rows: Sequence[int]) -> None:
        self._sources = [self._sources[row] for row in rows]

    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        context = self._sources[row] + self._text(tokens)
        index = after_match(context)
        if index is None:
            return []
        copy = context[index : index + budget]
        return copy[: copy.index(_BREAK)] if _BREAK in copy else copy

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        block = super().predict_next(tokens, rows)
        proposed = [self.propose(row, tokens[row], 0, 1) for row in rows]
        known = [index for index, new in enumerate(proposed) if new]
        if not known:
            return block
        logits = block.logits.clone()
        found = torch.tensor([proposed[index] for index in known], device=self.device)
        logits[known] = one_hot_predictions(found, self.vocabulary, self.sampling).logits
        return PredictionBlock(logits, self.sampling)

    def _text(self, tokens: list[int]) -> list[int]:
        """Replace each token that the target never generates as text by a break."""
        return [_BREAK if token in self.specials or token >= self.vocabulary else token for token in tokens]


def after_match(context: Sequence[int]) -> int | None:
    """Return the index after the longest, then latest, earlier occurrence of the context's end; `None` if there is none."""
    best, index = 0, None
    end = len(context) - 1
    last = context[end]
    if last == _BREAK:
        return None
    for candidate in range(end - 1, -1, -1):
        if context[candidate] != last or context[candidate + 1] == _BREAK:
            continue
        length = 1
        while length < min(_LONGEST_MATCH, candidate + 1) and context[candidate - length] == context[end - length] != _BREAK:
            length += 1
        if length > best:
            best, index = length, candidate + 1
        if best == _LONGEST_MATCH:
            break
    return index
