"""Runs a batch of texts in one of the ways that `pacing` chooses among."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Generation
from tasks.decoding.inference import VANILLA, DecodingPair
from tasks.decoding.loop import abandonable, watched
from tasks.decoding.method import Request
from tasks.decoding.turn import Abandonment, RowState
from tasks.serve.pacing import Way

Finish = Callable[[int, Generation], None]
"""Takes the position of a text in its batch and what was generated."""


Watch = Callable[[int, list[int]], None]
"""Takes the position of a text in its batch and its generated tokens so far."""


@dataclass(frozen=True)
class Batch:
    """Texts that are decoded with the same settings, and who is told of them."""

    rows: Rows
    """Token ids of each source."""
    examples: Sequence[int]
    """A number for each source that keys its random draws, all different."""
    request: Request
    """Length, sampling and seed."""
    finish: Finish
    """Called with each text as soon as it is whole."""
    watch: Watch | None = None
    """Called with each text after each of its turns; None lets the fastest executor run."""
    abandoned: Sequence[Abandonment] = ()
    """A flag for each text; once all are set, the batch ends at its next turn with `AbandonedError`."""


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

    def run(self, batch: Batch, way: Way) -> None:
        """Decode a batch by the operating point or the large model alone, side by side or one text after the other."""


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

    def run(self, batch: Batch, way: Way) -> None:
        """Decode a batch by the operating point or the large model alone, side by side or one text after the other."""
        method = self.pair.method(self.pair.manifest.point if way.drafting else VANILLA, batch.request)
        method = abandonable(method, batch.abandoned)
        positions = list(range(len(batch.rows)))
        for part in [positions] if way.together else [[position] for position in positions]:
            examples = [batch.examples[one] for one in part]
            shown = method if batch.watch is None else watched(method, _by_position(batch.watch, part, examples))
            found = shown.run([batch.rows[one] for one in part], examples, batch.request.max_new_tokens)
            for position, generation in zip(part, found, strict=True):
                batch.finish(position, generation)


def _by_position(watch: Watch, part: Sequence[int], examples: Sequence[int]) -> Callable[[RowState], None]:
    by_example = dict(zip(examples, part, strict=True))

    def seen(row: RowState) -> None:
        watch(by_example[row.example], row.tokens[row.prompt :])

    return seen
