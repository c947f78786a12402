"""The one loop: draft with q, check with p, keep a prefix, add one token.

A method is data: a drafter, a rule for when to stop drafting, a rule for what to keep. One model alone is the loop with
nothing drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch

from tasks.decoding.decoder import Checking, Decoder, Keep, Rows, Step, can_check
from tasks.decoding.distributions import Block, probability
from tasks.decoding.drafting import Draft, Drafter, DraftRule, nothing
from tasks.decoding.generation import CORRECTED, LARGE, SMALL, Counts, Generation
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.verdicts import AcceptanceRule, Law, large, law_dist


@dataclass(frozen=True)
class Method:
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
        return generate(self, sources, examples, limit)

    def room(self, generated: int, limit: int) -> int:
        """Tokens that a draft may have: one less where the verifier adds its own to a checked draft."""
        unfollowed = self.draft_rule.ends_unverified or self.acceptance.final is None
        return limit - generated - (not unfollowed)


@dataclass
class _Row:
    """One example on its way."""

    place: int
    example: int
    prompt: int
    tokens: list[int]
    proposers: str
    counts: Counts
    log_probabilities: list[float]

    def generated(self) -> int:
        return len(self.tokens) - self.prompt


class _Judgement(NamedTuple):
    """What became of a draft."""

    p: Block
    step: Step
    kept: list[int]
    following: dict[int, int]
    """The token after the kept prefix of a row, where there is one."""


@torch.inference_mode()
def generate(method: Method, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
    """The loop itself; `Method.run` says what it takes and gives."""
    memory = method.target.encode(sources)
    starts = method.target.start(memory)
    method.drafter.start(memory, sources)
    rows = [
        _Row(place, example, len(tokens), tokens, "", Counts(), [])
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
    budgets = [method.draft_rule.budget(row.counts, row.generated(), method.room(row.generated(), limit)) for row in rows]
    draft = method.drafter.draft([row.tokens for row in rows], [row.example for row in rows], budgets, method.draft_rule)
    draft = draft.until(method.target.end_tokens)
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
        if tokens and (tokens[-1] in method.target.end_tokens or row.generated() + len(tokens) == limit):
            _keep(row, tokens)
            _finish(row, done)
        else:
            going.append(index)
    return _select(method, rows, going), draft if len(going) == len(rows) else draft.select(going)


def _verify(method: Method, rows: list[_Row], draft: Draft) -> None:
    """3. One run of the target over what it has not seen; 4. keep a prefix; 5. add one token."""
    target, drafted = method.target, draft.tokens
    followed = method.acceptance.final is not None
    positions = [len(new) + followed for new in drafted]
    p, step, kept, following = (_checked if _is_plain(method, rows) else _judged)(method, rows, draft, positions)
    for index, (row, new, count) in enumerate(zip(rows, drafted, kept, strict=True)):
        row.counts.large_calls += 1
        row.counts.verified[positions[index]] += 1
        row.counts.layers += step.layers[index] if step.layers is not None else 0
        row.counts.rollbacks += count < len(new)
        row.counts.accepted += count
        _keep(row, new[:count])
        if index in following:
            row.tokens.append(following[index])
            row.proposers += LARGE if count == len(new) else CORRECTED
        if method.scored:
            _score(row, p, index, count + (index in following))
    target.rewind([min(cached, len(row.tokens) - 1) for cached, row in zip(target.lengths, rows, strict=True)])
    places = [length - most + count for length, most, count in zip(step.lengths, positions, kept, strict=True)]
    method.drafter.observe([row.tokens for row in rows], step, places)


def _is_plain(method: Method, rows: list[_Row]) -> bool:
    """Whether the target's runtime can judge the draft by itself: one row, greedy, by a rule that is two numbers."""
    rule = method.acceptance
    plain = len(rows) == 1 and method.sampling.greedy and rule.greedy is not None and rule.final is large
    return plain and not method.scored and can_check(method.target)


def _checked(method: Method, rows: list[_Row], draft: Draft, positions: list[int]) -> _Judgement:
    """3 and 4 in one, by the runtime."""
    target, keep = cast(Checking, method.target), cast(Keep, method.acceptance.greedy)
    [tokens], [new] = (row.tokens for row in rows), draft.tokens
    checked = target.check(tokens[target.lengths[0] :], new, keep)
    ended = checked.kept == len(new) > 0 and new[-1] in target.end_tokens
    p = Block(checked.step.logits, method.sampling, checked.step.best)
    return _Judgement(p, checked.step, [checked.kept], {} if ended else {0: checked.following})


