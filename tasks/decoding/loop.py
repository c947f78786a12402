"""Speculative decoding: draft with q, check with p, keep a prefix, add one token.

A method is data for this loop: a drafter, a draft rule, an acceptance rule (`SpeculativeLoop`). One turn of a row, whose text
so far is prefix:

1. Draft x_1 … x_γ, each from q(· | prefix, x_1 … x_{i-1}), until the draft rule stops.
2. A row whose draft rule lets the text end with an unverified token (BiLD, token cascades) is finished here.
3. Verify the draft in one pass of the target: p_i = p(· | prefix, x_1 … x_{i-1}) for i = 1 … γ + 1.
4. Keep the longest prefix x_1 … x_n of the draft that the acceptance rule accepts.
5. Add one token: from the rule's residual where n < γ, else the bonus token from p_{γ+1}.

`generate` takes these steps on tensors, for any runtime, drafter and rule. `executor_for` picks a faster executor where one
fits; all give the same tokens, proposers and counts, since `turn.TurnRules` keeps the accounts of all:

| executor | runs |
|---|---|
| `replay.replay` | on the cached predictions that stand in for both models, one row after the other |
| `continue_greedily`, `continue_sampled` | one model's text in a single call of its runtime |
| `native_loop.generate` | rows of one native model alone, with another one or, greedily, a table, in one call of the kernel |
| `generate` | everything else |
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tasks.decoding import native_loop, replay
from tasks.decoding.decoder import CheckedDraft, Draws, Rows, Step
from tasks.decoding.distributions import Key, PredictionBlock, Purpose, TokenSource, invert, probability
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters import look_ups
from tasks.decoding.drafters.base import Draft, Drafter, ModelDrafter
from tasks.decoding.drafters.layers import early_layer_drafter, heads_drafter
from tasks.decoding.generation import Generation
from tasks.decoding.method import DecodingMethod, Pair, Request, SamplingSettings
from tasks.decoding.rules import AcceptanceRule, BonusToken, TokenDistribution, token_probabilities
from tasks.decoding.turn import Abandonment, LoopParts, RowState, TurnRules, Watch, require_awaited
from tasks.errors import InputError

Executor = Callable[[LoopParts, Rows, Sequence[int], int], list[Generation]]


@dataclass(frozen=True)
class SpeculativeLoop(LoopParts):
    """A method that is one speculative loop, or one model alone: the loop with nothing drafted."""

    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """Decode each source until its end token or `limit` tokens.

        Args:
            sources: Token ids of each source.
            examples: A number for each source that keys its random draws.
            limit: Most tokens to generate, the end token included.
        """
        return executor_for(self, len(sources))(self, sources, examples, limit)


_DRAFTERS: dict[str, Callable[[Pair, SamplingSettings, TokenSource], Drafter]] = {
    "small": lambda pair, sampling, source: ModelDrafter(pair.small, sampling, source, shares_encoder=pair.shares_encoder),
    "unigram": lambda pair, sampling, source: look_ups.TableDrafter(look_ups.unigrams_of(pair), pair.large, sampling, source),
    "bigram": lambda pair, sampling, source: look_ups.TableDrafter(look_ups.tables_of(pair), pair.large, sampling, source),
    "copy": lambda pair, sampling, _: look_ups.CopyDrafter(pair.large, sampling),
    "suffix": lambda pair, sampling, _: look_ups.SuffixDrafter(look_ups.outputs_tree_of(pair), pair.large, sampling),
    "random": lambda pair, sampling, source: look_ups.RandomDrafter(pair.large, sampling, source),
    "early_layer": lambda pair, sampling, source: early_layer_drafter(pair.large, sampling, source),
    "heads": lambda pair, sampling, source: heads_drafter(pair.large, sampling, source),
}


def make_drafter(name: str, pair: Pair, sampling: SamplingSettings, source: TokenSource) -> Drafter:
    """Return the drafter called `name` (`method.DRAFTERS`), built on the parts of `pair` that it needs.

    Raises:
        InputError: there is no such drafter, or the pair lacks what it needs.
    """
    if name not in _DRAFTERS:
        raise InputError(f"there is no drafter {name!r}; name one of {', '.join(_DRAFTERS)}")
    return _DRAFTERS[name](pair, sampling, source)


def speculative_loop(
    pair: Pair, drafter: str, acceptance: AcceptanceRule, draft_rule: DraftRule, request: Request
) -> SpeculativeLoop:
    """Return the loop in which the drafter called `drafter` drafts for the large model of a pair."""
    sampling, source = request.sampling, request.source
    drafts = make_drafter(drafter, pair, request.drafting, source)
    return SpeculativeLoop(pair.large, acceptance, sampling, source, drafts, draft_rule)


def watched(method: DecodingMethod, watch: Watch) -> DecodingMethod:
    """Return the method with `watch` called after each turn of a row, which may end its text; unchanged where it is no loop."""
    return dataclasses.replace(method, watch=watch) if isinstance(method, SpeculativeLoop) else method


def abandonable(method: DecodingMethod, texts: Sequence[Abandonment]) -> DecodingMethod:
    """Return the method that ends at its next turn once all of these are set; unchanged where it is no single loop."""
    return dataclasses.replace(method, abandoned=texts) if isinstance(method, SpeculativeLoop) else method


def executor_for(parts: LoopParts, rows: int) -> Executor:
    """Return the fastest executor for `rows` sources; the general loop takes everything but cached predictions."""
    target = parts.target.capabilities
    if target.replay is not None:
        return replay.replay
    native = native_loop.fits(parts)
    # A continuation takes less Python than the kernel's turns, but can be neither watched nor abandoned.
    if rows == 1 and parts.undrafted and parts.watch is None:
        if parts.sampling.greedy and target.continue_greedily is not None and not (native and parts.abandoned):
            return continue_greedily
        # It gives no log-probability of a drawn token.
        if not parts.sampling.greedy and target.continue_sampled is not None and parts.source.known_before and not parts.scored:
            return continue_sampled
    return native_loop.generate if native else generate


def continue_greedily(parts: LoopParts, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
    """Decode one source with the target alone, without a decision between its runs."""
    target, continuation = parts.target, parts.target.capabilities.continue_greedily
    if continuation is None:
        raise ValueError(f"the {target.name} model's runtime does not continue a row by itself")
    [prompt] = target.start(target.encode(sources))
    # A softmax is computed only where a bound reads it; no confidence is under this one.
    stop = DraftRule(fallback_threshold=sys.float_info.min if parts.scored else 0.0)
    found = continuation(prompt, limit, stop, with_logits=False)
    turns, row = parts.turns(limit), RowState(examples[0], prompt, len(prompt))
    turns.finish_undrafted(row, found.tokens)
    if parts.scored:
        row.log_probabilities = [math.log(min(1.0, confidence)) for confidence in found.confidence]
    return [row.generation()]


def continue_sampled(parts: LoopParts, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
    """Do the same with drawn tokens."""
    target, continuation = parts.target, parts.target.capabilities.continue_sampled
    if continuation is None:
        raise ValueError(f"the {target.name} model's runtime does not continue a row by itself with drawn tokens")
    [prompt] = target.start(target.encode(sources))
    positions = range(len(prompt), len(prompt) + limit)
    uniforms = [parts.source.uniform(Key(examples[0], position, Purpose.TARGET)) for position in positions]
    found = continuation(prompt, Draws(parts.sampling, uniforms), DraftRule(), with_logits=False)
    row = RowState(examples[0], prompt, len(prompt))
    parts.turns(limit).finish_undrafted(row, found.tokens)
    return [row.generation()]


@torch.inference_mode()
def generate(parts: LoopParts, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
    """Decode all sources side by side, rows of unequal length; `SpeculativeLoop.run` describes the arguments."""
    encoder_output = parts.target.encode(sources)
    prompts = parts.target.start(encoder_output)
    parts.drafter.start(encoder_output, sources)
    rows = [RowState(example, tokens, len(tokens)) for example, tokens in zip(examples, prompts, strict=True)]
    turns = parts.turns(limit)
    going = rows
    while going:
        require_awaited(parts.abandoned)
        turning = going
        draft = _draft(parts, turns, going)
        going, draft = _end_unverified(parts, turns, going, draft)
        if going:
            going = _finish(parts, turns, going, draft, _verify(parts, turns, going, draft))
        if parts.watch is not None:
            stopped = [row for row in turning if parts.watch(row)]
            for row in stopped:
                row.end()
            going = _keep(parts, going, [index for index, row in enumerate(going) if all(row is not one for one in stopped)])
    return [row.generation() for row in rows]


def _draft(parts: LoopParts, turns: TurnRules, rows: list[RowState]) -> Draft:
    """1. Draft tokens for each row; a draft goes no further than what ends the text for the target."""
    budgets = [turns.budget(row) for row in rows]
    # γ of each row, then x_1 … x_γ and their q.
    draft = parts.drafter.draft([row.tokens for row in rows], [row.example for row in rows], budgets, parts.draft_rule)
    cut = [turns.cut(tokens, fallback) for tokens, fallback in zip(draft.tokens, draft.fallback, strict=True)]
    return Draft([tokens for tokens, _ in cut], draft.q, [fallback for _, fallback in cut], draft.steps)


def _end_unverified(parts: LoopParts, turns: TurnRules, rows: list[RowState], draft: Draft) -> tuple[list[RowState], Draft]:
    """2. Finish the rows that the draft rule lets end with a drafted token, and leave them out of the batch."""
    going = []
    for index, (row, tokens) in enumerate(zip(rows, draft.tokens, strict=True)):
        if turns.ends_unverified(row, tokens):
            steps, fallback = draft.steps[index], draft.fallback[index]
            turns.finish(row, tokens, drafted=len(tokens), steps=steps, fallback=fallback, verified=False)
        else:
            going.append(index)
    return _keep(parts, rows, going), draft if len(going) == len(rows) else draft.select(going)


class Verification(NamedTuple):
    """The target's decision on the drafts of all rows."""

    p: PredictionBlock
    """The target's predictions at the verified positions: (rows, γ + 1, vocabulary)."""
    step: Step
    accepted: list[int]
    """n: drafted tokens of each row that stay."""
    next_tokens: dict[int, int]
    """By row: the token after the accepted prefix, where there is one."""
    bonus_steps: dict[int, int]
    """By row: runs of the drafter's model that the bonus token took."""


