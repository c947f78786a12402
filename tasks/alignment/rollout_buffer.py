"""Pools of text that is written while training, kept on the disk until no checkpoint needs them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.decoding.decoder import Rows
from tasks.training import distributed
from tasks.training.batching import BucketBatchSampler, partition
from tasks.training.checkpoints import KEPT_CHECKPOINTS, writing_to_resume
from tasks.training.data import Batch, TokenDataset
from tasks.training.settings import TrainingSettings
from tasks.training.sources import split_microbatches


@dataclass(frozen=True)
class Rollouts:
    """Texts, and what each of their tokens weighs; no weights: all alike."""

    tokens: list[list[int]]
    weights: list[list[float]] | None = None


GenerateRollouts = Callable[[Rows, Sequence[int], int], Rollouts]
"""(sources, a number for each that keys its draws, seed) to a text for each, by the drafter as it is."""


class RolloutBuffer:
    """A `BatchSource`: the inputs of a text set in its order, with texts that are written anew for some steps at once.

    A pool depends on the weights at the first step that asks for it, so it is kept in a file: a run that is resumed inside it
    reads the texts again. Each process writes its own share; draws are keyed by a text's number in the whole pool, so that any
    number of processes writes the same.
    """

    def __init__(
        self,
        examples: TokenDataset,
        settings: TrainingSettings,
        window: Callable[[int], list[int]],
        write: GenerateRollouts,
        folder: Path,
    ) -> None:
        """Takes what to write, and when.

        Args:
            examples: Whose inputs are taken, and whose lengths shape the batches.
            settings: Seed, size of a batch, and how often checkpoints are made.
            together: The steps of the pool that a step is in.
            write: The writer.
            folder: For the files, this run's alone.
        """
        self._examples, self._settings, self._order = examples, settings, BucketBatchSampler(examples, settings)
        self._window_of, self._write, self._folder = window, write, folder
        self._steps, self._places, self._texts = list[int](), dict[int, list[int]](), examples

    def microbatches(self, step: int) -> list[Batch]:
        steps = self._window_of(step)
        if steps != self._steps:
            self._open(steps)
        return split_microbatches(self._texts, self._places[step], self._settings.accumulation)

    def _open(self, steps: list[int]) -> None:
        """Numbers the texts of these steps, over all processes, and writes this one's share or reads it back."""
        examples, count = list[int](), 0
        places: dict[int, list[int]] = {}
        for step in steps:
            chosen = self._order.batch_at(step)
            places[step] = list(range(count, count + len(chosen)))
            examples, count = examples + chosen, count + len(chosen)
        sources = [self._examples.sources[example] for example in examples]
        mine = [place for step in steps for place in self._share(places[step])]
        file = self._folder / f"texts{steps[0]:08d}-{steps[-1]:08d}-{distributed.rank()}.json"
        written = _read(file)
        if written is None:
            written = self._write([sources[place] for place in mine], mine, self._settings.seed * 1_000_003 + steps[0])
            self._save(written, file)
            self._forget(steps[0])
        # What other processes wrote is never looked at here: the set's own texts hold its place.
        targets = [self._examples.targets[example] for example in examples]
        weights = None if written.weights is None else [[0.0] * len(target) for target in targets]
        for index, place in enumerate(mine):
            targets[place] = written.tokens[index]
            if weights is not None and written.weights is not None:
                weights[place] = written.weights[index]
        self._steps, self._places = steps, places
        self._texts = TokenDataset(
            sources, targets, self._examples.pad, decoder_only=self._examples.decoder_only, weights=weights
        )

    def _share(self, places: list[int]) -> list[int]:
        """Those of a step's texts that `cut` gives to this process."""
        world, accumulation = distributed.world_size(), self._settings.accumulation
        cuts = [partition(places, micro * world + distributed.rank(), world * accumulation) for micro in range(accumulation)]
        return sorted(place for part in cuts for place in part)

    def _save(self, written: Rollouts, file: Path) -> None:
        """Raises `InputError` where no space is left."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        with writing_to_resume("text written while training", partial, self._folder):
            body = json.dumps({"tokens": written.tokens, "weights": written.weights})
            partial.write_text(f"{_sum_of(body)}\n{body}")
        partial.rename(file)

    def _forget(self, step: int) -> None:
        """Drops this process's pools that end before the oldest checkpoint that is kept at this step."""
        every = self._settings.checkpoint_every
        oldest = (step // every - KEPT_CHECKPOINTS + 1) * every
        for file in self._folder.glob(f"texts*-{distributed.rank()}.json"):
            if int(file.name.split("-")[1]) < oldest:
                file.unlink()


def _read(file: Path) -> Rollouts | None:
    """What `_save` wrote; none where that is not there, or not as it was written."""
    try:
        known, _, body = file.read_text().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    if _sum_of(body) != known:
        return None
    found = json.loads(body)
    return Rollouts(found["tokens"], found["weights"])


def _sum_of(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
