"""Noted readings as a runtime: a pair of decoders that play methods from a notebook and run nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NoReturn

import torch

from tasks.decoding.decoder import Decoder, EncoderOutput, Rows
from tasks.decoding.drafters.base import ModelDrafter
from tasks.decoding.generation import Generation
from tasks.decoding.loop import SpeculativeLoop
from tasks.decoding.method import Pair
from tasks.decoding.replay import prefix_trie
from tasks.decoding.replay.prediction_cache import PredictionCache
from tasks.decoding.replay.replayer import NotReplayableError, Replayer, start_drafter

_NO_MEMORY = EncoderOutput(torch.empty(1, 0, 0), torch.empty(1, 0, dtype=torch.long))


class ReplayDecoder:
    """One side of a notebook in a decoder's place: methods are made of it like of any other, and it plays them.

    Whatever would run it step by step (beam search, early exits) raises `NotReplayableError`.
    """

    def __init__(self, cache: PredictionCache, side: int, model: Decoder) -> None:
        """Takes the notebook, the side that it stands for, and the model whose readings those are."""
        self.cache = cache
        self.side = side
        self.name = model.name
        self.end_token, self.end_tokens = model.end_token, model.end_tokens
        self.vocabulary, self.specials = model.vocabulary, model.specials
        self.lengths: list[int] = []

    def replay(self, method: SpeculativeLoop, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """What `method.run` gives, one row after the other; the page of a source stays open until another is needed.

        Raises:
            NotReplayableError: tokens are drawn, or the drafter reads more of a model than its predictions.
        """
        if not method.sampling.greedy:
            raise NotReplayableError("its tokens are drawn, not the likeliest")
        drafter = method.drafter
        if isinstance(drafter, ModelDrafter) and not isinstance(drafter.decoder, ReplayDecoder):
            raise NotReplayableError("its drafter is not one of the two models")
        found = []
        for source, example in zip(sources, examples, strict=True):
            if self.cache.trie.source != source:
                self.cache.open(source)
            start_drafter(method, source, _NO_MEMORY)
            found.append(Replayer(method, self.cache, self.side, example, limit, self.cache.trie.root).replay())
        return found

    def encode(self, sources: Rows) -> NoReturn:
        """Refuses."""
        raise NotReplayableError("it runs a model step by step")

    def start(self, encoder_output: EncoderOutput) -> NoReturn:
        """Refuses."""
        raise NotReplayableError("it runs a model step by step")

    def forward(self, tokens: Rows) -> NoReturn:
        """Refuses."""
        raise NotReplayableError("it runs a model step by step")

    def rewind(self, lengths: Sequence[int]) -> NoReturn:
        """Refuses."""
        raise NotReplayableError("it runs a model step by step")

    def reorder(self, rows: Sequence[int]) -> NoReturn:
        """Refuses."""
        raise NotReplayableError("it runs a model step by step")


def replay_pair(pair: Pair, cache: PredictionCache) -> Pair:
    """The pair as its notebook knows it: what its decoders play gives what those of `pair` decode, greedy."""
    return dataclasses.replace(
        pair,
        small=ReplayDecoder(cache, prefix_trie.SMALL_MODEL, pair.small),
        large=ReplayDecoder(cache, prefix_trie.LARGE_MODEL, pair.large),
    )
