"""The one loop: draft with q, check with p, keep a prefix, add one token.

A method is data: a drafter, a rule for when to stop drafting, a rule for what to keep. One model alone is the loop with
nothing drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.distributions import Block
from tasks.decoding.drafting import Draft, Drafter, DraftRule
from tasks.decoding.generation import CORRECTED, LARGE, SMALL, Counts, Generation
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.verdicts import AcceptanceRule, Verdict


@dataclass(frozen=True)
class Method:
    """The parts of one method, ready to run."""

    target: Decoder
    acceptance: AcceptanceRule
    sampling: SamplingSettings
    source: TokenSource
    drafter: Drafter
    draft_rule: DraftRule


@dataclass
class _Row:
    """One example on its way."""

    place: int
    example: int
    prompt: int
    tokens: list[int]
    proposers: str
    counts: Counts

    def generated(self) -> int:
        return len(self.tokens) - self.prompt


def generate(method: Method, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
    """Decodes each source until its end token or `limit` tokens, all rows side by side.

    Args:
        method: What to run.
        sources: Token ids of each source.
        examples: A number for each source that keys its random draws.
        limit: Most tokens to generate, the end token included.
    """
    memory = method.target.encode(sources)
    starts = method.target.start(memory)
    method.drafter.start(memory, sources)
    rows = [
        _Row(place, example, len(tokens), tokens, "", Counts())
        for place, (example, tokens) in enumerate(zip(examples, starts, strict=True))
    ]
    done: dict[int, Generation] = {}
    while rows:
        rows, draft = _end_unverified(method, rows, _draft(method, rows, limit), limit, done)
        if rows:
            _verify(method, rows, draft)
            rows = _drop_finished(method, rows, limit, done)
    return [done[place] for place in range(len(sources))]


def _draft(method: Method, rows: list[_Row], limit: int) -> Draft:
    """1. The drafter proposes; one row's runs are counted as if it were alone."""
    budgets = [method.draft_rule.budget(row.generated(), limit) for row in rows]
    draft = method.drafter.draft([row.tokens for row in rows], [row.example for row in rows], budgets, method.draft_rule)
    for row, tokens, steps, fallback in zip(rows, draft.tokens, draft.steps, draft.fallback, strict=True):
        row.counts.small_steps += steps
        row.counts.drafted += len(tokens)
        row.counts.fallbacks += fallback
    return draft


def _end_unverified(
    method: Method, rows: list[_Row], draft: Draft, limit: int, done: dict[int, Generation]
) -> tuple[list[_Row], Draft]:
    """2. Rows that the rule lets end on the drafter's word leave here (BiLD, Algorithm 1: the loop tests y[-1])."""
    if not method.draft_rule.ends_unverified:
        return rows, draft
    going = []
    for index, (row, tokens) in enumerate(zip(rows, draft.tokens, strict=True)):
        if tokens and (tokens[-1] == method.target.end_token or row.generated() + len(tokens) == limit):
            _keep(row, tokens)
            _finish(row, done)
        else:
            going.append(index)
    return _select(method, rows, going), draft if len(going) == len(rows) else draft.select(going)


def _verify(method: Method, rows: list[_Row], draft: Draft) -> None:
    """3. One run of the target over what it has not seen; 4. keep a prefix; 5. add one token."""
    target, drafted = method.target, draft.tokens
    pending = [(row.tokens + new)[cached:] for row, new, cached in zip(rows, drafted, target.lengths, strict=True)]
    positions = [len(new) + 1 for new in drafted]
    p = Block(target.forward(pending).last(positions), method.sampling)
    tokens = draft.padded(p.logits.device)
    verdict = method.acceptance(tokens, draft.q.head(tokens.shape[1]), p)
    kept = _kept(method, rows, drafted, verdict)
    chosen = _choose(method, rows, drafted, verdict, kept)
    for row, new, count, token, verified in zip(rows, drafted, kept, chosen, positions, strict=True):
        row.counts.large_calls += 1
        row.counts.verified[verified] += 1
        row.counts.rollbacks += count < len(new)
        row.counts.accepted += count
        _keep(row, new[:count])
        if not (count and row.tokens[-1] == target.end_token):
            row.tokens.append(token)
            row.proposers += LARGE if count == len(new) else CORRECTED
    target.rewind([len(row.tokens) - 1 for row in rows])
    method.drafter.observe([row.tokens for row in rows])


def _kept(method: Method, rows: list[_Row], drafted: Rows, verdict: Verdict) -> list[int]:
    """How many drafted tokens of each row stay: those before the first that is not accepted."""
    kept = []
    for row, new, accept in zip(rows, drafted, verdict.accept.tolist(), strict=True):
        count = 0
        while count < len(new) and _accepted(method.source, row, count, accept[count]):
            count += 1
        kept.append(count)
    return kept


def _accepted(source: TokenSource, row: _Row, offset: int, probability: float) -> bool:
    if probability <= 0 or probability >= 1:
        return probability >= 1
    return source.uniform(row.example, len(row.tokens) + offset, "accept") < probability


def _choose(method: Method, rows: list[_Row], drafted: Rows, verdict: Verdict, kept: list[int]) -> list[int]:
    """The token after the kept prefix: from the replacement where a token fell, else from the final distribution."""
    dist = torch.stack(
        [
            verdict.replacement[index, count] if count < len(new) else verdict.final[index, count]
            for index, (count, new) in enumerate(zip(kept, drafted, strict=True))
        ]
    )
    if method.sampling.greedy:
        best: list[int] = dist.argmax(-1).tolist()
        return best
    return method.source.draw(
        dist, [(row.example, len(row.tokens) + count, "target") for row, count in zip(rows, kept, strict=True)]
    )


def _keep(row: _Row, tokens: list[int]) -> None:
    row.tokens.extend(tokens)
    row.proposers += SMALL * len(tokens)


def _drop_finished(method: Method, rows: list[_Row], limit: int, done: dict[int, Generation]) -> list[_Row]:
    going = []
    for index, row in enumerate(rows):
        if row.tokens[-1] == method.target.end_token or row.generated() >= limit:
            _finish(row, done)
        else:
            going.append(index)
    return _select(method, rows, going)


def _select(method: Method, rows: list[_Row], going: list[int]) -> list[_Row]:
    if going and len(going) < len(rows):
        method.target.reorder(going)
        method.drafter.reorder(going)
    return [rows[index] for index in going]


def _finish(row: _Row, done: dict[int, Generation]) -> None:
    row.counts.tokens = row.generated()
    done[row.place] = Generation(row.tokens[row.prompt :], row.proposers, row.counts)
