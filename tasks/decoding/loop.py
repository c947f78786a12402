"""The general loop of speculative decoding: draft with q, check with p, keep a prefix, add one token.

It decodes rows of unequal length side by side, draws tokens or takes the likeliest, and takes every runtime, drafter and
rule. A method is data for it (`LoopParts`). What a turn does to a row is defined in `turn`, and `execution` picks a faster
executor where one fits.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tasks.decoding.abandonment import Abandonment, require_awaited
from tasks.decoding.acceptance_rules import AcceptanceRule, BonusToken, TokenDistribution, token_probabilities
from tasks.decoding.decoder import Decoder, DraftCheck, GreedyAcceptance, Rows, Step
from tasks.decoding.distributions import PredictionBlock, probability
from tasks.decoding.drafting import Draft, Drafter, empty_predictions
from tasks.decoding.generation import Generation
from tasks.decoding.native_rules import NativeRules, native_rules
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.turn import DraftRule, RowState, TurnRules


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
    watch: Callable[[RowState], None] | None = None
    """Called with each row after each of its turns: all its tokens are final."""
    abandoned: Sequence[Abandonment] = ()
    """A flag for each text; once all are set, decoding ends at its next turn with `AbandonedError`."""

    def turns(self, limit: int) -> TurnRules:
        """Return what the turns of a text of at most `limit` tokens go by."""
        return TurnRules(self.draft_rule, self.target.end_tokens, limit, self.acceptance.bonus is not BonusToken.NONE)

    @property
    def undrafted(self) -> bool:
        """Whether the target predicts every token by itself."""
        return self.draft_rule.window == 0 and self.acceptance.bonus is BonusToken.TARGET

    @functools.cached_property
    def native_rules(self) -> NativeRules | None:
        """The rules as the compiled kernel takes them; none where it cannot apply them."""
        if self.scored or not self.sampling.greedy:
            return None
        drafter = self.drafter.decoder or self.target  # a table ends texts with the target's tokens
        return native_rules(self.acceptance, self.draft_rule, drafter.end_tokens, self.target.end_tokens)


@torch.inference_mode()
def generate(parts: LoopParts, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
    """Decode all sources side by side; `execution.SpeculativeLoop.run` describes the arguments."""
    encoder_output = parts.target.encode(sources)
    prompts = parts.target.start(encoder_output)
    parts.drafter.start(encoder_output, sources)
    rows = [RowState(example, tokens, len(tokens)) for example, tokens in zip(examples, prompts, strict=True)]
    verifier = Verifier(parts, parts.turns(limit))
    going = rows
    while going:
        require_awaited(parts.abandoned)
        turning = going
        going, draft = _end_unverified(verifier, going, _draft(verifier, going))
        if going:
            going = _verify(verifier, going, draft)
        if parts.watch is not None:
            for row in turning:
                parts.watch(row)
    return [row.generation() for row in rows]


def _draft(verifier: Verifier, rows: list[RowState]) -> Draft:
    """1. The drafter proposes tokens for each row; a draft goes no further than what ends the text for the target."""
    parts, turns = verifier.parts, verifier.turns
    budgets = [turns.budget(row) for row in rows]
    draft = parts.drafter.draft([row.tokens for row in rows], [row.example for row in rows], budgets, parts.draft_rule)
    cut = [turns.cut(tokens, fallback) for tokens, fallback in zip(draft.tokens, draft.fallback, strict=True)]
    return Draft([tokens for tokens, _ in cut], draft.q, [fallback for _, fallback in cut], draft.steps)


def _end_unverified(verifier: Verifier, rows: list[RowState], draft: Draft) -> tuple[list[RowState], Draft]:
    """2. Rows that the draft rule lets end with a drafted token leave the batch."""
    going = []
    for index, (row, tokens) in enumerate(zip(rows, draft.tokens, strict=True)):
        if verifier.turns.ends_unverified(row, tokens):
            steps, fallback = draft.steps[index], draft.fallback[index]
            verifier.turns.finish(row, tokens, drafted=len(tokens), steps=steps, fallback=fallback, verified=False)
        else:
            going.append(index)
    return _select(verifier.parts, rows, going), draft if len(going) == len(rows) else draft.select(going)


def _verify(verifier: Verifier, rows: list[RowState], draft: Draft) -> list[RowState]:
    """3. Run the target; 4. keep a prefix of each draft; 5. add one token. Returns the rows whose texts go on."""
    parts, turns = verifier.parts, verifier.turns
    result = verifier.verify(rows, draft)
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
    target.rewind([min(cached, len(row.tokens) - 1) for cached, row in zip(target.lengths, rows, strict=True)])
    predicted = [
        length - turns.positions(len(drafted)) + accepted
        for length, drafted, accepted in zip(result.step.lengths, draft.tokens, result.accepted, strict=True)
    ]
    parts.drafter.observe([row.tokens for row in rows], result.step, predicted)
    return _select(parts, rows, going)


def _score(row: RowState, p: PredictionBlock, index: int, new: int) -> None:
    """Record the target's own log-probability of the last `new` tokens of a row."""
    if new:
        tokens = torch.tensor(row.tokens[-new:], device=p.logits.device)
        # Not the logarithm of `scores`, which is -infinity where a drawn token's probability rounds to zero.
        row.log_probabilities += probability(torch.log_softmax(p.logits[index, :new].float(), -1), tokens).tolist()