def _verify(parts: LoopParts, turns: TurnRules, rows: list[RowState], draft: Draft) -> Verification:
    """3. Run the target on each row's draft and on what it has not seen before it; 4. and 5. decide what follows."""
    check, target = _check_by_runtime(parts, rows, draft), parts.target
    if check is not None:
        return _checked_by_runtime(parts, turns, check, rows, draft)
    positions = [turns.positions(len(drafted)) for drafted in draft.tokens]
    # Where no token follows a draft, nothing is predicted after the draft's last token.
    known = [row.tokens + (new if turns.bonus else new[:-1]) for row, new in zip(rows, draft.tokens, strict=True)]
    # A cache holds all but the last token of its row: a run reads that and the draft.
    step = target.forward([tokens[cached:] for tokens, cached in zip(known, target.lengths, strict=True)])
    # p_1 … p_{γ+1}: (rows, longest draft + 1, vocabulary).
    p = PredictionBlock(step.last(positions), parts.sampling, step.last_argmax(positions))
    accepted, residual = _accept(parts, rows, draft, p)
    rejected = [index for index, drafted in enumerate(draft.tokens) if accepted[index] < len(drafted)]
    # In place of x_{n+1} in the rows that reject it, from the residual at that position.
    corrections = _take(parts, rows, residual, rejected, accepted)
    bonus, steps = _bonus(parts, turns, rows, draft, p, accepted)
    return Verification(p, step, accepted, corrections | bonus, steps)


