"""Random tokens as drafter: the weakest drafter that can still give a speed-up (SD, 3.6)."""

from __future__ import annotations

from tasks.decoding.decoder import Decoder
from tasks.decoding.drafters.deterministic import RowwiseDrafter
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings


class RandomDrafter(RowwiseDrafter):
    """Draws ordinary tokens uniformly, and proposes them with probability 1."""

    def __init__(self, target: Decoder, sampling: SamplingSettings, source: TokenSource) -> None:
        super().__init__(target, sampling)
        self.source = source
        self.ordinary = self.vocabulary - len(self.specials)

    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        # New draws after each verification, as for every draft.
        purpose = f"random from {len(tokens)}"
        draws = [self.source.uniform(example, len(tokens) + offset, purpose) for offset in range(budget)]
        return [self._token(int(draw * self.ordinary)) for draw in draws]

    def _token(self, rank: int) -> int:
        """Return the ordinary token of this rank."""
        for special in sorted(self.specials):
            rank += rank >= special
        return rank
