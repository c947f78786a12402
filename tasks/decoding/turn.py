"""One turn of speculative decoding, without any model: what it does to a row of tokens and to the row's counts.

A turn drafts some tokens, lets the target accept a prefix of them, and adds at most one token of the target's. Every executor
(`loop`, `native_loop`, `replay`, greedy continuation) asks this module how much may be drafted, whether a token follows, and
what the turn adds to the row; none keeps accounts of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tasks.decoding.generation import CORRECTED, LARGE, SMALL, Counts, Generation


@dataclass(frozen=True)
class DraftRule:
    """When drafting stops, besides at an end token.

    `fallback_threshold` stops it before a token whose position has a top score at or under the threshold (BiLD, 3.3).
    `stop_below` stops it after the token with which the product of the top scores falls under this bound. Zero disables
    either. `max_entropy` stops it after the token at whose position the entropy of the scores, in nats, is above this, or
    before that token where `entropy_falls_back` (SpecCascade, ChowLog).
    `adaptive` chooses each window, at most `window` tokens, from the counts of the text so far.
    """

    window: int
    fallback_threshold: float = 0.0
    stop_below: float = 0.0
    max_entropy: float = math.inf
    entropy_falls_back: bool = False
    adaptive: Callable[[Counts], int] | None = None
    ends_unverified: bool = False
    """Whether a text may end inside a draft that the target has not seen."""
    first_from_target: bool = False
    """Whether the target predicts the first token without a draft."""
    target_after_rollback: bool = False
    """Whether the target also predicts the token after a correction, without a draft; a correction then ends no text."""


@dataclass(slots=True)
class RowState:
    """One example during decoding."""

    example: int
    """Number that keys the row's random draws."""
    tokens: list[int]
    """Prompt and generated tokens."""
    prompt: int
    """Tokens of the prompt."""
    proposers: str = ""
    counts: Counts = field(default_factory=Counts)
    log_probabilities: list[float] = field(default_factory=list)

    def generation(self) -> Generation:
        """Return what was decoded so far."""
        return Generation(self.tokens[self.prompt :], self.proposers, self.counts, self.log_probabilities)


@dataclass(slots=True)  # not frozen: every text makes one, and replaying a text takes microseconds
class TurnRules:
    """What the turns of one text go by."""

    draft_rule: DraftRule
    end_tokens: frozenset[int]
    """Tokens that end a text for the target."""
    limit: int
    """Most tokens to generate, the end token included."""
    bonus: bool
    """Whether a token of the target's follows a fully accepted draft."""

    def budget(self, row: RowState) -> int:
        """Return how many tokens may be drafted: one fewer than are left where the target adds its own to the draft."""
        rule, generated = self.draft_rule, len(row.tokens) - row.prompt
        if rule.first_from_target and generated == 0:
            return 0
        if self._goes_on(row):
            return 0
        left = self.limit - generated - (self.bonus and not rule.ends_unverified)
        window = rule.window if rule.adaptive is None else min(rule.window, rule.adaptive(row.counts))
        return min(window, left)

    def cut(self, drafted: list[int], fallback: bool) -> tuple[list[int], bool]:
        """Cut a draft after its first end token; a draft that is cut so did not fall back."""
        if self.end_tokens.isdisjoint(drafted):
            return drafted, fallback
        end = next(index for index, token in enumerate(drafted) if token in self.end_tokens)
        return drafted[: end + 1], False

    def ends_unverified(self, row: RowState, drafted: Sequence[int]) -> bool:
        """Return whether the text ends with this draft, unseen by the target (BiLD, Algorithm 1: the loop tests y[-1])."""
        if not (self.draft_rule.ends_unverified and drafted):
            return False
        return drafted[-1] in self.end_tokens or len(row.tokens) - row.prompt + len(drafted) == self.limit

    def positions(self, drafted: int) -> int:
        """Return how many positions of the target a draft of that length needs."""
        return drafted + self.bonus

    def adds_bonus(self, drafted: Sequence[int]) -> bool:
        """Return whether a token follows this draft once all of it is accepted: not where the draft ended the text."""
        return self.bonus and not (drafted and drafted[-1] in self.end_tokens)

    def finish(
        self,
        row: RowState,
        accepted: Sequence[int],
        next_token: int | None = None,
        *,
        drafted: int,
        steps: int,
        fallback: bool,
        verified: bool = True,
        layers: int = 0,
    ) -> bool:
        """Add a turn to a row and return whether the text has ended.

        Args:
            row: The row, changed in place.
            accepted: The drafted tokens that stay.
            next_token: The token after them: a correction where a drafted token was rejected, else the bonus token.
            drafted: Number of drafted tokens.
            steps: Runs of the drafter's model.
            fallback: Whether drafting stopped because the drafter was not confident.
            verified: Whether the target saw the draft.
            layers: Decoder layers that the target ran, where it leaves some out.
        """
        counts, tokens, kept = row.counts, row.tokens, len(accepted)
        counts.small_steps += steps
        counts.fallbacks += fallback
        if kept:
            tokens += accepted
            row.proposers += SMALL * kept
        if verified:
            counts.large_calls += 1
            counts.verified[drafted + self.bonus] += 1
            counts.layers += layers
        if drafted:
            counts.drafted += drafted
            if verified:
                counts.accepted += kept
                counts.rollbacks += kept < drafted
                counts.kept[drafted, kept] += 1
        if next_token is not None:
            tokens.append(next_token)
            row.proposers += LARGE if kept == drafted else CORRECTED
        generated = len(tokens) - row.prompt
        ended = generated >= self.limit or (tokens[-1] in self.end_tokens and not self._goes_on(row))
        if ended:
            counts.tokens = generated
        return ended

    def _goes_on(self, row: RowState) -> bool:
        """Return whether the target continues a row by itself, since its last token is a correction."""
        return self.draft_rule.target_after_rollback and row.proposers.endswith(CORRECTED)

    def finish_undrafted(self, row: RowState, tokens: Sequence[int]) -> None:
        """Add a whole text of the target's own: `finish` without a draft for each token, but in one call."""
        row.tokens.extend(tokens)
        row.proposers += LARGE * len(tokens)
        row.counts.large_calls += len(tokens)
        row.counts.verified[int(self.bonus)] += len(tokens)
        row.counts.tokens = len(row.tokens) - row.prompt
