"""The interface of drafters, and how a draft is put together until its rule stops it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows, Step
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.turn import DraftRule

_ANY = SamplingSettings()


class DraftBuilder:
    """Collects one row's draft, prediction by prediction, until the draft rule stops it."""

    def __init__(self, budget: int, rule: DraftRule, ends: Set[int]) -> None:
        """Take the most tokens that it may have, when to stop before that, and the tokens that end a text for the drafter."""
        self.tokens: list[int] = []
        self.predictions = 0
        """Predictions so far; the last one is not drafted where the rule fell back."""
        self.fallback = False
        self.going = budget > 0
        """Whether it takes another prediction."""
        self._budget = budget
        self._rule = rule
        self._ends = ends
        self._cumulative_confidence = 1.0

    def add(self, token: int, confidence: float, entropy: float = 0.0) -> None:
        """Draft a predicted token, or stop before it.

        Args:
            token: The token.
            confidence: The top score at its position.
            entropy: The entropy of the scores there, in nats.
        """
        self.predictions += 1
        scattered = entropy > self._rule.max_entropy
        if confidence <= self._rule.fallback_threshold or (scattered and self._rule.entropy_falls_back):
            self.going, self.fallback = False, True
            return
        self.tokens.append(token)
        self._cumulative_confidence *= confidence
        ended = token in self._ends or len(self.tokens) == self._budget
        unsure = self._cumulative_confidence < self._rule.stop_below or scattered
        self.going = not (ended or unsure)


@dataclass
class Draft:
    """The proposed tokens of every row, and the distributions that they come from."""

    tokens: Rows
    q: PredictionBlock
    """The drafter's predictions at every drafted position, right-padded: (rows, longest draft, vocabulary)."""
    fallback: list[bool]
    """Rows where the drafter was not confident, so that its rule stopped drafting."""
    steps: list[int]
    """Runs of the drafter's model, counted as if each row were alone; 0 where the drafter runs no model."""

    def select(self, rows: Sequence[int]) -> Draft:
        """Return the draft of these rows only."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.q.logits.device)
        return Draft(
            [self.tokens[row] for row in rows],
            PredictionBlock(self.q.logits[index], self.q.sampling),
            [self.fallback[row] for row in rows],
            [self.steps[row] for row in rows],
        )

    def padded(self, device: torch.device) -> Tensor:
        """Return the token ids (rows, longest draft), int64, zero on the right."""
        longest = max(map(len, self.tokens))
        rows = [row + [0] * (longest - len(row)) for row in self.tokens]
        return torch.tensor(rows, dtype=torch.long, device=device)


@dataclass(frozen=True)
class GreedyTable:
    """All that a drafter predicts greedily, where that depends on the last token alone."""

    next: Tensor
    """The likeliest token after each token: int32 (tokens,)."""
    confidence: Tensor
    """Its score: float64 (tokens,)."""
    entropy: Tensor
    """The entropy of the scores, in nats: float64 (tokens,)."""


class Drafter(Protocol):
    """Proposes tokens that continue each row."""

    runs_model: bool
    """Whether each prediction costs a run of a model, which is counted; a look-up or a copy costs none."""

    @property
    def decoder(self) -> Decoder | None:
        """The decoder that drafts by its own predictions; none where the drafter is a table, a copy, heads or nothing."""
        ...

    def greedy_table(self, tokens: int) -> GreedyTable | None:
        """Return its greedy predictions after each of that many tokens; none where they depend on more than the last one."""
        ...

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        """Begin these sources; `encoder_output` is the target's, for drafters that share its encoder."""
        ...

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        """Propose at most `budgets[row]` tokens after each row of `tokens`."""
        ...

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        """Predict what follows `tokens`, a fully accepted draft included, in these rows: (rows, 1, vocabulary)."""
        ...

    def observe(self, tokens: Rows, step: Step, positions: Sequence[int]) -> None:
        """Take note of the rows as they stand after verification, and forget what was drafted beyond them.

        `step` is the target's run; its position `positions[row]` predicted what follows the row's accepted prefix.
        """
        ...

    def reorder(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        ...


def empty_predictions(rows: int) -> PredictionBlock:
    """Return predictions at no position."""
    return PredictionBlock(torch.empty(rows, 0, 0), _ANY)
