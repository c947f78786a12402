"""Drafters that propose tokens without probabilities: each proposed token counts as certain."""

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
    """Proposes a whole window at once, each of its tokens with probability 1.

    Speculative sampling stays exact: a proposed x is kept with probability p(x), and what replaces it is p without x.
    Where fewer tokens are proposed than were asked for, the confidence in the next one is 0: that counts as a fallback
    where the rule has a threshold.
    """

    runs_model = False

    def __init__(self, target: Decoder, sampling: SamplingSettings) -> None:
        """Takes the target for its vocabulary and special tokens."""
        self.vocabulary = target.vocabulary
        self.specials = target.specials
        self.end_tokens = target.end_tokens
        self.sampling = sampling
        self.device = torch.device("cpu")

    @abstractmethod
    def propose(self, row: int, tokens: list[int], example: int, budget: int) -> list[int]:
        """At most `budget` tokens to follow `tokens`, those of row number `row`, and none behind an end token.

        `budget` is at least 1.
        """

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        self.device = encoder_output.hidden.device

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        sure = rule.fallback_threshold < 1
        drafted = [
            self.propose(row, text, example, budget) if sure and budget > 0 else []
            for row, (text, example, budget) in enumerate(zip(tokens, examples, budgets, strict=True))
        ]
        fallback = [
            rule.fallback_threshold > 0 and len(new) < budget and not (new and new[-1] in self.end_tokens)
            for new, budget in zip(drafted, budgets, strict=True)
        ]
        draft = Draft(drafted, empty_predictions(len(tokens)), fallback, [0] * len(tokens))
        if any(drafted):
            draft.q = one_hot_predictions(draft.padded(self.device), self.vocabulary, self.sampling)
        return draft

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        """Nothing is known of what was not proposed: each ordinary token is as likely as any other."""
        logits = torch.zeros(self.vocabulary, device=self.device)
        logits[list(self.specials)] = -torch.inf
        return PredictionBlock(logits.expand(len(rows), 1, -1), self.sampling)
