"""The one loop: draft with q, check with p, keep a prefix, add one token.

A method is data: a drafter, a rule for when to stop drafting, a rule for what to keep. One model alone is the loop with
nothing drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import torch

from tasks.decoding.acceptance_rules import AcceptanceRule
from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.distributions import PredictionBlock, probability
from tasks.decoding.drafting import Draft, Drafter, DraftRule
from tasks.decoding.generation import CORRECTED, LARGE, SMALL, Counts, Generation, RowState
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.verifier import Verifier


@dataclass(frozen=True)
class SpeculativeLoop:
    """The parts of one method, ready to run."""

    target: Decoder
    acceptance: AcceptanceRule
    sampling: SamplingSettings
    source: TokenSource
    drafter: Drafter
    draft_rule: DraftRule
    scored: bool = False
    """Whether generations carry the target's log-probability of each token."""

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """Decodes each source until its end token or `limit` tokens, all rows side by side.

        Args:
            sources: Token ids of each source.
            examples: A number for each source that keys its random draws.
            limit: Most tokens to generate, the end token included.
        """
        if can_replay(self.target):
            return self.target.replay(self, sources, examples, limit)
        return generate(self, sources, examples, limit)

    def room(self, generated: int, limit: int) -> int:
        """Tokens that a draft may have: one less where the verifier adds its own to a checked draft."""
        unfollowed = self.draft_rule.ends_unverified or self.acceptance.bonus is None
        return limit - generated - (not unfollowed)


class ReplayingDecoder(Decoder, Protocol):
    """A runtime that goes through a whole method by itself."""

    def replay(self, method: SpeculativeLoop, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """What `Method.run` says."""
        ...


def can_replay(decoder: Decoder) -> TypeGuard[ReplayingDecoder]:
    """Whether a runtime is `Playing`."""
    return hasattr(decoder, "replay")


@torch.inference_mode()
def generate(method: SpeculativeLoop, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
    """The loop itself; `Method.run` says what it takes and gives."""
    encoder_output = method.target.encode(sources)
    starts = method.target.start(encoder_output)
    method.drafter.start(encoder_output, sources)
    rows = [
        RowState(place, example, len(tokens), tokens, "", Counts(), [])
        for place, (example, tokens) in enumerate(zip(examples, starts, strict=True))
    ]
    judge = Verifier(method.target, method.acceptance, method.sampling, method.source, method.drafter)
    done: dict[int, Generation] = {}
    while rows:
        rows, draft = _end_unverified(method, rows, _draft(method, rows, limit), limit, done)
        if rows:
            _verify(method, judge, rows, draft)
            rows = _drop_finished(method, rows, limit, done)
    return [done[place] for place in range(len(sources))]


def _draft(method: SpeculativeLoop, rows: list[RowState], limit: int) -> Draft:
    """1. The drafter proposes; one row's runs are counted as if it were alone."""
    budgets = [method.draft_rule.budget(row.counts, row.generated(), method.room(row.generated(), limit)) for row in rows]
    draft = method.drafter.draft([row.tokens for row in rows], [row.example for row in rows], budgets, method.draft_rule)
    draft = draft.until(method.target.end_tokens)
    for row, tokens, steps, fallback in zip(rows, draft.tokens, draft.steps, draft.fallback, strict=True):
        row.counts.small_steps += steps
        row.counts.drafted += len(tokens)
        row.counts.fallbacks += fallback
    return draft


def _end_unverified(
    method: SpeculativeLoop, rows: list[RowState], draft: Draft, limit: int, done: dict[int, Generation]
) -> tuple[list[RowState], Draft]:
    """2. Rows that the rule lets end on the drafter's word leave here (BiLD, Algorithm 1: the loop tests y[-1])."""
    if not method.draft_rule.ends_unverified:
        return rows, draft
    going = []
    for index, (row, tokens) in enumerate(zip(rows, draft.tokens, strict=True)):
        if tokens and (tokens[-1] in method.target.end_tokens or row.generated() + len(tokens) == limit):
            _keep(row, tokens)
            _finish(row, done)
        else:
            going.append(index)
    return _select(method, rows, going), draft if len(going) == len(rows) else draft.select(going)


def _verify(method: SpeculativeLoop, judge: Verifier, rows: list[RowState], draft: Draft) -> None:
    """3. One run of the target over what it has not seen; 4. keep a prefix; 5. add one token."""
    target, drafted = method.target, draft.tokens
    positions = judge.positions(drafted)
    p, step, kept, following = judge.verify(rows, draft)
    for index, (row, new, count) in enumerate(zip(rows, drafted, kept, strict=True)):
        row.counts.large_calls += 1
        row.counts.verified[positions[index]] += 1
        row.counts.layers += step.layers[index] if step.layers is not None else 0
        row.counts.record_verification(len(new), count)
        _keep(row, new[:count])
        if index in following:
            row.tokens.append(following[index])
            row.proposers += LARGE if count == len(new) else CORRECTED
        if method.scored:
            _score(row, p, index, count + (index in following))
    target.rewind([min(cached, len(row.tokens) - 1) for cached, row in zip(target.lengths, rows, strict=True)])
    places = [length - most + count for length, most, count in zip(step.lengths, positions, kept, strict=True)]
    method.drafter.observe([row.tokens for row in rows], step, places)


def _score(row: RowState, p: PredictionBlock, index: int, new: int) -> None:
    """Notes the target's own log-probability of the last `new` tokens of a row."""
    if new:
        tokens = torch.tensor(row.tokens[-new:], device=p.logits.device)
        # Not the logarithm of `scores`, which is -infinity where a drawn token's probability rounds to zero.
        row.log_probabilities += probability(torch.log_softmax(p.logits[index, :new].float(), -1), tokens).tolist()


def _keep(row: RowState, tokens: list[int]) -> None:
    row.tokens.extend(tokens)
    row.proposers += SMALL * len(tokens)


def _drop_finished(method: SpeculativeLoop, rows: list[RowState], limit: int, done: dict[int, Generation]) -> list[RowState]:
    going = []
    for index, row in enumerate(rows):
        if row.tokens[-1] in method.target.end_tokens or row.generated() >= limit:
            _finish(row, done)
        else:
            going.append(index)
    return _select(method, rows, going)


def _select(method: SpeculativeLoop, rows: list[RowState], going: list[int]) -> list[RowState]:
    if going and len(going) < len(rows):
        method.target.reorder(going)
        method.drafter.reorder(going)
    return [rows[index] for index in going]


def _finish(row: RowState, done: dict[int, Generation]) -> None:
    row.counts.tokens = row.generated()
    done[row.place] = Generation(row.tokens[row.prompt :], row.proposers, row.counts, row.log_probabilities)
