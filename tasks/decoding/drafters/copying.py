"""Copying from the context after a matching prefix (SD, 3.6; later known as prompt lookup)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.distributions import PredictionBlock, one_hot_predictions
from tasks.decoding.drafters.deterministic import DeterministicDrafter

_LONGEST_MATCH = 3
"""Tokens that are compared; a longer match is no better than another."""
_BREAK = -1
"""Stands in the context for what is no text: no match reaches over it, and no copy."""


class CopyDrafter(DeterministicDrafter):
    """Looks for the last tokens of the text in the source and in the text itself, and proposes what followed them there.

    The longest match wins, up to `_LONGEST_MATCH` tokens; of equally long ones the most recent. Where the last token
    occurs nowhere else with text behind it, nothing is proposed.
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
        """The tokens with a break for each that the target never puts as text."""
        return [_BREAK if token in self.specials or token >= self.vocabulary else token for token in tokens]


def after_match(context: Sequence[int]) -> int | None:
    """The index after the longest, then latest, earlier occurrence of the context's end; `None` where there is none."""
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
