"""Unigram and bigram tables of the calibration set as drafters (SD, 3.6).

A prediction is a table look-up and runs no model, so the cost ratio c is about 0.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.drafters.base import StatelessDrafter, StepwiseDrafter
from tasks.decoding.drafting import GreedyTable
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import CALIBRATED, SamplingSettings
from tasks.errors import InputError

BEGINNING = -1
"""The context of a text's first token, whichever token a model starts from."""


@dataclass(frozen=True)
class NgramTables:
    """Logarithms of counts; their softmax is the relative frequency."""

    unigram: Tensor
    """float32 (vocabulary,), -infinity for a token that never occurs."""
    bigram: dict[int, tuple[Tensor, Tensor]]
    """For each token, the tokens that follow it, int64 (n,), and the logarithms of their counts, float32 (n,)."""
    specials: frozenset[int]
    """Ids that are never text; after one of them a text begins."""


def require_calibration(rows: Rows, vocabulary: int) -> None:
    """Check the texts of a calibration set, which drafters without a model read.

    Raises:
        InputError: there is no text, or one has a token outside the vocabulary.
    """
    if not any(rows):
        raise InputError(
            f"the drafters {', '.join(CALIBRATED)} read the calibration set and there is none; "
            "run the stage calibrate (dvc repro) or name another drafter"
        )
    largest = max(max(row, default=0) for row in rows)
    if largest >= vocabulary:
        raise InputError(
            f"the calibration set has a token {largest}, outside the large model's vocabulary of {vocabulary}; "
            "run the stage calibrate again with this model and its tokenizer (dvc repro)"
        )


def count_ngrams(rows: Rows, vocabulary: int, specials: frozenset[int]) -> NgramTables:
    """Count the unigrams and bigrams of texts that end with the end token.

    Raises:
        InputError: there is no text, or one has a token outside the vocabulary.
    """
    require_calibration(rows, vocabulary)
    followers: dict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        for before, after in itertools.pairwise((BEGINNING, *row)):
            followers[before][after] += 1
    everywhere: Counter[int] = Counter()
    for counts in followers.values():
        everywhere.update(counts)
    tokens, logs = _logarithms(everywhere)
    unigram = torch.full((vocabulary,), -torch.inf).scatter_(0, tokens, logs)
    return NgramTables(unigram, {before: _logarithms(after) for before, after in followers.items()}, specials)


def _logarithms(counts: Counter[int]) -> tuple[Tensor, Tensor]:
    """Return tokens, int64 (n,), and the logarithms of their counts, float32 (n,)."""
    return torch.tensor(list(counts)), torch.tensor(list(counts.values()), dtype=torch.float64).log().float()


class TableDrafter(StatelessDrafter, StepwiseDrafter):
    """Drafts by look-ups on the CPU; only a finished draft is moved to the models' device."""

    runs_model = False

    def __init__(self, tables: NgramTables, target: Decoder, sampling: SamplingSettings, source: TokenSource) -> None:
        """Take the target for its end tokens."""
        super().__init__(target.end_token, sampling, source)
        self.end_tokens = target.end_tokens
        self.tables = tables
        self.device = torch.device("cpu")
        self._greedy: GreedyTable | None = None

    @abstractmethod
    def look_up(self, last: int) -> Tensor:
        """Return the logits of the token after `last`: (vocabulary,)."""

    def greedy_table(self, tokens: int) -> GreedyTable:
        if self._greedy is None or len(self._greedy.next) < tokens:
            usual, *sure = self._likeliest(self.tables.unigram)
            after = torch.full((tokens,), usual, dtype=torch.int32)
            confidence, entropy = (torch.full((tokens,), one, dtype=torch.float64) for one in sure)
            for last in self.contexts():
                if last < tokens:
                    after[last], confidence[last], entropy[last] = self._likeliest(self.look_up(last))
            self._greedy = GreedyTable(after, confidence, entropy)
        return self._greedy

    def contexts(self) -> frozenset[int]:
        """Return the tokens after which `look_up` may differ from the unigram table."""
        return frozenset()

    def _likeliest(self, logits: Tensor) -> tuple[int, float, float]:
        """Return the likeliest token, its score, and the entropy."""
        block = PredictionBlock(logits[None, None], self.sampling)
        return block.likeliest[0][0], float(block.top), float(block.entropy)

    def start(self, encoder_output: EncoderOutput, sources: Rows) -> None:
        self.device = encoder_output.hidden.device

    def next_logits(self, tokens: Rows, drafted: Rows, going: Sequence[bool]) -> Tensor:
        return torch.stack([self.look_up((new or row)[-1]) for row, new in zip(tokens, drafted, strict=True)])[:, None]

    def predict_next(self, tokens: Rows, rows: Sequence[int]) -> PredictionBlock:
        return self._moved(super().predict_next(tokens, rows))

    def _block(self, positions: list[Tensor], longest: int, rows: int) -> PredictionBlock:
        return self._moved(super()._block(positions, longest, rows))

    def _moved(self, block: PredictionBlock) -> PredictionBlock:
        return PredictionBlock(block.logits.to(self.device), block.sampling)


class UnigramDrafter(TableDrafter):
    """Predicts each token by its frequency, whatever the context."""

    def look_up(self, last: int) -> Tensor:
        return self.tables.unigram


class BigramDrafter(TableDrafter):
    """Predicts each token by its frequency after the previous token; after an unseen token, by its overall frequency."""

    def look_up(self, last: int) -> Tensor:
        found = self.tables.bigram.get(BEGINNING if last in self.tables.specials else last)
        if found is None:
            return self.tables.unigram
        tokens, logs = found
        return torch.full_like(self.tables.unigram, -torch.inf).scatter_(0, tokens, logs)

    def contexts(self) -> frozenset[int]:
        return self.tables.specials | self.tables.bigram.keys() - {BEGINNING}
