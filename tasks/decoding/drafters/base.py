"""Drafters that predict one token at a time: a small model, and whatever else has a next-token distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.decoding.decoder import ContinuingDecoder, Decoder, EncoderOutput, Rows, Step, StopRule, can_continue
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.drafting import Draft, DraftBuilder, DraftRule, empty_predictions
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import SamplingSettings


class StatelessDrafter:
    """Of a drafter that keeps nothing from turn to turn."""

    def observe(self, tokens: Rows, step: Step, places: Sequence[int]) -> None:
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

    def following(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
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
        """What follows each row and its draft: (rows, 1, vocabulary); meaningless where a row is not going."""

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        windows = [DraftBuilder(budget, rule, self.end_tokens) for budget in budgets]
        drafted = [window.tokens for window in windows]
        positions: list[Tensor] = []
        while any(window.going for window in windows):
            logits = self.next_logits(tokens, drafted, [window.going for window in windows])
            block = PredictionBlock(logits, self.sampling)
            chosen = self._choose(block, tokens, drafted, examples)
            positions.append(logits)
            for window, token, confidence in zip(windows, chosen, self._confidence(block, rule), strict=True):
                if window.going:
                    window.see(token, confidence)
        return Draft(
            drafted,
            self._block(positions, max(map(len, drafted)), len(tokens)),
            [window.fallback for window in windows],
            [window.seen if self.runs_model else 0 for window in windows],
        )

    def following(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        wanted = set(rows)
        logits = self.next_logits(tokens, [[] for _ in tokens], [row in wanted for row in range(len(tokens))])
        return PredictionBlock(logits, self.sampling).at(rows, [0] * len(rows))

    def _confidence(self, block: PredictionBlock, rule: DraftRule) -> list[float]:
        if rule.fallback_threshold <= 0 and rule.stop_below <= 0:
            return [1.0] * block.logits.shape[0]
        top: list[float] = block.scores.amax(-1).squeeze(-1).tolist()
        return top

    def _choose(self, block: PredictionBlock, tokens: Rows, drafted: Rows, examples: Sequence[int]) -> list[int]:
        if self.sampling.greedy:
            return [row[0] for row in block.likeliest]
        # A position drafted again is drawn afresh. That its first draft was thrown away, where a small model's end token
        # would have ended the text (BiLD), says something about that first draw: used again, it would put off the end.
        keys = [
            (example, len(row) + len(new), f"draft from {len(row)}")
            for row, new, example in zip(tokens, drafted, examples, strict=True)
        ]
        return self.source.draw(block.dist[:, 0], keys)

    def _block(self, positions: list[Tensor], longest: int, rows: int) -> PredictionBlock:
        return PredictionBlock(torch.cat(positions[:longest], dim=1), self.sampling) if longest else empty_predictions(rows)


class ModelDrafter(StepwiseDrafter):
    """A small model as drafter, one token a run.

    Between drafts its cache lags behind the tokens by what the verifier added, and by the last drafted token where the
    window ended the draft: the next run catches up in one go. A decoder that shares the verifier's encoder takes over what
    that has encoded.
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
        """Leaves a greedy draft of one row to a runtime that can make it without a decision in between."""
        if self.sampling.greedy and len(tokens) == 1 and budgets[0] > 0 and can_continue(self.decoder):
            return self._continue(self.decoder, tokens[0], budgets[0], rule)
        return super().draft(tokens, examples, budgets, rule)

    def _continue(self, decoder: ContinuingDecoder, row: list[int], budget: int, rule: DraftRule) -> Draft:
        until = StopRule(rule.fallback_threshold, rule.stop_below)
        predicted = decoder.continue_greedily(row[decoder.lengths[0] :], budget, until)
        window = DraftBuilder(budget, rule, self.end_tokens)
        for token, confidence in zip(predicted.tokens, predicted.confidence, strict=True):
            if not window.going:  # the runtime went on beyond the stop
                break
            window.see(token, confidence)
        count = len(window.tokens)
        decoder.rewind([min(decoder.lengths[0], len(row) + count - (not window.fallback))])
        return Draft(
            [window.tokens],
            PredictionBlock(predicted.logits[:, :count], self.sampling, [window.tokens]),
            [window.fallback],
            [window.seen],
        )

    def observe(self, tokens: Rows, step: Step, places: Sequence[int]) -> None:
        self.decoder.rewind([min(cached, len(row) - 1) for cached, row in zip(self.decoder.lengths, tokens, strict=True)])

    def reorder(self, rows: Sequence[int]) -> None:
        self.decoder.reorder(rows)

    def next_logits(self, tokens: Rows, drafted: Rows, going: Sequence[bool]) -> Tensor:
        """Feeds each going row what its cache lacks."""
        pending = [
            (row + new)[cached:] if active else []
            for row, new, cached, active in zip(tokens, drafted, self.decoder.lengths, going, strict=True)
        ]
        return self.decoder.forward(pending).last([1] * len(tokens))
