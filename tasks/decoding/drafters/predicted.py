"""The small model as drafter, with a trained head that says when to stop (SpecDec++: Huang et al., arXiv 2405.19715)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.distributions import PredictionBlock, full_precision
from tasks.decoding.drafters.base import GuidedModelDrafter
from tasks.decoding.drafting import Draft
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.turn import DraftRule
from tasks.errors import InputError
from tasks.models.extras import AcceptanceHead, acceptance_head_of


class PredictedDrafter(GuidedModelDrafter):
    """Its confidence is the predicted probability that every token drafted so far is accepted, Π P(accept).

    The head reads the small model's state after a drafted token. That state comes from the run that predicts the next token, so
    a draft stops before a token: the draft rule's fallback. The decision depends on drafted tokens alone, all of which are
    verified, and never on the token that it leaves out: whatever verifies exactly stays exact.
    """

    def __init__(
        self,
        head: AcceptanceHead,
        decoder: Decoder,
        sampling: SamplingSettings,
        source: TokenSource,
        *,
        shares_encoder: bool = False,
    ) -> None:
        super().__init__(decoder, sampling, source, shares_encoder=shares_encoder)
        self.head = head
        self._all_accepted: list[float] = []

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        self._all_accepted = [1.0] * len(tokens)
        return super().draft(tokens, examples, budgets, rule)

    def next_logits(self, tokens: Rows, drafted: Rows, going: Sequence[bool]) -> Tensor:
        step = self.small.run(tokens, drafted, going)
        if step.hidden is None:
            raise RuntimeError("the small model's runtime gives no hidden states, which the acceptance head reads")
        rows = [row for row, active in enumerate(going) if active and drafted[row]]
        if rows:
            last = step.hidden[rows, [step.lengths[row] - 1 for row in rows]]
            for row, accepted in zip(rows, torch.sigmoid(full_precision(self.head(last))).tolist(), strict=True):
                self._all_accepted[row] *= accepted
        return step.last([1] * len(tokens))

    def _confidence(self, block: PredictionBlock, rule: DraftRule) -> list[float]:
        return self._all_accepted


def predicted_drafter(
    small: Decoder, sampling: SamplingSettings, source: TokenSource, *, shares_encoder: bool = False
) -> PredictedDrafter:
    """Return the small model as drafter with its acceptance head.

    Raises:
        InputError: it has none.
    """
    model = small.capabilities.transformers_model
    head = None if model is None else acceptance_head_of(model)
    if head is None:
        raise InputError(
            f"speculative_predicted needs an acceptance head, and the {small.name} model has none; train it with "
            "align.acceptance_head"
        )
    return PredictedDrafter(head, small, sampling, source, shares_encoder=shares_encoder)
