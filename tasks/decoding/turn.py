"""One turn of speculative decoding, without any model: what it does to a row of tokens and to the row's counts.

A turn drafts some tokens, lets the target accept a prefix of them, and adds at most one token of the target's. `TurnRules`
defines it: how much may be drafted, where a draft is cut, whether a token follows, which counts change, and whether the text
ends. Every executor (`loop`, `native_loop`, `replay`) asks it, and none keeps accounts of its own. The compiled kernel, which
takes many turns in one call, repeats the definition in `runtimes/kernel/speculative_loop.h`; its turns are accounted for
here, and `tests/unit/decoding/test_executors.py` holds it to this file.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tasks.decoding.decoder import Decoder
from tasks.decoding.distributions import TokenSource
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters.base import Drafter
from tasks.decoding.generation import CORRECTED, LARGE, SMALL, Counts, Generation
from tasks.decoding.method import SamplingSettings
from tasks.decoding.rules import AcceptanceRule, BonusToken


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

    def end(self) -> None:
        """Count the tokens of the whole text."""
        self.counts.tokens = len(self.tokens) - self.prompt

    def generation(self) -> Generation:
        """Return what was decoded so far."""
        return Generation(self.tokens[self.prompt :], self.proposers, self.counts, self.log_probabilities)


Watch = Callable[[RowState], bool | None]


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
        left = self.limit - generated - (self.bonus and not rule.ends_unverified)
        return min(rule.window, left)

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
        # 1. The draft: the drafter's runs, and the tokens that stay.
        counts.small_steps += steps
        counts.fallbacks += fallback
        if kept:
            tokens += accepted
            row.proposers += SMALL * kept
        # 2. The run of the target, which a draft that ends a text unverified did not take.
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
        # 3. The token of the target: l behind a whole draft, c in place of a rejected token.
        if next_token is not None:
            tokens.append(next_token)
            row.proposers += LARGE if kept == drafted else CORRECTED
        generated = len(tokens) - row.prompt
        # 4. The end: at the limit, or with an end token.
        ended = generated >= self.limit or tokens[-1] in self.end_tokens
        if ended:
            row.end()
        return ended

    def finish_undrafted(self, row: RowState, tokens: Sequence[int]) -> None:
        """Add a whole text of the target's own: `finish` without a draft for each token, but in one call."""
        row.tokens.extend(tokens)
        row.proposers += LARGE * len(tokens)
        row.counts.large_calls += len(tokens)
        row.counts.verified[int(self.bonus)] += len(tokens)
        row.end()


class AbandonedError(Exception):
    """Nobody waits any more for any of the texts that were being decoded."""


class Abandonment:
    """A flag for one text. Compiled code reads it too, which no `threading.Event` allows."""

    def __init__(self) -> None:
        self._flag = ctypes.c_int32(0)

    @property
    def address(self) -> int:
        """Where the int32 lies that is not zero once the text is abandoned."""
        return ctypes.addressof(self._flag)

    def set(self) -> None:
        """Abandon the text."""
        self._flag.value = 1

    def is_set(self) -> bool:
        """Return whether the text is abandoned."""
        return bool(self._flag.value)


def require_awaited(texts: Sequence[Abandonment]) -> None:
    """Raise `AbandonedError` where there are flags and all of them are set."""
    if texts and all(text.is_set() for text in texts):
        raise AbandonedError


@dataclass(frozen=True)
class LoopParts:
    """What a speculative loop is made of."""

    target: Decoder
    acceptance: AcceptanceRule
    sampling: SamplingSettings
    source: TokenSource
    drafter: Drafter
    draft_rule: DraftRule
    scored: bool = False
    """Whether generations carry the target's log-probability of each token."""
    watch: Watch | None = None
    """Called with each row after each of its turns: all its tokens are final. True ends the row's text."""
    abandoned: Sequence[Abandonment] = ()
    """A flag for each text; once all are set, decoding ends at its next turn with `AbandonedError`."""

    def turns(self, limit: int) -> TurnRules:
        """Return what the turns of a text of at most `limit` tokens go by."""
        return TurnRules(self.draft_rule, self.target.end_tokens, limit, self.acceptance.bonus is not BonusToken.NONE)

    @property
    def undrafted(self) -> bool:
        """Whether the target predicts every token by itself."""
        return self.draft_rule.window == 0 and self.acceptance.bonus is BonusToken.TARGET
