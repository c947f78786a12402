"""Noted readings as a runtime: a pair of decoders that play methods from a notebook and run nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NoReturn

import torch

from tasks.decoding.decoder import Decoder, Memory, Rows
from tasks.decoding.drafters.base import ModelDrafter
from tasks.decoding.generation import Generation
from tasks.decoding.loop import Method
from tasks.decoding.replay import pages
from tasks.decoding.replay.notebook import Notebook
from tasks.decoding.replay.play import Player, UnplayableError, begin
from tasks.decoding.strategy import Pair

_NO_MEMORY = Memory(torch.empty(1, 0, 0), torch.empty(1, 0, dtype=torch.long))


class NotedDecoder:
    """One side of a notebook in a decoder's place: methods are made of it like of any other, and it plays them.

    Whatever would run it step by step (beam search, early exits) raises `UnplayableError`.
    """

    def __init__(self, book: Notebook, side: int, model: Decoder) -> None:
        """Takes the notebook, the side that it stands for, and the model whose readings those are."""
        self.book = book
        self.side = side
        self.name = model.name
        self.end_token, self.end_tokens = model.end_token, model.end_tokens
        self.vocabulary, self.specials = model.vocabulary, model.specials
        self.lengths: list[int] = []

    def play(self, method: Method, sources: Rows, examples: Sequence[int], limit: int) -> list[Generation]:
        """What `method.run` gives, one row after the other; the page of a source stays open until another is needed.

        Raises:
            UnplayableError: tokens are drawn, or the drafter reads more of a model than its predictions.
        """
        if not method.sampling.greedy:
            raise UnplayableError("its tokens are drawn, not the likeliest")
        drafter = method.drafter
        if isinstance(drafter, ModelDrafter) and not isinstance(drafter.decoder, NotedDecoder):
            raise UnplayableError("its drafter is not one of the two models")
        found = []
        for source, example in zip(sources, examples, strict=True):
            if self.book.page.source != source:
                self.book.open(source)
            begin(method, source, _NO_MEMORY)
            found.append(Player(method, self.book, self.side, example, limit, self.book.page.root).play())
        return found

    def encode(self, sources: Rows) -> NoReturn:
        """Refuses."""
        raise UnplayableError("it runs a model step by step")

    def start(self, memory: Memory) -> NoReturn:
        """Refuses."""
        raise UnplayableError("it runs a model step by step")

    def forward(self, tokens: Rows) -> NoReturn:
        """Refuses."""
        raise UnplayableError("it runs a model step by step")

    def rewind(self, lengths: Sequence[int]) -> NoReturn:
        """Refuses."""
        raise UnplayableError("it runs a model step by step")

    def reorder(self, rows: Sequence[int]) -> NoReturn:
        """Refuses."""
        raise UnplayableError("it runs a model step by step")


def noted_pair(pair: Pair, book: Notebook) -> Pair:
    """The pair as its notebook knows it: what its decoders play gives what those of `pair` decode, greedy."""
    return dataclasses.replace(
        pair,
        small=NotedDecoder(book, pages.SMALL, pair.small),
        large=NotedDecoder(book, pages.LARGE, pair.large),
    )
