"""Blockwise parallel heads as drafter: a whole draft from the target's last run (Stern et al., 2018; Outline, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows, Step, require_finite
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.drafters.base import StepwiseDrafter
from tasks.decoding.drafting import Draft
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.turn import DraftRule
from tasks.errors import InputError
from tasks.models.extras import ParallelHeads, heads_of
from tasks.models.layers import predict


class HeadsDrafter(StepwiseDrafter):
    """Head j proposes the j-th token after the one that the target just predicted, from the same hidden state.

    One run predicts and verifies: the target's next run checks this draft and gives the next draft's hidden state, so that m
    tokens take about m / k runs. Nothing is drafted before the first run. The heads do not see each other's tokens; each
    position's q is a distribution of its own, which is all that exact sampling needs.
    """

    runs_model = False
    decoder = None

    def __init__(self, heads: ParallelHeads, target: Decoder, sampling: SamplingSettings, source: TokenSource) -> None:
        super().__init__(target.end_token, sampling, source)
        self.heads = heads
        self.target = target
        self.model = target.capabilities.transformers_model
        self._logits: Tensor | None = None
        self._seen: list[int] = []
        self._steps = 0

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        self._logits = None
        self._seen = [0] * len(sources)
        self._steps = 0

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        ready = 0 if self._logits is None else self.heads.count
        return super().draft(tokens, examples, [min(budget, ready) for budget in budgets], rule)

    def next_logits(self, tokens: Rows, drafted: Rows, going: Sequence[bool]) -> Tensor:
        if self._logits is None:
            raise RuntimeError(f"the heads predict nothing before the {self.target.name} model has run")
        ahead = max(len(new) for new, active in zip(drafted, going, strict=True) if active)
        return self._logits[:, ahead : ahead + 1]

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        """Return the next head's prediction; past the last head each ordinary token is as likely as any other."""
        uniform = torch.zeros(self.target.vocabulary, device=self.model.device)
        uniform[list(self.target.specials)] = -torch.inf
        logits = [self._prediction(row, len(tokens[row]) - self._seen[row], uniform) for row in rows]
        return PredictionBlock(torch.stack(logits)[:, None], self.sampling)

    def _prediction(self, row: int, ahead: int, default: Tensor) -> Tensor:
        return default if self._logits is None or ahead >= self.heads.count else self._logits[row, ahead]

    @torch.inference_mode()
    def observe(self, tokens: Rows, step: Step, positions: Sequence[int]) -> None:
        if step.hidden is None:
            raise RuntimeError(f"the {self.target.name} model's runtime gives no hidden states, which the heads read")
        # Where no token follows a fully accepted draft, the last prediction is that of the draft's last token.
        predicted = [min(position, length - 1) for position, length in zip(positions, step.lengths, strict=True)]
        hidden = step.hidden[list(range(len(positions))), predicted]
        self._logits = predict(self.model, self.heads(hidden))[..., : self.target.vocabulary]
        self._seen = [len(row) for row in tokens]
        self._steps += 1
        require_finite(self._logits, "heads of the large", self._steps)

    def reorder(self, rows: Sequence[int]) -> None:
        self._seen = [self._seen[row] for row in rows]
        if self._logits is not None:
            self._logits = self._logits[list(rows)]


def heads_drafter(large: Decoder, sampling: SamplingSettings, source: TokenSource) -> HeadsDrafter:
    """Return a drafter of the heads that were trained on the large model.

    Raises:
        InputError: there are none.
    """
    model = large.capabilities.transformers_model
    heads = None if model is None else heads_of(model)
    if heads is None:
        raise InputError(f"the heads drafter needs heads, and the {large.name} model has none; train it with draft_heads")
    return HeadsDrafter(heads, large, sampling, source)
