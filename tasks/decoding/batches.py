"""Decodes a whole set in batches of similar length, and returns it in the given order."""

from __future__ import annotations

from tasks.console import progress
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Generation
from tasks.decoding.registry import Pair, Request, decode


def decode_all(
    name: str, settings: object, pair: Pair, sources: Rows, request: Request, batch_size: int, label: str | None = None
) -> list[Generation]:
    """Return one generation for each source; a `label` shows a progress bar on standard error."""
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
    done: dict[int, Generation] = {}
    with progress(total=len(sources), desc=label, unit="example", mininterval=2.0, disable=label is None) as bar:
        for begin in range(0, len(order), batch_size):
            batch = order[begin : begin + batch_size]
            generations = decode(name, settings, pair, [sources[index] for index in batch], request, batch)
            done.update(zip(batch, generations, strict=True))
            bar.update(len(batch))
    return [done[index] for index in range(len(sources))]
