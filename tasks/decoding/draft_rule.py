"""When drafting stops: the rule, and one draft that is collected by it. Loads no torch, as the methods' settings do not."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass


@dataclass(frozen=True)
class DraftRule:
    """When drafting stops, besides at an end token.

    The bounds are also where a greedy continuation may stop, which a runtime runs by itself (`decoder.GreedyContinuation`).
    """

    window: int = 0
    """γ: most tokens of a draft; 0 drafts nothing."""
    fallback_threshold: float = 0.0
    """Stop before a token whose position has a top score at or under this (BiLD, 3.3); 0 never stops."""
    stop_below: float = 0.0
    """Stop after the token with which the product of the top scores falls under this; 0 never stops."""
    max_entropy: float = math.inf
    """Stop before a token at whose position the entropy of the scores, in nats, is above this (SpecCascade, ChowLog)."""
    ends_unverified: bool = False
    """Whether a text may end inside a draft that the target has not seen."""


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
        # Stop before a token: the fallback of BiLD, and of cascades by entropy.
        if confidence <= self._rule.fallback_threshold or entropy > self._rule.max_entropy:
            self.going, self.fallback = False, True
            return
        self.tokens.append(token)
        # Stop after a token: at its end token, at the budget, or in doubt.
        self._cumulative_confidence *= confidence
        ended = token in self._ends or len(self.tokens) == self._budget
        unsure = self._cumulative_confidence < self._rule.stop_below
        self.going = not (ended or unsure)
