"""Several drafts of one text at once, as rows of a batch (SpecTr: Sun et al., 2023, arXiv 2310.15141, Algorithm 3).

A composition beside the speculative loop: there a row is a text, here k rows are one. What a turn does to a text is the same
(`turn`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder, Rows
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.drafting import Drafter
from tasks.decoding.generation import Generation
from tasks.decoding.k_sequential import k_sequential_selection
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings
from tasks.decoding.turn import DraftRule, RowState, TurnRules


class CopySource(TokenSource):
    """Random numbers of the drafts of each text: draft c of example e has the number k e + c."""

    def __init__(self, source: TokenSource, drafts: int) -> None:
        super().__init__(source.seed)
        self._source, self._drafts = source, drafts

    def uniform(self, example: int, position: int, purpose: str) -> float:
        return self._source.uniform(*self._key(example, position, purpose))

    def draw(self, dist: Tensor, keys: Sequence[tuple[int, int, str]]) -> list[int]:
        return self._source.draw(dist, [self._key(*key) for key in keys])

    def _key(self, example: int, position: int, purpose: str) -> tuple[int, int, str]:
        return example // self._drafts, position, f"{purpose} of draft {example % self._drafts}"


class Drafts(NamedTuple):
    """The drafts of all texts, k for each, side by side."""

    tokens: Rows
    q: PredictionBlock
    steps: list[int]


class Selected(NamedTuple):
    """What is kept of the drafts of one text."""

    accepted: list[int]
    next_token: int | None
    kept: int
    """Which of its drafts begins with the accepted tokens."""


@dataclass(frozen=True)
class SeveralDrafts:
    """Speculative decoding that verifies k independent drafts in one run and keeps the longest prefix it can.

    At each position the drafts that begin with the tokens kept so far have drawn their next token from one q. One of these is
    selected by k-sequential selection, and the drafts that have it go on; where none is selected, a draw from the residual ends
    the turn. The output follows p. Greedy decoding, which the paper does not describe, would draft k times the same: there the
    drafts begin with the drafter's k likeliest tokens, and what is p's likeliest token is kept.
    """

    target: Decoder
    drafter: Drafter
    """Draws with the numbers of a `CopySource`."""
    sampling: SamplingSettings
    source: TokenSource
    draft_length: int
    drafts: int
    """k."""

    @torch.inference_mode()
    def run(self, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        turns = TurnRules(DraftRule(window=self.draft_length), self.target.end_tokens, limit, bonus=True)
        encoder_output = self.target.encode(sources)
        prompts = self.target.start(encoder_output)
        self.drafter.start(encoder_output, sources)
        rows = [RowState(example, tokens, len(tokens)) for example, tokens in zip(examples, prompts, strict=True)]
        self._keep(self._copies(range(len(rows))))
        going = rows
        while going:
            going = self._turn(turns, going)
        return [row.generation() for row in rows]

    def _copies(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows for _ in range(self.drafts)]

    def _keep(self, rows: list[int]) -> None:
        if rows:
            self.target.reorder(rows)
            self.drafter.reorder(rows)

    def _turn(self, turns: TurnRules, rows: list[RowState]) -> list[RowState]:
        """Draft, run the target, select; return the texts that go on."""
        k, copies = self.drafts, self._copies(range(len(rows)))
        draft = self._draft(turns, [rows[index] for index in copies])
        known = [rows[index].tokens + new for index, new in zip(copies, draft.tokens, strict=True)]
        step = self.target.forward([tokens[cached:] for tokens, cached in zip(known, self.target.lengths, strict=True)])
        p = PredictionBlock(step.last([turns.positions(len(new)) for new in draft.tokens]), self.sampling)
        going, kept = [], []
        for index, row in enumerate(rows):
            first = index * k
            found = self._select(turns, row, draft, p, first)
            best = first + found.kept
            ended = turns.finish(
                row,
                found.accepted,
                found.next_token,
                drafted=len(draft.tokens[best]),
                steps=max(draft.steps[first : first + k]),
                fallback=False,
                computed=sum(turns.positions(len(draft.tokens[copy])) for copy in range(first, first + k)),
            )
            if not ended:
                going.append(row)
                kept.append(best)
        self._keep(self._copies(kept))
        if going:
            tokens = [row.tokens for row in going for _ in range(k)]
            self.target.rewind([min(cached, len(text) - 1) for cached, text in zip(self.target.lengths, tokens, strict=True)])
            self.drafter.observe(tokens, step, [])
        return going

    def _draft(self, turns: TurnRules, rows: list[RowState]) -> Drafts:
        """Return the drafts of each text, cut behind what ends it for the target."""
        budgets, tokens = [turns.budget(row) for row in rows], [row.tokens for row in rows]
        examples = [row.example * self.drafts + copy % self.drafts for copy, row in enumerate(rows)]
        firsts: Rows = [[] for _ in rows]
        if self.sampling.greedy and max(budgets) > 0:
            block = self.drafter.predict_next(tokens, range(len(rows)))
            likeliest = block.logits[:, 0].topk(min(self.drafts, block.logits.shape[-1])).indices.tolist()
            firsts = [
                [best[copy % self.drafts % len(best)]] if budget else []
                for copy, (best, budget) in enumerate(zip(likeliest, budgets, strict=True))
            ]
        ends = self.target.end_tokens
        left = [0 if ends.intersection(first) else budget - len(first) for first, budget in zip(firsts, budgets, strict=True)]
        texts = [text + first for text, first in zip(tokens, firsts, strict=True)]
        draft = self.drafter.draft(texts, examples, left, turns.draft_rule)
        whole = [turns.cut(first + new, fallback=False)[0] for first, new in zip(firsts, draft.tokens, strict=True)]
        return Drafts(whole, draft.q, [len(first) + steps for first, steps in zip(firsts, draft.steps, strict=True)])

    def _select(self, turns: TurnRules, row: RowState, draft: Drafts, p: PredictionBlock, first: int) -> Selected:
        alive, accepted = list(range(first, first + self.drafts)), list[int]()
        while len(draft.tokens[alive[0]]) > len(accepted):
            place = len(accepted)
            proposed = [draft.tokens[copy][place] for copy in alive]
            if self.sampling.greedy:
                token = p.likeliest[alive[0]][place]
                selected = token in proposed
            else:
                token, selected = self._draw(row, proposed, draft.q.dist[alive[0], place], p.dist[alive[0], place], place)
            if not selected:
                return Selected(accepted, token, alive[0] - first)
            accepted.append(token)
            alive = [copy for copy, new in zip(alive, proposed, strict=True) if new == token]
        bonus = None
        if turns.adds_bonus(draft.tokens[alive[0]]):
            place = len(accepted)
            bonus = p.likeliest[alive[0]][place] if self.sampling.greedy else self._target(row, p.dist[alive[0], place], place)
        return Selected(accepted, bonus, alive[0] - first)

    def _draw(self, row: RowState, proposed: list[int], q: Tensor, p: Tensor, place: int) -> tuple[int, bool]:
        """Return a token that follows p, and whether it is one of those proposed."""
        rule = k_sequential_selection(q, p, len(proposed))
        chances = rule.accept[proposed].tolist()
        for number, (token, chance) in enumerate(zip(proposed, chances, strict=True)):
            if chance >= 1 or (
                chance > 0 and self.source.uniform(row.example, len(row.tokens) + place, f"accept draft {number}") < chance
            ):
                return token, True
        return self._target(row, rule.residual, place), False

    def _target(self, row: RowState, dist: Tensor, place: int) -> int:
        [token] = self.source.draw(dist[None], [(row.example, len(row.tokens) + place, "target")])
        return token
