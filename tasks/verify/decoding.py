"""Decodes texts greedily with a fixed number of drafted tokens, in this project's runtime and in another engine."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Generation
from tasks.decoding.inference import VANILLA, DecodingPair
from tasks.decoding.method import DecodingMethod, Request
from tasks.verify.comparison import Engine


def speculative(pair: DecodingPair, draft_length: int, limit: int) -> DecodingMethod:
    """Return greedy speculative decoding of a pair.

    Raises:
        InputError: the draft length is out of bounds, or the method does not fit the pair.
    """
    return pair.method(pair.point("speculative", {"draft_length": draft_length}), Request(limit))


def decode_here(pair: DecodingPair, draft_length: int, sources: Rows, limit: int) -> list[Generation]:
    """Decode each source by itself with greedy speculative decoding in this project's runtime."""
    method = speculative(pair, draft_length, limit)
    return _each("here", sources, lambda source: method.run([source], [0], limit)[0])


def decode_here_from_the_second(pair: DecodingPair, draft_length: int, sources: Rows, limit: int) -> list[Generation]:
    """Do the same with decoder-only models, but let the call that reads the prompt verify no draft.

    The large model writes the first token alone, and drafting begins behind it.
    """
    method, alone = speculative(pair, draft_length, limit), pair.method(VANILLA, Request(limit))

    def decode(source: list[int]) -> Generation:
        [first] = alone.run([source], [0], 1)
        if limit == 1 or first.tokens[-1] in pair.opened.pair.large.end_tokens:
            return first
        [rest] = method.run([[*source, *first.tokens]], [0], limit - 1)
        return Generation(first.tokens + rest.tokens, first.proposers + rest.proposers, first.counts + rest.counts)

    return _each("here, first token undrafted", sources, decode)


def decode_there(engine: Engine, sources: Rows, limit: int) -> list[Generation]:
    """Decode each source by itself in the engine."""
    return _each(engine.name, sources, lambda source: engine.decode(source, limit))


def _each(where: str, sources: Rows, decode: Callable[[list[int]], Generation]) -> list[Generation]:
    """Decode every source, with a bar where standard error is a terminal."""
    from tqdm import tqdm

    return [decode(source) for source in tqdm(sources, desc=where, unit="text", disable=not sys.stderr.isatty())]
