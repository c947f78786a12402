"""Suffixes where they are expected to be kept, the small model elsewhere: a drafter that chooses anew at each turn.

SuffixDecoding (Oliaro et al., 2024) falls back to a model where its score, the expected number of kept tokens, is low. Here
both sides are compared by counts, so that there is no threshold to choose. In a text so far,

- suffixes promised Σ D(N) tokens in their drafts, of which some were kept: trust = (kept + 1) / (promised + 1);
- of the small model's drafted tokens some were kept: rate r = (kept + 1) / (drafted + 2), Laplace's rule.

A turn drafts suffixes where trust Σ D(N) is at least r + r² + … + r^γ, what γ tokens of the model are expected to keep
(`methods.speculative.expected_tokens`, without the token of the large model). A suffix costs nothing, so it wins a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import functional

from tasks.decoding.decoder import EncoderOutput, Rows, Step
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters.base import Draft, ModelDrafter
from tasks.decoding.drafters.look_ups import SuffixDrafter
from tasks.models.prompting import common_prefix


@dataclass
class TextCounts:
    """What was drafted in one text so far, and how much of it was kept."""

    promised: float = 0.0
    """Σ D(N) of the suffixes drafted."""
    suffixes_kept: int = 0
    drafted: int = 0
    """Tokens that the small model drafted."""
    drafted_kept: int = 0
    begun: int = 0
    """Tokens before this turn's draft."""
    draft: list[int] = field(default_factory=list)
    """This turn's draft."""
    promise: float | None = None
    """Its Σ D(N); None where the small model drafts it."""

    def prefers(self, promised: float, budget: int) -> bool:
        """Return whether suffixes that promise so many tokens are as good as `budget` tokens of the model."""
        trust = (self.suffixes_kept + 1) / (self.promised + 1)
        rate = (self.drafted_kept + 1) / (self.drafted + 2)
        return trust * promised >= sum(rate**length for length in range(1, budget + 1))

    def begin_turn(self, begun: int, promise: float | None) -> None:
        self.begun, self.draft, self.promise = begun, [], promise

    def end_turn(self, tokens: list[int]) -> None:
        """Count how much of the draft stands in the text."""
        kept = common_prefix(self.draft, tokens[self.begun :])
        if self.promise is None:
            self.drafted, self.drafted_kept = self.drafted + len(self.draft), self.drafted_kept + kept
        else:
            self.promised, self.suffixes_kept = self.promised + self.promise, self.suffixes_kept + kept


class SuffixOrModelDrafter:
    """Drafts suffixes or tokens of the small model, whichever the counts of the text so far expect more of."""

    runs_model = True
    decoder = None
    """None: what runs a model's drafts by itself (the compiled loop, replay) looks no suffixes up."""

    def __init__(self, suffixes: SuffixDrafter, model: ModelDrafter) -> None:
        self.suffixes, self.model = suffixes, model
        self._texts: list[TextCounts] = []

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        self.suffixes.start(encoder_output, sources)
        self.model.start(encoder_output, sources)
        self._texts = [TextCounts() for _ in sources]

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        # 1. Look suffixes up, and choose row by row. They have probability 1, which the highest threshold refuses all the same.
        looked_up: Rows = []
        for row, (text, budget) in enumerate(zip(tokens, budgets, strict=True)):
            sure = budget > 0 and rule.fallback_threshold < 1
            new, promised = self.suffixes.best(row, text, budget) if sure else ([], 0.0)
            chosen = bool(new) and self._texts[row].prefers(promised, budget)
            self._texts[row].begin_turn(len(text), promised if chosen else None)
            looked_up.append(new if chosen else [])
        # 2. The model drafts in the other rows; where it next drafts, its cache catches up.
        left = [0 if new else budget for new, budget in zip(looked_up, budgets, strict=True)]
        by_model = self.model.draft(tokens, examples, left, rule)
        # 3. One draft of both.
        by_suffixes = self.suffixes.made(looked_up, by_model.fallback)
        drafted = [new or other for new, other in zip(looked_up, by_model.tokens, strict=True)]
        for row, new in enumerate(drafted):
            self._texts[row].draft = new
        return Draft(drafted, _joined(by_suffixes, by_model), by_model.fallback, by_model.steps)

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        return self.model.predict_next(tokens, rows)

    def observe(self, tokens: Rows, step: Step, positions: Sequence[int]) -> None:
        for text, row in zip(self._texts, tokens, strict=True):
            text.end_turn(row)
        self.model.observe(tokens, step, positions)

    def reorder(self, rows: Sequence[int]) -> None:
        self.suffixes.reorder(rows)
        self.model.reorder(rows)
        self._texts = [self._texts[row] for row in rows]


def _joined(suffixes: Draft, model: Draft) -> PredictionBlock:
    """Return q of two drafts, of which each row has at most one: (rows, longest draft, vocabulary)."""
    if not any(suffixes.tokens):
        return model.q
    if not any(model.tokens):
        return suffixes.q
    longest = max(suffixes.q.logits.shape[1], model.q.logits.shape[1])
    looked_up = torch.tensor([bool(new) for new in suffixes.tokens], device=model.q.logits.device)
    one, other = (functional.pad(q.logits, (0, 0, 0, longest - q.logits.shape[1])) for q in (suffixes.q, model.q))
    # An infinite logit of one side never meets the other's: a choice, not a product.
    return PredictionBlock(torch.where(looked_up[:, None, None], one, other), model.q.sampling)
