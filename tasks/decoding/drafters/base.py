"""When drafting stops, what a draft and a drafter are, and the small model as drafter.

A drafter that predicts one token at a time is a `StepwiseDrafter`; the small model is one, behind the calls of `Decoder`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tasks.decoding.decoder import Continuation, Decoder, Draws, EncoderOutput, Rows, Step
from tasks.decoding.distributions import Key, PredictionBlock, Purpose, TokenSource, empty_predictions
from tasks.decoding.draft_rule import DraftBuilder, DraftRule
from tasks.decoding.method import SamplingSettings


@dataclass
class Draft:
    """The proposed tokens of every row, and the distributions that they come from."""

    tokens: Rows
    q: PredictionBlock
    """The drafter's predictions at every drafted position, right-padded: (rows, longest draft, vocabulary)."""
    fallback: list[bool]
    """Rows where the drafter was not confident, so that its rule stopped drafting."""
    steps: list[int]
    """Runs of the drafter's model, counted as if each row were alone; 0 where the drafter runs no model."""

    def select(self, rows: Sequence[int]) -> Draft:
        """Return the draft of these rows only."""
        # q stays right-padded to the longest draft of all rows.
        index = torch.tensor(list(rows), dtype=torch.long).to(self.q.logits.device, non_blocking=True)
        return Draft(
            [self.tokens[row] for row in rows],
            PredictionBlock(self.q.logits[index], self.q.sampling),
            [self.fallback[row] for row in rows],
            [self.steps[row] for row in rows],
        )

    def padded(self, device: torch.device) -> Tensor:
        """Return the token ids (rows, longest draft), int64, zero on the right."""
        longest = max(map(len, self.tokens))
        rows = [row + [0] * (longest - len(row)) for row in self.tokens]
        return torch.tensor(rows, dtype=torch.long).to(device, non_blocking=True)


@dataclass(frozen=True)
class GreedyTable:
    """All that a drafter predicts greedily, where that depends on the last token alone."""

    next: Tensor
    """The argmax after each token: int32 (tokens,)."""
    confidence: Tensor
    """Its score: float64 (tokens,)."""


