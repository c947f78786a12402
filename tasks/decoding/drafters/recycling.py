"""Token recycling as a chain: what the target last predicted after each token (Luo et al., arXiv 2408.08696)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows
from tasks.decoding.drafters.deterministic import LookUpDrafter
from tasks.decoding.drafters.tables import BEGINNING, require_calibration
from tasks.decoding.settings import SamplingSettings


def last_successors(rows: Rows, vocabulary: int) -> dict[int, int]:
    """Return what followed each token where it last occurred in earlier outputs; a text begins with `BEGINNING`.

    Args:
        rows: Token ids of each output, the end token last.
        vocabulary: Number of tokens of the large model.

    Raises:
        InputError: there is no output, or one has a token outside the vocabulary.
    """
    require_calibration(rows, vocabulary)
    return dict(pair for row in rows for pair in itertools.pairwise((BEGINNING, *row)))


class RecyclingDrafter(LookUpDrafter):
    """Follows an adjacency table: for each token the likeliest next one when the target last predicted behind it.

    The table learns from every position that the target verifies, rejected ones included: these are the tokens that the paper
    recycles. Of positions with the same token the last one counts, as in the paper. Readings taken: the paper's table has the
    k likeliest tokens for a tree of drafts, and a chain needs the first of them; the paper's table goes on from one request to
    the next, but each text here begins with that of the calibration set, read as outputs before it, so that no text depends on
    the others of its run or batch.
    """

    recycles = True

    def __init__(self, successors: Mapping[int, int], target: Decoder, sampling: SamplingSettings) -> None:
        """Take the table that each text begins with, and the target for its vocabulary and special tokens."""
        super().__init__(target, sampling)
        self.successors = successors
        self._recycled: list[dict[int, int]] = []

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        super().start(encoder_output, sources)
        self._recycled = [{} for _ in sources]

    def recycle(self, verified: Rows, likeliest: Rows) -> None:
        for table, tokens, predicted in zip(self._recycled, verified, likeliest, strict=True):
            table.update(zip(map(self._key, tokens), predicted, strict=True))

    def reorder(self, rows: Sequence[int]) -> None:
        self._recycled = [dict(self._recycled[row]) for row in rows]

    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        drafted, recycled, last = list[int](), self._recycled[row], tokens[-1]
        while len(drafted) < budget:
            key = self._key(last)
            token = recycled.get(key, self.successors.get(key))
            if token is None:
                break
            drafted.append(token)
            if token in self.end_tokens:
                break
            last = token
        return drafted

    def _key(self, token: int) -> int:
        """Return the token as the table has it: a text begins after a special token, whichever it is."""
        return BEGINNING if token in self.specials else token