_Check = Callable[[list[int], list[int]], CheckedDraft]
"""Appends what the target's cache lacks before a draft, and the draft; decides on it where the logits are."""


def _check_by_runtime(parts: LoopParts, rows: list[RowState], draft: Draft) -> _Check | None:
    """Return how the target's runtime decides on the draft of its only row; none where it cannot."""
    rule, can = parts.acceptance, parts.target.capabilities
    if len(rows) > 1 or rule.bonus is BonusToken.NONE:
        return None
    if parts.sampling.greedy:
        if rule.greedy is None or rule.bonus is BonusToken.RULE or can.check_draft is None:
            return None
        return functools.partial(can.check_draft, rule=rule.greedy)
    if can.decide_draft is None or not parts.source.known_before:
        return None
    return functools.partial(can.decide_draft, decide=functools.partial(_decide, parts, rows[0], draft))


def _checked_by_runtime(parts: LoopParts, turns: TurnRules, check: _Check, rows: list[RowState], draft: Draft) -> Verification:
    """Let a runtime verify the draft of its only row and apply the rule where the logits are."""
    [row], [drafted] = rows, draft.tokens
    checked = check(row.tokens[parts.target.lengths[0] :], drafted)
    p, accepted = PredictionBlock(checked.step.logits, parts.sampling, checked.step.argmax), [checked.accepted]
    if checked.accepted == len(drafted) and parts.acceptance.bonus is BonusToken.RULE:
        return Verification(p, checked.step, accepted, *_bonus(parts, turns, rows, draft, p, accepted))
    has_next = checked.accepted < len(drafted) or turns.adds_bonus(drafted)
    return Verification(p, checked.step, accepted, {0: checked.next_token} if has_next else {}, {})


