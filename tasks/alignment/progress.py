"""How far training has come: what a loss that changes over training reads from each batch."""

from __future__ import annotations

import dataclasses

from tasks.training.data import Batch
from tasks.training.sources import BatchSource


class ProgressSource:
    """A `BatchSource` that writes the progress of training to the batches of another: 0 at the first step, 1 at the last."""

    def __init__(self, source: BatchSource, steps: int) -> None:
        """Take the source and the number of optimiser steps, at least 1; a single step has progress 0."""
        self._source, self._last = source, max(1, steps - 1)

    def microbatches(self, step: int) -> list[Batch]:
        return [dataclasses.replace(batch, progress=step / self._last) for batch in self._source.microbatches(step)]


def kl_weight(progress: float | None, until: float) -> float:
    """Return the weight λ of KL(p|q) beside a divergence: it falls linearly from 1 at the first step to 0.

    LK losses (Samarin et al., 2026) blend KL and total variation as well, with a λ that reads the acceptance of the batch. Here
    λ reads the step alone, so that the loss of a step does not depend on the drafter, the batch or the number of processes.

    Args:
        progress: Share of the training steps before this one, in 0…1; None outside of training, where λ is 0: the loss on
            held-out texts stays the same function throughout.
        until: Progress from which on λ is 0; 0: λ is 0 throughout.
    """
    if progress is None or until == 0:
        return 0.0
    return max(0.0, 1 - progress / until)
