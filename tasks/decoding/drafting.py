"""Drafters propose tokens; draft rules say when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder, Memory, Rows
from tasks.decoding.distributions import Block
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings


@dataclass(frozen=True)
class DraftRule:
    """When drafting stops, besides at the end token and at the window's end.

    `fallback_threshold` stops it at a position where the small model's top score is not above the threshold (BiLD, 3.3);
    zero never does. `ends_unverified`: output may end inside a draft without a look from the large model.
    """

    window: int
    fallback_threshold: float = 0.0
    ends_unverified: bool = False
    first_from_target: bool = False

    def budget(self, generated: int, limit: int) -> int:
        """Tokens to draft at most after `generated` of `limit`; a verified draft leaves room for the verifier's token."""
        if self.first_from_target and generated == 0:
            return 0
        room = limit - generated if self.ends_unverified else limit - generated - 1
        return min(self.window, room)


@dataclass
class Draft:
    """Proposed tokens of every row, and what they were proposed from."""

    tokens: Rows
    q: Block
    """At every position drafted, padded on the right: (rows, longest draft, vocabulary)."""
    fallback: list[bool]
    """Rows where the rule, not the window or the end token, stopped drafting."""
    steps: list[int]
    """Runs of the drafter, one row at a time counted."""

    def select(self, rows: Sequence[int]) -> Draft:
        """The draft of these rows only."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.q.logits.device)
        return Draft(
            [self.tokens[row] for row in rows],
            Block(self.q.logits[index], self.q.sampling),
            [self.fallback[row] for row in rows],
            [self.steps[row] for row in rows],
        )

    def padded(self, device: torch.device) -> Tensor:
        """Token ids (rows, longest draft), int64, zero on the right."""
        longest = max(map(len, self.tokens))
        rows = [row + [0] * (longest - len(row)) for row in self.tokens]
        return torch.tensor(rows, dtype=torch.long, device=device)


class Drafter(Protocol):
    """Proposes tokens that continue each row."""

    def start(self, memory: Memory | None, sources: Rows) -> None:
        """Begins these sources; `memory` is the verifier's, for drafters that share its encoder."""
        ...

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        """At most `budgets[row]` tokens after each row of `tokens`."""
        ...

    def observe(self, tokens: Rows) -> None:
        """The rows as they stand after the verifier's decision: what was drafted beyond them is forgotten."""
        ...

    def reorder(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order."""
        ...


class NoDrafter:
    """Proposes nothing: the target decodes alone."""

    def start(self, memory: Memory | None, sources: Rows) -> None:
        """Nothing to begin."""

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        rows = len(tokens)
        return Draft([[] for _ in tokens], _nothing(rows), [False] * rows, [0] * rows)

    def observe(self, tokens: Rows) -> None:
        """Nothing to forget."""

    def reorder(self, rows: Sequence[int]) -> None:
        """Nothing to keep."""


def _nothing(rows: int) -> Block:
    return Block(torch.empty(rows, 0, 0), SamplingSettings())


class ModelDrafter:
    """A small model as drafter, one token a run.

    Between drafts its cache lags behind the tokens by what the verifier added, and by the last drafted token where the
    window ended the draft: the next run catches up in one go.
    """

    def __init__(self, decoder: Decoder, sampling: SamplingSettings, source: TokenSource) -> None:
        self.decoder = decoder
        self.sampling = sampling
        self.source = source

    def start(self, memory: Memory | None, sources: Rows) -> None:
        self.decoder.start(self.decoder.encode(sources))

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        drafted: Rows = [[] for _ in tokens]
        going = [budget > 0 for budget in budgets]
        fallback = [False] * len(tokens)
        steps = [0] * len(tokens)
        positions: list[Tensor] = []
        while any(going):
            logits = self._next_logits(tokens, drafted, going)
            block = Block(logits, self.sampling)
            confident = self._confident(block, rule)
            chosen = self._choose(block, tokens, drafted, examples)
            positions.append(logits)
            for row, token in enumerate(chosen):
                if not going[row]:
                    continue
                steps[row] += 1
                if not confident[row]:
                    going[row], fallback[row] = False, True
                    continue
                drafted[row].append(token)
                going[row] = token != self.decoder.end_token and len(drafted[row]) < budgets[row]
        return Draft(drafted, self._block(positions, max(map(len, drafted)), len(tokens)), fallback, steps)

    def observe(self, tokens: Rows) -> None:
        self.decoder.rewind([min(cached, len(row) - 1) for cached, row in zip(self.decoder.lengths, tokens, strict=True)])

    def reorder(self, rows: Sequence[int]) -> None:
        self.decoder.reorder(rows)

    def _next_logits(self, tokens: Rows, drafted: Rows, going: list[bool]) -> Tensor:
        """Feeds each going row what its cache lacks; (rows, 1, vocabulary), meaningless where a row is not going."""
        pending = [
            (row + new)[cached:] if active else []
            for row, new, cached, active in zip(tokens, drafted, self.decoder.lengths, going, strict=True)
        ]
        return self.decoder.forward(pending).last([1] * len(tokens))

    def _confident(self, block: Block, rule: DraftRule) -> list[bool]:
        if rule.fallback_threshold <= 0:
            return [True] * block.logits.shape[0]
        confident: list[bool] = (block.scores.amax(-1).squeeze(-1) > rule.fallback_threshold).tolist()
        return confident

    def _choose(self, block: Block, tokens: Rows, drafted: Rows, examples: Sequence[int]) -> list[int]:
        if self.sampling.greedy:
            best: list[int] = block.logits.argmax(-1).squeeze(-1).tolist()
            return best
        # A position drafted again is drawn afresh. That its first draft was thrown away, where a small model's end token
        # would have ended the text (BiLD), says something about that first draw: used again, it would put off the end.
        keys = [
            (example, len(row) + len(new), f"draft from {len(row)}")
            for row, new, example in zip(tokens, drafted, examples, strict=True)
        ]
        return self.source.draw(block.dist[:, 0], keys)

    def _block(self, positions: list[Tensor], longest: int, rows: int) -> Block:
        return Block(torch.cat(positions[:longest], dim=1), self.sampling) if longest else _nothing(rows)
