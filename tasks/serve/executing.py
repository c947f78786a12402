"""Runs a batch of texts in one of the ways that `pacing` chooses among."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Generation
from tasks.decoding.inference import VANILLA, DecodingPair
from tasks.decoding.method import Request
from tasks.decoding.streaming import watched
from tasks.decoding.turn import RowState
from tasks.serve.pacing import Way

Finish = Callable[[int, Generation], None]
"""Takes the position of a text in its batch and what was generated."""


Watch = Callable[[int, list[int]], None]
"""Takes the position of a text in its batch and its generated tokens so far; may raise to end the batch."""


class Engine(Protocol):
    """What decodes a batch."""

    @property
    def name(self) -> str:
        """For people: method and runtime."""

    @property
    def drafts(self) -> bool:
        """Whether the operating point drafts."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text."""

    def described(self, way: Way) -> str:
        """Return the method that a way runs, with its settings."""

    def run(self, rows: Rows, examples: Sequence[int], request: Request, way: Way, finish: Finish, watch: Watch | None) -> None:
        """Decode a batch; see `PairEngine.run`."""


@dataclass(frozen=True)
class PairEngine:
    """A pair with its operating point."""

    pair: DecodingPair

    @property
    def name(self) -> str:
        """Operating point and runtime."""
        return f"{self.pair.manifest.point}; {self.pair.opened.described}"

    @property
    def drafts(self) -> bool:
        """Whether the operating point is another method than the large model alone."""
        return self.pair.manifest.point.method != VANILLA.method

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text of the large model."""
        return frozenset(self.pair.opened.pair.large.end_tokens)

    def described(self, way: Way) -> str:
        """Return the method that a way runs, with its settings."""
        return str(self.pair.manifest.point if way.drafting else VANILLA)

    def run(self, rows: Rows, examples: Sequence[int], request: Request, way: Way, finish: Finish, watch: Watch | None) -> None:
        """Decode a batch.

        Args:
            rows: Token ids of each source.
            examples: A number for each source that keys its random draws, all different.
            request: Length, sampling and seed.
            way: By the operating point or the large model alone, side by side or one after the other.
            finish: Called with each text as soon as it is whole.
            watch: Called with each text after each of its turns; None lets the fastest executor run.
        """
        method = self.pair.method(self.pair.manifest.point if way.drafting else VANILLA, request)
        positions = list(range(len(rows)))
        for part in [positions] if way.together else [[position] for position in positions]:
            shown = method if watch is None else watched(method, _by_position(watch, part, examples))
            found = shown.run([rows[one] for one in part], [examples[one] for one in part], request.max_new_tokens)
            for position, generation in zip(part, found, strict=True):
                finish(position, generation)


def _by_position(watch: Watch, part: Sequence[int], examples: Sequence[int]) -> Callable[[RowState], None]:
    by_example = {examples[position]: position for position in part}

    def seen(row: RowState) -> None:
        watch(by_example[row.example], row.tokens[row.prompt :])

    return seen