def _select(parts: LoopParts, rows: list[RowState], going: list[int]) -> list[RowState]:
    if going and len(going) < len(rows):
        parts.target.reorder(going)
        parts.drafter.reorder(going)
    return [rows[index] for index in going]


class Verification(NamedTuple):
    """The target's decision on the drafts of all rows."""

    p: PredictionBlock
    """The target's predictions at the verified positions."""
    step: Step
    accepted: list[int]
    """Drafted tokens of each row that stay."""
    next_tokens: dict[int, int]
    """By row: the token after the accepted prefix, where there is one."""
    bonus_steps: dict[int, int]
    """By row: runs of the drafter's model that the bonus token took."""


@dataclass(frozen=True)
class Verifier:
    """Steps 3 to 5 of the loop: the target runs on the drafts, and the acceptance rule decides."""

    parts: LoopParts
    turns: TurnRules

    def verify(self, rows: list[RowState], draft: Draft) -> Verification:
        """Run the target on each row's draft and on what it has not seen before it."""
        rule, check = self.parts.acceptance, self.parts.target.capabilities.check_draft
        alone = len(rows) == 1 and self.parts.sampling.greedy and rule.bonus is BonusToken.TARGET
        if alone and rule.greedy is not None and check is not None:
            return self._by_runtime(check, rule.greedy, rows[0], draft.tokens[0])
        return self._by_rule(rows, draft)

    def _by_runtime(self, check: DraftCheck, greedy: GreedyAcceptance, row: RowState, drafted: list[int]) -> Verification:
        checked = check(row.tokens[self.parts.target.lengths[0] :], drafted, greedy)
        has_next = checked.accepted < len(drafted) or self.turns.adds_bonus(drafted)
        p = PredictionBlock(checked.step.logits, self.parts.sampling, checked.step.best)
        return Verification(p, checked.step, [checked.accepted], {0: checked.next_token} if has_next else {}, {})

    def _by_rule(self, rows: list[RowState], draft: Draft) -> Verification:
        target = self.parts.target
        positions = [self.turns.positions(len(drafted)) for drafted in draft.tokens]
        # Where no token follows a draft, nothing is predicted after the draft's last token.
        known = [row.tokens + (new if self.turns.bonus else new[:-1]) for row, new in zip(rows, draft.tokens, strict=True)]
        step = target.forward([tokens[cached:] for tokens, cached in zip(known, target.lengths, strict=True)])
        p = PredictionBlock(step.last(positions), self.parts.sampling, step.last_best(positions))
        accepted, residual = self._accept(rows, draft, p)
        rejected = [index for index, drafted in enumerate(draft.tokens) if accepted[index] < len(drafted)]
        next_tokens = self._take(rows, residual, rejected, accepted)
        bonus, steps = self._bonus(rows, draft, p, accepted)
        return Verification(p, step, accepted, next_tokens | bonus, steps)

    def _accept(self, rows: list[RowState], draft: Draft, p: PredictionBlock) -> tuple[list[int], TokenDistribution]:
        """Return how many drafted tokens of each row stay, and the distribution that replaces the first one rejected."""
        longest = max(map(len, draft.tokens))
        if not longest:
            return [0] * len(rows), p
        if self.parts.acceptance.joint and any(len(drafted) < longest for drafted in draft.tokens):
            return self._accept_one_by_one(rows, draft, p)
        tokens, verified, pardon = draft.padded(p.logits.device), p.head(longest), self.parts.acceptance.pardon
        result = self.parts.acceptance.apply(tokens, draft.q.head(longest), verified)
        nats = None if pardon is None else verified.entropy.tolist()
        accepted = []
        for index, (row, drafted, probabilities) in enumerate(zip(rows, draft.tokens, result.accept.tolist(), strict=True)):
            accepts = functools.partial(self._accepts, row, probabilities)
            if pardon is None or nats is None:
                accepted.append(sum(1 for _ in itertools.takewhile(accepts, range(len(drafted)))))
            else:
                accepted.append(pardon.count(len(drafted), accepts, nats[index].__getitem__))
        return accepted, result.residual

    def _accept_one_by_one(self, rows: list[RowState], draft: Draft, p: PredictionBlock) -> tuple[list[int], TokenDistribution]:
        """Do the same for drafts of unequal length, without the padding behind each."""
        accepted, residuals = [], []
        for index, row in enumerate(rows):
            [count], residual = self._accept(
                [row], draft.select([index]), PredictionBlock(p.logits[index : index + 1], p.sampling)
            )
            accepted.append(count)
            residuals.append(token_probabilities(residual)[0])
        return accepted, torch.nn.utils.rnn.pad_sequence(residuals, batch_first=True)

    def _accepts(self, row: RowState, probabilities: list[float], offset: int) -> bool:
        probability = probabilities[offset]
        if probability <= 0 or probability >= 1:
            return probability >= 1
        # A pardon asks about tokens behind one that may be replaced: what is drafted there next gets numbers of its own.
        purpose = "accept" if self.parts.acceptance.pardon is None else f"accept from {len(row.tokens)}"
        return self.parts.source.uniform(row.example, len(row.tokens) + offset, purpose) < probability

    def _bonus(
        self, rows: list[RowState], draft: Draft, p: PredictionBlock, accepted: list[int]
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Return the token after each fully accepted draft, and the drafter's runs that it took, both by row."""
        rule, drafter = self.parts.acceptance, self.parts.drafter
        whole = [
            index
            for index, drafted in enumerate(draft.tokens)
            if accepted[index] == len(drafted) and self.turns.adds_bonus(drafted)
        ]
        if not whole or rule.bonus is BonusToken.TARGET:
            return self._take(rows, p, whole, accepted), {}
        q, steps = empty_predictions(len(whole)), {}
        if rule.bonus_reads_q:
            steps = dict.fromkeys(whole, int(drafter.runs_model))
            q = drafter.predict_next([row.tokens + new for row, new in zip(rows, draft.tokens, strict=True)], whole)
        distribution = rule.target(q, p.at(whole, [accepted[index] for index in whole]))
        return self._take(rows, distribution, whole, accepted, selected=True), steps

    def _take(
        self,
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
        if self.parts.sampling.greedy and isinstance(distribution, PredictionBlock):
            return {index: distribution.likeliest[row][column] for index, (row, column) in zip(wanted, cells, strict=True)}
        dist = torch.stack([token_probabilities(distribution)[cell] for cell in cells])
        if self.parts.sampling.greedy:
            chosen: list[int] = dist.argmax(-1).tolist()
        else:
            keys = [(rows[index].example, len(rows[index].tokens) + accepted[index], "target") for index in wanted]
            chosen = self.parts.source.draw(dist, keys)
        return dict(zip(wanted, chosen, strict=True))