def _decide(parts: LoopParts, row: RowState, draft: Draft, logits: Tensor) -> Tensor:
    """4. and 5. of one sampled row without waiting for the device: n, and the token from the residual or from p, int64 (2,)."""
    count, begun, accepted = len(draft.tokens[0]), len(row.tokens), torch.zeros(1, dtype=torch.long, device=logits.device)
    # A number for each x_i, then one for the token behind each prefix of the draft: float64 (2 γ + 1,).
    keys = [Key(row.example, begun + offset, Purpose.ACCEPT) for offset in range(count)]
    keys += [Key(row.example, begun + offset, Purpose.TARGET) for offset in range(count + 1)]
    uniforms = torch.tensor([parts.source.uniform(key) for key in keys], dtype=torch.float64)
    uniforms = uniforms.to(logits.device, non_blocking=True)
    # What that token is drawn from: (γ + 1, vocabulary).
    dist = PredictionBlock(logits[:, count:], parts.sampling).dist[0]
    if count:
        p = PredictionBlock(logits[:, :count], parts.sampling)
        result = parts.acceptance.apply(draft.padded(logits.device), draft.q.head(count), p)
        # Numbers lie between 0 and 1, so that what is certain is decided as if none were drawn.
        accepted = (uniforms[:count] < result.accept[0].double()).long().cumprod(0).sum(0, keepdim=True)
        dist = torch.cat([token_probabilities(result.residual)[0], dist])
    token = invert(dist.index_select(0, accepted), uniforms[count:].index_select(0, accepted))
    return torch.cat([accepted, token])


def _accept(parts: LoopParts, rows: list[RowState], draft: Draft, p: PredictionBlock) -> tuple[list[int], TokenDistribution]:
    """4. Return n, how many drafted tokens of each row stay, and the distribution that replaces the first one rejected."""
    rule, longest = parts.acceptance, max(map(len, draft.tokens))
    if not longest:
        return [0] * len(rows), p
    # The chance of each x_i given those before it, (rows, γ), of q and p: (rows, γ, vocabulary).
    result = rule.apply(draft.padded(p.logits.device), draft.q.head(longest), p.head(longest))
    accepted = []
    for row, drafted, chances in zip(rows, draft.tokens, result.accept.tolist(), strict=True):
        accepts = functools.partial(_accepts, parts, row, chances)
        accepted.append(sum(1 for _ in itertools.takewhile(accepts, range(len(drafted)))))
    return accepted, result.residual


def _accepts(parts: LoopParts, row: RowState, chances: list[float], offset: int) -> bool:
    """Return whether the drafted token at `offset` is accepted, given its probability of that."""
    chance = chances[offset]
    # No number is drawn for what is certain: greedy rules give bool.
    if chance <= 0 or chance >= 1:
        return chance >= 1
    return parts.source.uniform(Key(row.example, len(row.tokens) + offset, Purpose.ACCEPT)) < chance


