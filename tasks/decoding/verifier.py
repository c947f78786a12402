"""Steps 3 and 4 of the loop: the target runs over a draft, and a rule says what of it stays and what comes next.

By its distributions, in general; where a greedy rule is two numbers, the target's runtime judges by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tasks.decoding.acceptance_rules import AcceptanceRule, TokenDistribution, target_distribution, token_probabilities
from tasks.decoding.decoder import Decoder, DraftCheckingDecoder, GreedyAcceptance, Step, can_check
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.drafting import Draft, Drafter, empty_predictions
from tasks.decoding.generation import RowState
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings


class Verification(NamedTuple):
    """What became of a draft."""

    p: PredictionBlock
    """The target at the positions judged."""
    step: Step
    kept: list[int]
    """Drafted tokens of each row that stay."""
    following: dict[int, int]
    """The token after the kept prefix of a row, where there is one."""


@dataclass(frozen=True)
class Verifier:
    """What it takes to judge drafts."""

    target: Decoder
    acceptance: AcceptanceRule
    sampling: SamplingSettings
    source: TokenSource
    drafter: Drafter

    def verify(self, rows: list[RowState], draft: Draft) -> Verification:
        """Runs the target over each row's draft and what it has not seen before that."""
        rule = self.acceptance
        alone = len(rows) == 1 and self.sampling.greedy and rule.bonus is target_distribution
        if alone and rule.greedy is not None and can_check(self.target):
            return self._by_runtime(self.target, rule.greedy, rows[0], draft.tokens[0])
        return self._by_rule(rows, draft)

    def positions(self, drafted: Sequence[list[int]]) -> list[int]:
        """Of the target, in each row, that are judged: where no token follows a draft, not the one after its last."""
        followed = self.acceptance.bonus is not None
        return [len(new) + followed for new in drafted]

    def _by_runtime(self, target: DraftCheckingDecoder, keep: GreedyAcceptance, row: RowState, new: list[int]) -> Verification:
        checked = target.check_draft(row.tokens[target.lengths[0] :], new, keep)
        ended = checked.kept == len(new) > 0 and new[-1] in target.end_tokens
        p = PredictionBlock(checked.step.logits, self.sampling, checked.step.best)
        return Verification(p, checked.step, [checked.kept], {} if ended else {0: checked.following})

    def _by_rule(self, rows: list[RowState], draft: Draft) -> Verification:
        followed = self.acceptance.bonus is not None
        known = [row.tokens + (new if followed else new[:-1]) for row, new in zip(rows, draft.tokens, strict=True)]
        step = self.target.forward([tokens[cached:] for tokens, cached in zip(known, self.target.lengths, strict=True)])
        positions = self.positions(draft.tokens)
        p = PredictionBlock(step.last(positions), self.sampling, step.last_best(positions))
        kept, residual = self._kept(rows, draft, p)
        return Verification(p, step, kept, self._following(rows, draft, p, kept, residual))

    def _kept(self, rows: list[RowState], draft: Draft, p: PredictionBlock) -> tuple[list[int], TokenDistribution]:
        """How many drafted tokens of each row stay: those before the first not accepted; and what may replace that."""
        longest = max(map(len, draft.tokens))
        if not longest:
            return [0] * len(rows), p
        tokens = draft.padded(p.logits.device)
        verdict = self.acceptance.apply(tokens, draft.q.head(longest), p.head(longest))
        kept = []
        for row, new, accept in zip(rows, draft.tokens, verdict.accept.tolist(), strict=True):
            count = 0
            while count < len(new) and self._accepted(row, count, accept[count]):
                count += 1
            kept.append(count)
        return kept, verdict.residual

    def _accepted(self, row: RowState, offset: int, probability: float) -> bool:
        if probability <= 0 or probability >= 1:
            return probability >= 1
        return self.source.uniform(row.example, len(row.tokens) + offset, "accept") < probability

    def _following(
        self, rows: list[RowState], draft: Draft, p: PredictionBlock, kept: list[int], residual: TokenDistribution
    ) -> dict[int, int]:
        """The token after each row's kept prefix: from the replacement where a token fell, else from the final distribution.

        Rows whose draft ended the text have none, and rows with a fully kept draft only where the rule gives one.
        """
        bonus, ends = self.acceptance.bonus, self.target.end_tokens
        fallen = [index for index, new in enumerate(draft.tokens) if kept[index] < len(new)]
        whole = [
            index
            for index, new in enumerate(draft.tokens)
            if bonus is not None and kept[index] == len(new) and not (new and new[-1] in ends)
        ]
        following = self._chosen(rows, residual, fallen, kept)
        if whole and bonus is target_distribution:
            following |= self._chosen(rows, p, whole, kept)
        elif whole and bonus is not None:
            law = bonus(self._after_draft(rows, draft, whole), p.at(whole, [kept[index] for index in whole]))
            following |= self._chosen(rows, law, whole, kept, alone=True)
        return following

    def _chosen(
        self, rows: list[RowState], law: TokenDistribution, wanted: list[int], kept: list[int], *, alone: bool = False
    ) -> dict[int, int]:
        """A token for each wanted row from `law` after its kept prefix; `alone`: it is of those rows and places alone."""
        if not wanted:
            return {}
        places = [(row, 0) for row in range(len(wanted))] if alone else [(index, kept[index]) for index in wanted]
        if self.sampling.greedy and isinstance(law, PredictionBlock):
            return {index: law.likeliest[row][place] for index, (row, place) in zip(wanted, places, strict=True)}
        dist = torch.stack([token_probabilities(law)[place] for place in places])
        keys = [(rows[index].example, len(rows[index].tokens) + kept[index], "target") for index in wanted]
        chosen: list[int] = dist.argmax(-1).tolist() if self.sampling.greedy else self.source.draw(dist, keys)
        return dict(zip(wanted, chosen, strict=True))

    def _after_draft(self, rows: list[RowState], draft: Draft, whole: list[int]) -> PredictionBlock:
        """The drafter's prediction after its last token in these rows, for rules that read it there."""
        if not self.acceptance.bonus_reads_q:
            return empty_predictions(len(whole))
        for index in whole:
            rows[index].counts.small_steps += self.drafter.runs_model
        return self.drafter.following([row.tokens + new for row, new in zip(rows, draft.tokens, strict=True)], whole)
