"""Decode the points that cannot be replayed in several processes, before any of them is timed.

What is decoded is kept in the folder of cached predictions, so that an interrupted sweep decodes no point twice.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.console import progress
from tasks.decoding.batches import decode_all
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.method import Pair
from tasks.decoding.registry import Request, decode
from tasks.evaluation.sweeping.fan_out import FanOut
from tasks.evaluation.sweeping.grid import SweepPoint
from tasks.evaluation.sweeping.outputs import Outputs, Split, collect_outputs
from tasks.files import atomic_write
from tasks.fingerprint import fingerprint


class PointDecoder:
    """Decodes points on a split."""

    def __init__(self, request: Request, batch: int, split: Split, folder: Path, pair: Pair) -> None:
        """Take what decoding needs.

        Args:
            request: Length limit, sampling and seed.
            batch: Batch size.
            split: The examples.
            folder: Keeps what was decoded.
            pair: The models.
        """
        self.request, self.batch, self.split, self.folder, self.pair = request, batch, split, folder, pair

    def __call__(self, point: SweepPoint) -> str | None:
        """Decode a point, keep its outputs and return them as text; None where a model fails, which the point's row reports."""
        sources = self.split.sources
        try:
            generations = decode_all(point.method, point.settings, self.pair, sources, self.request, self.batch)
        except RuntimeError:
            return None
        text = json.dumps([_to_json(one) for one in generations])
        self.keep(point, text)
        return text

    def keep(self, point: SweepPoint, text: str) -> None:
        """Write what a call returned, here or on another machine."""
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self._path(point), text)

    def measure_cost(self, point: SweepPoint) -> None:
        """Let a method that measures what its drafter costs do so here, for all processes: by decoding one text."""
        if getattr(point.settings, "cost_ratio", 0.0) is None:
            with contextlib.suppress(RuntimeError):  # the row of the point reports it
                decode(point.method, point.settings, self.pair, self.split.sources[:1], self.request)

    def kept(self, point: SweepPoint) -> Outputs | None:
        """The outputs of a point that was decoded here or by an earlier process; None where there are none."""
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            generations = map(_from_json, json.loads(self._path(point).read_text(encoding="utf-8")))
            return collect_outputs("decoded", generations, self.split)
        return None

    def _path(self, point: SweepPoint) -> Path:
        name = fingerprint({"method": point.method, "settings": point.row_settings}, [], [])
        return self.folder / f"decoded-{self.split.name}-{name}.json"


def decode_points(
    points: Sequence[SweepPoint], decoder: PointDecoder, fan_out: FanOut, label: str
) -> dict[SweepPoint, Outputs]:
    """Return the outputs of points, in their order; those that fail are left out.

    Args:
        points: The points.
        decoder: Decodes in this process; further processes get one like it.
        fan_out: The processes that share the points.
        label: Text before the progress bar.
    """
    waiting = [point for point in points if decoder.kept(point) is None]
    for point in waiting:
        decoder.measure_cost(point)
    with progress(total=len(waiting), desc=label, unit="point") as bar:

        def here(point: SweepPoint) -> str | None:
            done = decoder(point)
            bar.update()
            return done

        like_it = functools.partial(PointDecoder, decoder.request, decoder.batch, decoder.split, decoder.folder)
        for point, text in zip(waiting, fan_out.map(waiting, here, like_it, decoder.pair, lambda _: bar.update()), strict=True):
            if text is not None and decoder.kept(point) is None:  # another machine's disk holds it
                decoder.keep(point, text)
    found = {point: decoder.kept(point) for point in points}
    return {point: outputs for point, outputs in found.items() if outputs is not None}


def _to_json(generation: Generation) -> list[Any]:
    """Tokens, proposers, and counts with keys that JSON can hold."""
    counts = {**vars(generation.counts), "verified": list(generation.counts.verified.items())}
    return [generation.tokens, generation.proposers, {**counts, "kept": list(generation.counts.kept.items())}]


def _from_json(value: list[Any]) -> Generation:
    tokens, proposers, counts = value
    made = Counts(**{**counts, "verified": dict(counts["verified"]), "kept": {tuple(key): n for key, n in counts["kept"]}})
    return Generation(tokens, proposers, made)
