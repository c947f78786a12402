"""Drafters that propose tokens without probabilities: each proposed token has probability 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows
from tasks.decoding.distributions import PredictionBlock, one_hot_predictions
from tasks.decoding.drafters.base import StatelessDrafter
from tasks.decoding.drafting import Draft, empty_predictions
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.turn import DraftRule


class DeterministicDrafter(StatelessDrafter, ABC):
    """Proposes a whole window at once, each token with probability 1.

    Speculative sampling remains exact: a proposed x is accepted with probability p(x), and otherwise replaced by a draw from
    p without x. If fewer tokens are proposed than requested, the confidence in the next one is 0, which counts as a fallback
    if the rule has a threshold.
    """

    runs_model = False

    def __init__(self, target: Decoder, sampling: SamplingSettings) -> None:
        """Take the target for its vocabulary and special tokens."""
        self.vocabulary = target.vocabulary
        self.specials = target.specials
        self.end_tokens = target.end_tokens
        self.sampling = sampling
        self.device = torch.device("cpu")

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        self.device = encoder_output.hidden.device

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        sure = rule.fallback_threshold < 1
        drafted, steps = self.proposals(tokens, examples, budgets if sure else [0] * len(tokens))
        fallback = [
            rule.fallback_threshold > 0 and len(new) < budget and not (new and new[-1] in self.end_tokens)
            for new, budget in zip(drafted, budgets, strict=True)
        ]
        draft = Draft(drafted, empty_predictions(len(tokens)), fallback, steps)
        if any(drafted):
            draft.q = one_hot_predictions(draft.padded(self.device), self.vocabulary, self.sampling)
        return draft

    @abstractmethod
    def proposals(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int]) -> tuple[Rows, list[int]]:
        """Return the proposal for each row, none where the budget is 0, and the model runs that it took."""

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        """Predict uniformly over ordinary tokens: nothing is known beyond the proposal."""
        logits = torch.zeros(self.vocabulary, device=self.device)
        logits[list(self.specials)] = -torch.inf
        return PredictionBlock(logits.expand(len(rows), 1, -1), self.sampling)


class RowwiseDrafter(DeterministicDrafter):
    """Proposes for one row after the other, without a model."""

    @abstractmethod
    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        """Return at most `budget` (at least 1) tokens to follow `tokens`, the text of row `row`; none after an end token."""

    def proposals(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int]) -> tuple[Rows, list[int]]:
        drafted = [
            self.propose(row, text, example, budget) if budget > 0 else []
            for row, (text, example, budget) in enumerate(zip(tokens, examples, budgets, strict=True))
        ]
        return drafted, [0] * len(tokens)


class LookUpDrafter(RowwiseDrafter):
    """Looks its proposals up, so that it also knows the token behind a draft, unless it finds none."""

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        """Predict the token that would be proposed; where there is none, uniformly over ordinary tokens."""
        block = super().predict_next(tokens, rows)
        proposed = [self.propose(row, tokens[row], 0, 1) for row in rows]
        known = [index for index, new in enumerate(proposed) if new]
        if not known:
            return block
        logits = block.logits.clone()
        found = torch.tensor([proposed[index] for index in known], device=self.device)
        logits[known] = one_hot_predictions(found, self.vocabulary, self.sampling).logits
        return PredictionBlock(logits, self.sampling)