def _judged(method: Method, rows: list[_Row], draft: Draft, positions: list[int]) -> _Judgement:
    """3. One run of the target over what it has not seen; 4. the rule looks at its distributions."""
    target = method.target
    # Where no token follows a draft, the prediction after its last one is not needed either.
    followed = method.acceptance.final is not None
    known = [row.tokens + (new if followed else new[:-1]) for row, new in zip(rows, draft.tokens, strict=True)]
    step = target.forward([tokens[cached:] for tokens, cached in zip(known, target.lengths, strict=True)])
    p = Block(step.last(positions), method.sampling, step.last_best(positions))
    kept, otherwise = _kept(method, rows, draft, p)
    return _Judgement(p, step, kept, _following(method, rows, draft, p, kept, otherwise))


def _kept(method: Method, rows: list[_Row], draft: Draft, p: Block) -> tuple[list[int], Law]:
    """How many drafted tokens of each row stay: those before the first that is not accepted; and what may replace that."""
    longest = max(map(len, draft.tokens))
    if not longest:
        return [0] * len(rows), p
    tokens = draft.padded(p.logits.device)
    verdict = method.acceptance.judge(tokens, draft.q.head(longest), p.head(longest))
    kept = []
    for row, new, accept in zip(rows, draft.tokens, verdict.accept.tolist(), strict=True):
        count = 0
        while count < len(new) and _accepted(method.source, row, count, accept[count]):
            count += 1
        kept.append(count)
    return kept, verdict.otherwise


def _accepted(source: TokenSource, row: _Row, offset: int, probability: float) -> bool:
    if probability <= 0 or probability >= 1:
        return probability >= 1
    return source.uniform(row.example, len(row.tokens) + offset, "accept") < probability


def _following(method: Method, rows: list[_Row], draft: Draft, p: Block, kept: list[int], otherwise: Law) -> dict[int, int]:
    """The token after each row's kept prefix: from the replacement where a token fell, else from the final distribution.

    Rows whose draft ended the text have none, and rows with a fully kept draft only where the rule gives one.
    """
    final = method.acceptance.final
    fallen = [index for index, new in enumerate(draft.tokens) if kept[index] < len(new)]
    whole = [
        index
        for index, new in enumerate(draft.tokens)
        if final is not None and kept[index] == len(new) and not (new and new[-1] in method.target.end_tokens)
    ]
    following = _chosen(method, rows, otherwise, fallen, kept)
    if whole and final is large:
        following |= _chosen(method, rows, p, whole, kept)
    elif whole and final is not None:
        law = final(_after_draft(method, rows, draft, whole), p.at(whole, [kept[index] for index in whole]))
        following |= _chosen(method, rows, law, whole, kept, alone=True)
    return following


def _chosen(
    method: Method, rows: list[_Row], law: Law, wanted: list[int], kept: list[int], *, alone: bool = False
) -> dict[int, int]:
    """A token for each wanted row from `law` after its kept prefix; `alone`: the law is of those rows and places alone."""
    if not wanted:
        return {}
    places = [(row, 0) for row in range(len(wanted))] if alone else [(index, kept[index]) for index in wanted]
    if method.sampling.greedy and isinstance(law, Block):
        return {index: law.likeliest[row][place] for index, (row, place) in zip(wanted, places, strict=True)}
    dist = torch.stack([law_dist(law)[place] for place in places])
    keys = [(rows[index].example, len(rows[index].tokens) + kept[index], "target") for index in wanted]
    chosen: list[int] = dist.argmax(-1).tolist() if method.sampling.greedy else method.source.draw(dist, keys)
    return dict(zip(wanted, chosen, strict=True))


def _after_draft(method: Method, rows: list[_Row], draft: Draft, whole: list[int]) -> Block:
    """The drafter's prediction after its last token in these rows, for rules that read it there."""
    if not method.acceptance.final_reads_q:
        return nothing(len(whole))
    for index in whole:
        rows[index].counts.small_steps += method.drafter.runs_model
    return method.drafter.following([row.tokens + new for row, new in zip(rows, draft.tokens, strict=True)], whole)


def _score(row: _Row, p: Block, index: int, new: int) -> None:
    """Notes the target's own log-probability of the last `new` tokens of a row."""
    if new:
        tokens = torch.tensor(row.tokens[-new:], device=p.logits.device)
        # Not the logarithm of `scores`, which is -infinity where a drawn token's probability rounds to zero.
        row.log_probabilities += probability(torch.log_softmax(p.logits[index, :new].float(), -1), tokens).tolist()


def _keep(row: _Row, tokens: list[int]) -> None:
    row.tokens.extend(tokens)
    row.proposers += SMALL * len(tokens)


def _drop_finished(method: Method, rows: list[_Row], limit: int, done: dict[int, Generation]) -> list[_Row]:
    going = []
    for index, row in enumerate(rows):
        if row.tokens[-1] in method.target.end_tokens or row.generated() >= limit:
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
    done[row.place] = Generation(row.tokens[row.prompt :], row.proposers, row.counts, row.log_probabilities)