class Drafter(Protocol):
    """Proposes tokens that continue each row."""

    runs_model: bool
    """Whether each prediction costs a run of a model, which is counted; a look-up or a copy costs none."""

    @property
    def decoder(self) -> Decoder | None:
        """The decoder that drafts by its own predictions; none where the drafter is a table, a copy, heads or nothing."""

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        """Begin these sources; `encoder_output` is the target's, for drafters that share its encoder."""

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        """Propose at most `budgets[row]` tokens after each row of `tokens`."""

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        """Predict what follows `tokens`, a fully accepted draft included, in these rows: (rows, 1, vocabulary)."""

    def observe(self, tokens: Rows, step: Step, positions: Sequence[int]) -> None:
        """Take note of the rows as they stand after verification, and forget what was drafted beyond them.

        `step` is the target's run; its position `positions[row]` predicted what follows the row's accepted prefix.
        """

    def reorder(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""


class StatelessDrafter:
    """Base of drafters that keep nothing from turn to turn and predict with no model of their own."""

    decoder = None

    def observe(self, tokens: Rows, step: Step, positions: Sequence[int]) -> None:
        """Nothing to forget."""

    def reorder(self, rows: Sequence[int]) -> None:
        """Nothing to keep."""


class NoDrafter(StatelessDrafter):
    """Proposes nothing: the target decodes alone."""

    runs_model = False

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        """Nothing to begin."""

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        rows = len(tokens)
        return Draft([[] for _ in tokens], empty_predictions(rows), [False] * rows, [0] * rows)

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        return empty_predictions(len(rows))


class StepwiseDrafter(ABC):
    """Drafts token by token, each from `next_logits`."""

    runs_model = True

    def __init__(self, end_token: int, sampling: SamplingSettings, source: TokenSource) -> None:
        self.end_tokens = frozenset((end_token,))
        self.sampling = sampling
        self.source = source

    @abstractmethod
    def next_logits(self, tokens: Rows, drafted: Rows, going: Sequence[bool]) -> Tensor:
        """Return logits after each row and its draft: (rows, 1, vocabulary); undefined where a row is not going."""

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        builders = [DraftBuilder(budget, rule, self.end_tokens) for budget in budgets]
        drafted = [builder.tokens for builder in builders]
        positions: list[Tensor] = []
        # One run of the model a round, for all rows that are still drafting.
        while any(builder.going for builder in builders):
            going = [row for row, builder in enumerate(builders) if builder.going]
            logits = self.next_logits(tokens, drafted, [builder.going for builder in builders])
            block = PredictionBlock(logits, self.sampling)  # (rows, 1, vocabulary)
            positions.append(logits)
            confidence, entropies = self._confidence(block, rule), self._entropies(block, rule)
            for row, token in zip(going, self._choose(block, going, tokens, drafted, examples), strict=True):
                builders[row].add(token, confidence[row], entropies[row])
        return Draft(
            drafted,
            self._block(positions, max(map(len, drafted)), len(tokens)),
            [builder.fallback for builder in builders],
            [builder.predictions if self.runs_model else 0 for builder in builders],
        )

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        wanted = set(rows)
        logits = self.next_logits(tokens, [[] for _ in tokens], [row in wanted for row in range(len(tokens))])
        return PredictionBlock(logits, self.sampling).at(rows, [0] * len(rows))

    def _confidence(self, block: PredictionBlock, rule: DraftRule) -> list[float]:
        # A softmax over the vocabulary is computed only where a rule reads it.
        if rule.fallback_threshold <= 0 and rule.stop_below <= 0:
            return [1.0] * block.logits.shape[0]
        top: list[float] = block.scores.amax(-1).squeeze(-1).tolist()  # max q of each row
        return top

    def _entropies(self, block: PredictionBlock, rule: DraftRule) -> list[float]:
        if rule.max_entropy == math.inf:
            return [0.0] * block.logits.shape[0]
        entropies: list[float] = block.entropy.squeeze(-1).tolist()
        return entropies

    def _choose(
        self, block: PredictionBlock, going: Sequence[int], tokens: Rows, drafted: Rows, examples: Sequence[int]
    ) -> list[int]:
        """Return the next token of each row that is still drafting."""
        if self.sampling.greedy:
            return [block.argmax_rows[row][0] for row in going]
        keys = [self._key(examples[row], len(tokens[row]), len(drafted[row])) for row in going]
        return self.source.draw(block.dist[torch.tensor(going).to(block.logits.device, non_blocking=True), 0], keys)

    def _key(self, example: int, begun: int, offset: int) -> Key:
        """Return the key of a token of the draft that begins behind `begun` tokens."""
        # A position that is drafted again gets a new draw. Rejecting its first draft carries information about that draw if
        # the small model's end token would have ended the text (BiLD): reusing it would bias the text's end.
        return Key(example, begun + offset, Purpose.DRAFT, begun)

    def _block(self, positions: list[Tensor], longest: int, rows: int) -> PredictionBlock:
        return PredictionBlock(torch.cat(positions[:longest], dim=1), self.sampling) if longest else empty_predictions(rows)


class ModelDrafter(StepwiseDrafter):
    """A small model as drafter, one token in each run.

    Between drafts its cache lags behind the tokens by the token that the target added, and by the last drafted token where
    the window ended the draft; the next run catches up on both. A decoder that shares the target's encoder uses the
    target's encoder output.
    """

    def __init__(
        self, decoder: Decoder, sampling: SamplingSettings, source: TokenSource, *, shares_encoder: bool = False
    ) -> None:
        super().__init__(decoder.end_token, sampling, source)
        self.end_tokens = decoder.end_tokens
        self.decoder = decoder
        self.shares_encoder = shares_encoder

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        self.decoder.start(encoder_output if self.shares_encoder else self.decoder.encode(sources))

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        """Draft; a runtime that continues a row by itself makes a draft of one row in one call."""
        if len(tokens) == 1 and budgets[0] > 0:
            predicted = self._continue(tokens[0], examples[0], budgets[0], rule)
            if predicted is not None:
                return self._drafted(predicted, tokens[0], budgets[0], rule)
        return super().draft(tokens, examples, budgets, rule)

    def _continue(self, row: list[int], example: int, budget: int, rule: DraftRule) -> Continuation | None:
        """Predict all tokens of a draft in one call, and perhaps more than the rule takes; none where that is impossible."""
        can, pending = self.decoder.capabilities, row[self.decoder.lengths[0] :]
        if self.sampling.greedy:
            return None if can.continue_greedily is None else can.continue_greedily(pending, budget, rule)
        if can.continue_sampled is None or not self.source.known_before:
            return None
        uniforms = [self.source.uniform(self._key(example, len(row), offset)) for offset in range(budget)]
        return can.continue_sampled(pending, Draws(self.sampling, uniforms), rule)

    def _drafted(self, predicted: Continuation, row: list[int], budget: int, rule: DraftRule) -> Draft:
        """Return the draft of a continuation, up to where the rule stops, and forget what lies beyond."""
        decoder = self.decoder
        builder = DraftBuilder(budget, rule, self.end_tokens)
        for token, *sure in zip(predicted.tokens, predicted.confidence, predicted.entropies, strict=True):
            if not builder.going:  # the runtime went on beyond the stop
                break
            builder.add(token, *sure)
        # Keep in the cache what was fed and drafted; the last drafted token was never fed.
        count = len(builder.tokens)
        decoder.rewind([min(decoder.lengths[0], len(row) + count - (not builder.fallback))])
        return Draft(
            [builder.tokens],
            PredictionBlock(predicted.logits[:, :count], self.sampling, [builder.tokens] if self.sampling.greedy else None),
            [builder.fallback],
            [builder.predictions],
        )

    def observe(self, tokens: Rows, step: Step, positions: Sequence[int]) -> None:
        self.decoder.rewind([min(cached, len(row) - 1) for cached, row in zip(self.decoder.lengths, tokens, strict=True)])

    def reorder(self, rows: Sequence[int]) -> None:
        self.decoder.reorder(rows)

    def next_logits(self, tokens: Rows, drafted: Rows, going: Sequence[bool]) -> Tensor:
        # Each row that is still drafting is fed what its cache lacks: at most two tokens.
        pending = [
            (row + new)[cached:] if active else []
            for row, new, cached, active in zip(tokens, drafted, self.decoder.lengths, going, strict=True)
        ]
        return self.decoder.forward(pending).last([1] * len(tokens))  # (rows, 1, vocabulary)
