"""Records the large model's top tokens while it writes, so that they need no second run of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.decoding import loop
from tasks.decoding.acceptance_rules import accept_all
from tasks.decoding.decoder import Decoder, EncoderOutput, Rows, Step
from tasks.decoding.drafters.base import NoDrafter
from tasks.decoding.generation import Generation
from tasks.decoding.randomness import TokenSource
from tasks.decoding.registry import Request
from tasks.decoding.turn import DraftRule

TopPredictions = tuple[Tensor, Tensor]
"""Token ids, int64, and log-probabilities, float32 in nats, of one text on the CPU: (positions, k) both."""


class TopLogitsRecorder(NoDrafter):
    """Proposes nothing, and keeps the target's k most likely tokens at each position that it predicts."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._texts: list[list[TopPredictions]] = []
        self._rows: list[int] = []

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        self._texts, self._rows = [[] for _ in sources], list(range(len(sources)))

    def observe(self, tokens: Rows, step: Step, positions: Sequence[int]) -> None:
        """Keep the predictions of the last token of each row."""
        predicting = step.logits[torch.arange(len(positions)), torch.tensor(positions)]
        best, ids = predicting.float().log_softmax(-1).topk(self._kept)
        for row, *top in zip(self._rows, ids.cpu(), best.cpu(), strict=True):
            self._texts[row].append((top[0], top[1]))

    def reorder(self, rows: Sequence[int]) -> None:
        self._rows = [self._rows[row] for row in rows]

    def predictions(self) -> list[TopPredictions]:
        """Return the predictions along each text, in the order of the sources."""
        return [(torch.stack([ids for ids, _ in text]), torch.stack([best for _, best in text])) for text in self._texts]


def generate_recorded(
    decoder: Decoder, sources: Rows, request: Request, examples: Sequence[int], kept: int
) -> tuple[list[Generation], list[TopPredictions]]:
    """Return a model's own text for each source, as `vanilla_large` decodes it, and its k most likely tokens along each."""
    recorder = TopLogitsRecorder(kept)
    parts = loop.LoopParts(decoder, accept_all, request.sampling, TokenSource(request.seed), recorder, DraftRule(window=0))
    return loop.generate(parts, sources, examples, request.max_new_tokens), recorder.predictions()
