"""Many points on one split from one set of noted readings: their exact outputs, at a fraction of decoding each."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from tasks.decoding.decoder import BrokenLogitsError
from tasks.decoding.replay.notebook import Notebook
from tasks.decoding.replay.noted import noted_pair
from tasks.decoding.replay.pages import LARGE, SMALL
from tasks.decoding.replay.play import UnplayableError
from tasks.decoding.strategies import Pair, Request, compose
from tasks.decoding.strategy import Strategy
from tasks.errors import InputError
from tasks.evaluation.sweeping.points import Outputs, Split, SweepPoint


@dataclass
class ReplayedGrid:
    """What came of playing a grid."""

    outputs: dict[int, Outputs] = field(default_factory=dict)
    """By the place of the point in the grid; a point that cannot be played, or failed, is not there."""
    errors: dict[int, str] = field(default_factory=dict)
    """What the models did wrong, such as broken logits, where a point came to it."""


def replay_grid(
    points: Sequence[SweepPoint],
    pair: Pair,
    request: Request,
    split: Split,
    folder: Path,
    label: str,
    known: Sequence[Sequence[Sequence[int]]] = (),
) -> ReplayedGrid:
    """Plays all points that can be, example by example: a reading is taken once, whatever number of points asks for it.

    Args:
        points: The grid.
        pair: The models that are read where nothing is noted.
        request: Length limit, sampling and seed.
        split: The examples.
        folder: Keeps the readings of each example, so that a killed sweep, or a larger grid, reads only what is new.
        label: Stands before the progress bar.
        known: Texts by example, once or several times: both models are read along each in one run, before anything is played.
    """
    book = Notebook(pair, folder)
    found = ReplayedGrid()
    playing: dict[int, Strategy] = _composed(points, noted_pair(pair, book), request)
    found.outputs = {index: Outputs("replayed") for index in playing}
    timed = set(split.timed)
    for example, source in enumerate(tqdm(split.sources, desc=label, unit="example", mininterval=2.0)):
        name, before = f"{split.name}-{example}", book.runs
        book.open(source, name)
        if playing:
            _read_along(book, [texts[example] for texts in known])
        for index, strategy in list(playing.items()):
            try:
                [generation] = strategy.run([source], [example], request.max_new_tokens)
            except UnplayableError:
                del playing[index], found.outputs[index]
            except RuntimeError as error:
                found.errors[index] = f"{type(error).__name__}: {error}"
                del playing[index], found.outputs[index]
            else:
                found.outputs[index].add(generation, timed=example in timed)
        if book.runs > before:
            book.close(name)
    return found


def _read_along(book: Notebook, texts: Sequence[Sequence[int]]) -> None:
    """Reads both models at every prefix of these texts; broken logits are left to whichever point comes to them."""
    for text in texts:
        indices = [book.page.root]
        for token in text[:-1]:
            indices.append(indices[-1].step(token))
        for side in (SMALL, LARGE):
            with contextlib.suppress(BrokenLogitsError):
                book.read(side, indices)


def _composed(points: Sequence[SweepPoint], noted: Pair, request: Request) -> dict[int, Strategy]:
    strategies = {}
    for index, point in enumerate(points):
        try:
            strategies[index] = compose(point.method, point.settings, noted, request)
        except InputError:  # it needs a model's layers or heads, which notes do not hold
            continue
    return strategies


def duplicates(outputs: Mapping[int, Outputs], points: Sequence[SweepPoint]) -> dict[int, int]:
    """Points that do the same as an earlier point of their method on every example: by place, the place of the first."""
    first: dict[tuple[str, int], int] = {}
    found = {}
    for index in sorted(outputs):
        known = first.setdefault((points[index].method, outputs[index].behaviour), index)
        if known != index:
            found[index] = known
    return found
