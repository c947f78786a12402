"""Training time per step, without evaluations."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import torch

from tasks.training.data import IGNORED, Batch
from tasks.training.sources import BatchSource


def training_clock(device: torch.device) -> Callable[[], float]:
    """Wall-clock seconds; on one CPU thread processor time, which other processes do not lengthen."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


class TimedSource:
    """A batch source that records when each step asks for its batches, and counts target tokens.

    Rollouts are generated when a step asks for them, so their time is part of the step.
    """

    def __init__(self, source: BatchSource, clock: Callable[[], float]) -> None:
        self._source, self._clock = source, clock
        self._begun: list[float] = []
        self.tokens = 0

    def microbatches(self, step: int) -> list[Batch]:
        self._begun.append(self._clock())
        parts = self._source.microbatches(step)
        self.tokens += sum(int((part.labels != IGNORED).sum()) for part in parts)
        return parts

    def seconds_per_step(self, evaluate_every: int, skip: int = 0) -> float:
        """The mean over the steps that no evaluation comes after.

        Args:
            evaluate_every: Steps between evaluations.
            skip: First steps that do not count: they warm caches up.

        Raises:
            ValueError: no step is left.
        """
        gaps = [
            after - before
            for step, (before, after) in enumerate(itertools.pairwise(self._begun), start=1)
            if step > skip and step % evaluate_every
        ]
        if not gaps:
            raise ValueError(f"{len(self._begun)} steps, evaluated every {evaluate_every}, {skip} skipped: none to time")
        return statistics.fmean(gaps)
