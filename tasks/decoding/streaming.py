"""Tokens as they become final: the turns of a loop, given to a streamer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from tasks.decoding.abandonment import Abandonment
from tasks.decoding.execution import SpeculativeLoop
from tasks.decoding.generation import Generation
from tasks.decoding.method import DecodingMethod
from tasks.decoding.turn import RowState


class Streamer(Protocol):
    """What receives tokens as they become final; the streamers of transformers fit."""

    def put(self, value: torch.Tensor) -> None:
        """Take token ids, shape (tokens,), int64: the prompt's in the first call, then those of each turn."""

    def end(self) -> None:
        """Learn that the text is whole."""


class StreamedTurns:
    """Gives a streamer the tokens of each turn."""

    def __init__(self, streamer: Streamer) -> None:
        self._streamer = streamer
        self._given: int | None = None
        """Generated tokens that the streamer has; None before the prompt."""

    def put(self, row: RowState) -> None:
        """Take a row after one of its turns."""
        if self._given is None:
            self._give(row.tokens[: row.prompt])
            self._given = 0
        self._new(row.tokens[row.prompt :])

    def finish(self, generation: Generation) -> None:
        """Give what is left: all of it where the method has no turns to watch."""
        if self._given is None:
            self._give([])
        self._new(generation.tokens)
        self._streamer.end()

    def _new(self, tokens: list[int]) -> None:
        begin = self._given or 0
        if len(tokens) > begin:
            self._give(tokens[begin:])
        self._given = len(tokens)

    def _give(self, tokens: list[int]) -> None:
        self._streamer.put(torch.tensor(tokens, dtype=torch.int64))


def watched(method: DecodingMethod, watch: Callable[[RowState], None]) -> DecodingMethod:
    """Return the method with `watch` called after each turn of a row; unchanged where it is no single loop."""
    return dataclasses.replace(method, watch=watch) if isinstance(method, SpeculativeLoop) else method


def abandonable(method: DecodingMethod, texts: Sequence[Abandonment]) -> DecodingMethod:
    """Return the method that ends at its next turn once all of these are set; unchanged where it is no single loop."""
    return dataclasses.replace(method, abandoned=texts) if isinstance(method, SpeculativeLoop) else method
