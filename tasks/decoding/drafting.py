"""What drafters give, and the rules that say when a draft stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tasks.decoding.decoder import EncoderOutput, Rows, Step
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.generation import Counts
from tasks.decoding.settings import SamplingSettings


@dataclass(frozen=True)
class DraftRule:
    """When drafting stops, besides at the end token and at the window's end.

    `fallback_threshold` stops it before a token whose position has a top score not above the threshold (BiLD, 3.3);
    `stop_below` stops it after the token with which the product of the top scores falls under it; zero never does.
    `adaptive` chooses each window, at most `window`, from the counts of the text so far. `ends_unverified`: output may end
    inside a draft without a look from the large model.
    """

    window: int
    fallback_threshold: float = 0.0
    stop_below: float = 0.0
    adaptive: Callable[[Counts], int] | None = None
    ends_unverified: bool = False
    first_from_target: bool = False

    def budget(self, counts: Counts, generated: int, room: int) -> int:
        """Tokens to draft at most, of `room`, after `generated` tokens."""
        if self.first_from_target and generated == 0:
            return 0
        window = self.window if self.adaptive is None else min(self.window, self.adaptive(counts))
        return min(window, room)


_ANY = SamplingSettings()


class DraftBuilder:
    """One row's draft in the making."""

    def __init__(self, budget: int, rule: DraftRule, ends: Set[int]) -> None:
        """Takes the most tokens that it may have, when it stops before that, and the tokens that end a text."""
        self.tokens: list[int] = []
        self.seen = 0
        """Predictions looked at: the last one is not drafted where the rule fell back."""
        self.fallback = False
        self.going = budget > 0
        self._budget = budget
        self._rule = rule
        self._ends = ends
        self._cumulative_confidence = 1.0

    def see(self, token: int, confidence: float) -> None:
        """Drafts a predicted token, or stops before it; `confidence` is the top score at its position."""
        self.seen += 1
        if confidence <= self._rule.fallback_threshold:
            self.going, self.fallback = False, True
            return
        self.tokens.append(token)
        self._cumulative_confidence *= confidence
        ended = token in self._ends or len(self.tokens) == self._budget
        self.going = not ended and self._cumulative_confidence >= self._rule.stop_below


@dataclass
class Draft:
    """Proposed tokens of every row, and what they were proposed from."""

    tokens: Rows
    q: PredictionBlock
    """At every position drafted, padded on the right: (rows, longest draft, vocabulary)."""
    fallback: list[bool]
    """Rows where the rule, not the window or the end token, stopped drafting."""
    steps: list[int]
    """Runs of the drafter's model, one row at a time counted; 0 where it has none."""

    def select(self, rows: Sequence[int]) -> Draft:
        """The draft of these rows only."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.q.logits.device)
        return Draft(
            [self.tokens[row] for row in rows],
            PredictionBlock(self.q.logits[index], self.q.sampling),
            [self.fallback[row] for row in rows],
            [self.steps[row] for row in rows],
        )

    def until(self, ends: Set[int]) -> Draft:
        """Cut, in each row, after the first token that ends the text for the verifier, whatever ends it for the drafter."""
        if not any(token in ends for row in self.tokens for token in row):
            return self
        places = [next((place for place, token in enumerate(row) if token in ends), len(row)) for row in self.tokens]
        return Draft(
            [row[: place + 1] for row, place in zip(self.tokens, places, strict=True)],
            self.q,
            [stopped and place == len(row) for row, place, stopped in zip(self.tokens, places, self.fallback, strict=True)],
            self.steps,
        )

    def padded(self, device: torch.device) -> Tensor:
        """Token ids (rows, longest draft), int64, zero on the right."""
        longest = max(map(len, self.tokens))
        rows = [row + [0] * (longest - len(row)) for row in self.tokens]
        return torch.tensor(rows, dtype=torch.long, device=device)


class Drafter(Protocol):
    """Proposes tokens that continue each row."""

    runs_model: bool
    """Whether each prediction costs a run of a model, which is counted; a look-up or a copy costs none."""

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        """Begins these sources; `memory` is the verifier's, for drafters that share its encoder."""
        ...

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        """At most `budgets[row]` tokens after each row of `tokens`."""
        ...

    def following(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        """What would be proposed after `tokens`, a fully kept draft included, in these rows: (rows, 1, vocabulary)."""
        ...

    def observe(self, tokens: Rows, step: Step, places: Sequence[int]) -> None:
        """The rows as they stand after the verifier's decision: what was drafted beyond them is forgotten.

        `step` is the verifier's run; position `places[row]` of it predicted what follows the row's kept prefix.
        """
        ...

    def reorder(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order."""
        ...


def empty_predictions(rows: int) -> PredictionBlock:
    """Predictions at no position."""
    return PredictionBlock(torch.empty(rows, 0, 0), _ANY)
