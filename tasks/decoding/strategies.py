"""The registry of methods, and how one of them is run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.decoding.decoder import Rows
from tasks.decoding.duet import in_one_go
from tasks.decoding.generation import Generation
from tasks.decoding.methods import beam, bild, cascades, early_exit, sequential, speculative, vanilla
from tasks.decoding.randomness import TokenSource
from tasks.decoding.strategy import Entry, Pair, Request, Strategy

__all__ = ["METHODS", "Entry", "Pair", "Request", "compose", "decode"]

METHODS: dict[str, Entry] = {
    entry.name: entry
    for family in (vanilla, bild, speculative, sequential, cascades, beam, early_exit)
    for entry in family.ENTRIES
}


def compose(name: str, settings: Any, pair: Pair, request: Request) -> Strategy:
    """The method `name` with its parts put together; raises `InputError` where the pair or the sampling does not fit it."""
    return in_one_go(METHODS[name].compose(pair, settings, request.sampling, TokenSource(request.seed)))


def decode(
    name: str, settings: Any, pair: Pair, sources: Rows, request: Request, examples: Sequence[int] | None = None
) -> list[Generation]:
    """Runs a method of the registry on sources, side by side.

    Args:
        name: A key of `METHODS`.
        settings: An instance of that entry's settings.
        pair: The two models.
        sources: Token ids of each source.
        request: Length limit, sampling and seed.
        examples: A number for each source that keys its random draws; their order where none is given.
    """
    numbers = range(len(sources)) if examples is None else examples
    return compose(name, settings, pair, request).run(sources, numbers, request.max_new_tokens)
