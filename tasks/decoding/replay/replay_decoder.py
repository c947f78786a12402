"""Stand-ins for a pair of models: methods are built on them as on any decoders, and replayed from cached predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NoReturn

from tasks.decoding.decoder import Capabilities, Decoder, EncoderOutput, Rows
from tasks.decoding.method import Pair
from tasks.decoding.replay.prediction_cache import PredictionCache
from tasks.decoding.replay.prefix_trie import LARGE_MODEL, SMALL_MODEL
from tasks.decoding.replay.replayer import NotReplayableError
from tasks.decoding.replay.statistics_reader import ReplaySource


class ReplayDecoder:
    """One model of a prediction cache in a decoder's place. It declares cached predictions and nothing else.

    Whatever would run it step by step (beam search, early exits) raises `NotReplayableError`.
    """

    def __init__(self, cache: PredictionCache, model: int, decoder: Decoder) -> None:
        """Take the cache, which of its models this is, and the decoder whose predictions those are."""
        self.capabilities = Capabilities(replay=ReplaySource(cache, model, decoder.end_tokens))
        self.name = decoder.name
        self.end_token, self.end_tokens = decoder.end_token, decoder.end_tokens
        self.vocabulary, self.specials = decoder.vocabulary, decoder.specials
        self.lengths: list[int] = []

    def encode(self, sources: Rows) -> NoReturn:
        """Refuse."""
        self._refuse()

    def start(self, encoder_output: EncoderOutput) -> NoReturn:
        """Refuse."""
        self._refuse()

    def forward(self, tokens: Rows) -> NoReturn:
        """Refuse."""
        self._refuse()

    def rewind(self, lengths: Sequence[int]) -> NoReturn:
        """Refuse."""
        self._refuse()

    def reorder(self, rows: Sequence[int]) -> NoReturn:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotReplayableError(f"the method runs the {self.name} model step by step, which cached predictions do not allow")


def replay_pair(pair: Pair, cache: PredictionCache) -> Pair:
    """Return the pair with both models replaced by their cached predictions: greedy methods give what `pair` decodes."""
    return dataclasses.replace(
        pair,
        small=ReplayDecoder(cache, SMALL_MODEL, pair.small),
        large=ReplayDecoder(cache, LARGE_MODEL, pair.large),
    )
