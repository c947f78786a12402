"""Texts generated during training, kept on disk until no checkpoint needs them."""

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
    """Generated texts, and the weight of each token in the loss; None: 1 everywhere."""

    tokens: list[list[int]]
    weights: list[list[float]] | None = None


GenerateRollouts = Callable[[Rows, Sequence[int], int], Rollouts]
"""Takes sources, a number for each that keys its random draws, and a seed; generates a text for each with the drafter."""


class RolloutBuffer:
    """A `BatchSource` of a dataset's inputs with newly generated targets, generated for a window of steps at once.

    The texts of a window depend on the weights at its first step, so they are saved: a run that resumes within the window reads
    them again. Each process generates its own share. Draws are keyed by a text's number within the window, so that the texts do
    not depend on the number of processes.
    """

    def __init__(
        self,
        examples: TokenDataset,
        settings: TrainingSettings,
        window: Callable[[int], list[int]],
        generate: GenerateRollouts,
        folder: Path,
    ) -> None:
        """Store the inputs and the generator of targets.

        Args:
            examples: Dataset of the inputs; its lengths shape the batches.
            settings: Seed, batch size and checkpoint interval.
            window: Returns all steps of the window that contains a step.
            generate: Generates texts with the drafter.
            folder: Folder of the saved rollouts, for this work alone.
        """
        self._examples, self._settings, self._sampler = examples, settings, BucketBatchSampler(examples, settings)
        self._window_of, self._generate, self._folder = window, generate, folder
        self._steps, self._positions, self._rollouts = list[int](), dict[int, list[int]](), examples

    def microbatches(self, step: int) -> list[Batch]:
        steps = self._window_of(step)
        if steps != self._steps:
            self._open(steps)
        return split_microbatches(self._rollouts, self._positions[step], self._settings.accumulation)

    def _open(self, steps: list[int]) -> None:
        """Number the texts of these steps over all processes, and generate or read this process's share."""
        examples, positions = list[int](), dict[int, list[int]]()
        for step in steps:
            batch = self._sampler.batch_at(step)
            positions[step] = list(range(len(examples), len(examples) + len(batch)))
            examples += batch
        sources = [self._examples.sources[example] for example in examples]
        own = [position for step in steps for position in self._own_positions(positions[step])]
        file = self._folder / f"texts{steps[0]:08d}-{steps[-1]:08d}-{distributed.rank()}.json"
        rollouts = _read(file)
        if rollouts is None:
            rollouts = self._generate([sources[position] for position in own], own, self._settings.seed * 1_000_003 + steps[0])
            self._save(rollouts, file)
            self._remove_before(steps[0])
        # This process never reads the texts of others; the dataset's own targets fill their positions.
        targets = [self._examples.targets[example] for example in examples]
        weights = None if rollouts.weights is None else [[0.0] * len(target) for target in targets]
        for index, position in enumerate(own):
            targets[position] = rollouts.tokens[index]
            if weights is not None and rollouts.weights is not None:
                weights[position] = rollouts.weights[index]
        self._steps, self._positions = steps, positions
        self._rollouts = TokenDataset(
            sources, targets, self._examples.pad, decoder_only=self._examples.decoder_only, weights=weights
        )

    def _own_positions(self, positions: list[int]) -> list[int]:
        """Return the positions of a step that `split_microbatches` gives to this process."""
        world, accumulation = distributed.world_size(), self._settings.accumulation
        parts = [
            partition(positions, micro * world + distributed.rank(), world * accumulation) for micro in range(accumulation)
        ]
        return sorted(position for part in parts for position in part)

    def _save(self, rollouts: Rollouts, file: Path) -> None:
        """Save this process's rollouts; raise `InputError` if no space is left."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        with writing_to_resume("text generated during training", partial, self._folder):
            body = json.dumps({"tokens": rollouts.tokens, "weights": rollouts.weights})
            partial.write_text(f"{_checksum(body)}\n{body}")
        partial.rename(file)

    def _remove_before(self, step: int) -> None:
        """Remove this process's rollouts of windows that end before the oldest checkpoint kept at this step."""
        interval = self._settings.checkpoint_every
        oldest = (step // interval - KEPT_CHECKPOINTS + 1) * interval
        for file in self._folder.glob(f"texts*-{distributed.rank()}.json"):
            if int(file.name.split("-")[1]) < oldest:
                file.unlink()


def _read(file: Path) -> Rollouts | None:
    """Return saved rollouts; None if the file is missing or damaged."""
    try:
        known, _, body = file.read_text().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    if _checksum(body) != known:
        return None
    found = json.loads(body)
    return Rollouts(found["tokens"], found["weights"])


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