def _bonus(
    parts: LoopParts, turns: TurnRules, rows: list[RowState], draft: Draft, p: PredictionBlock, accepted: list[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """5. Return the token after each fully accepted draft, and the drafter's runs that it took, both by row."""
    rule, drafter = parts.acceptance, parts.drafter
    whole = [
        index for index, drafted in enumerate(draft.tokens) if accepted[index] == len(drafted) and turns.adds_bonus(drafted)
    ]
    if not whole or rule.bonus is BonusToken.TARGET:
        return _take(parts, rows, p, whole, accepted), {}
    # T(q, p) needs q_{γ+1}, the drafter's prediction behind its whole draft.
    q = drafter.predict_next([row.tokens + new for row, new in zip(rows, draft.tokens, strict=True)], whole)
    distribution = rule.target(q, p.at(whole, [accepted[index] for index in whole]))
    steps = dict.fromkeys(whole, int(drafter.runs_model))
    return _take(parts, rows, distribution, whole, accepted, selected=True), steps


def _take(
    parts: LoopParts,
    rows: list[RowState],
    distribution: TokenDistribution,
    wanted: list[int],
    accepted: list[int],
    *,
    selected: bool = False,
) -> dict[int, int]:
    """Take a token for each row in `wanted` after its accepted prefix.

    The distribution covers all rows and positions; `selected`: only the wanted rows, at the one position each.
    """
    if not wanted:
        return {}
    cells = [(row, 0) for row in range(len(wanted))] if selected else [(row, accepted[row]) for row in wanted]
    if parts.sampling.greedy and isinstance(distribution, PredictionBlock):
        return {index: distribution.argmax_rows[row][column] for index, (row, column) in zip(wanted, cells, strict=True)}
    # Residuals need not sum to 1; `draw` scales its number to their total.
    dist = torch.stack([token_probabilities(distribution)[cell] for cell in cells])  # (wanted, vocabulary)
    if parts.sampling.greedy:
        chosen: list[int] = dist.argmax(-1).tolist()
    else:
        keys = [Key(rows[index].example, len(rows[index].tokens) + accepted[index], Purpose.TARGET) for index in wanted]
        chosen = parts.source.draw(dist, keys)
    return dict(zip(wanted, chosen, strict=True))


def _finish(parts: LoopParts, turns: TurnRules, rows: list[RowState], draft: Draft, result: Verification) -> list[RowState]:
    """Add the turn to each row, and wind both caches back to what stays; returns the rows whose texts go on."""
    layers = result.step.layers or [0] * len(rows)
    going = []
    for index, (row, drafted, accepted) in enumerate(zip(rows, draft.tokens, result.accepted, strict=True)):
        ended = turns.finish(
            row,
            drafted[:accepted],
            result.next_tokens.get(index),
            drafted=len(drafted),
            steps=draft.steps[index] + result.bonus_steps.get(index, 0),
            fallback=draft.fallback[index],
            layers=layers[index],
        )
        if parts.scored:
            _score(row, result.p, index, accepted + (index in result.next_tokens))
        if not ended:
            going.append(index)
    target = parts.target
    # After each turn a cache holds all tokens but the last, which the next run reads.
    target.rewind([min(cached, len(row.tokens) - 1) for cached, row in zip(target.lengths, rows, strict=True)])
    # The column of `step` that predicted what follows each accepted prefix: heads draft from its hidden state.
    predicted = [
        length - turns.positions(len(drafted)) + accepted
        for length, drafted, accepted in zip(result.step.lengths, draft.tokens, result.accepted, strict=True)
    ]
    parts.drafter.observe([row.tokens for row in rows], result.step, predicted)
    return _keep(parts, rows, going)


def _score(row: RowState, p: PredictionBlock, index: int, new: int) -> None:
    """Record the target's own log-probability of the last `new` tokens of a row."""
    if new:
        tokens = torch.tensor(row.tokens[-new:]).to(p.logits.device, non_blocking=True)
        # Not the logarithm of `scores`, which is -infinity where a drawn token's probability rounds to zero.
        row.log_probabilities += probability(torch.log_softmax(p.logits[index, :new].float(), -1), tokens).tolist()


def _keep(parts: LoopParts, rows: list[RowState], going: list[int]) -> list[RowState]:
    """Keep these rows in both caches."""
    # Rows that have ended leave both caches, so that later runs are smaller.
    if going and len(going) < len(rows):
        parts.target.reorder(going)
        parts.drafter.reorder(going)
    return [rows[index] for index in going]
