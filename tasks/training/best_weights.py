"""Keeps the best weights of a run, chosen by a measurement on held-out text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from tasks.errors import InputError
from tasks.files import atomic_path, checksum, partial_path
from tasks.training import distributed
from tasks.training.checkpoints import KEPT_CHECKPOINTS, writing_to_resume
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_State = tuple[int, float, int, str, list[int]]
"""Best step, its value, evaluations without improvement, checksum of the weights, best steps of the checkpoints on disk."""
_LOWER = ("validation_loss",)


class BestWeights:
    """Saves the weights with the best `choose_by` so far; saves nothing if `choose_by` is `last`."""

    def __init__(self, folder: Path, settings: TrainingSettings) -> None:
        self._folder, self._by, self._patience = folder, settings.choose_by, settings.patience
        self._step, self._value, self._waited, self._sum = 0, 0.0, 0, ""
        self._named: list[int] = []
        """Best steps that the checkpoints on disk refer to."""

    def update(self, model: PreTrainedModel, measured: Mapping[str, float], step: int) -> None:
        """Save these weights if they are better than all before. The first of equal values is kept; NaN and infinity never win.

        Raises:
            InputError: `choose_by` was not measured, or no space is left.
        """
        if self._by == "last":
            return
        if self._by not in measured:
            raise InputError(f"choose_by is {self._by}, but this run measures {', '.join(measured)}; name one of them")
        value = distributed.broadcast(measured[self._by])
        better = not self._step or (value < self._value if self._by in _LOWER else value > self._value)
        if not (better and math.isfinite(value)):
            self._waited += 1
            return
        self._step, self._value, self._waited = step, value, 0
        if distributed.is_main():
            self._save(model)
            self._sweep()
        distributed.barrier()

    @property
    def out_of_patience(self) -> bool:
        """Whether `patience` evaluations have passed without better weights."""
        return self._patience > 0 and self._waited >= self._patience

    def restore_weights(self, model: PreTrainedModel) -> int | None:
        """Load the best weights into the model and return their step; None if the last weights are kept."""
        from safetensors.torch import load_file

        if not self._step:
            return None
        kept, weights = load_file(self._file(self._step)), _learned(model)
        with torch.no_grad():
            for name, values in kept.items():
                weights[name].copy_(values)
        return self._step

    def state_dict(self) -> dict[str, _State]:
        """Return the state for a checkpoint."""
        return {"best": (self._step, self._value, self._waited, self._sum, self._named)}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from a checkpoint's state; start over if the saved weights are missing or damaged."""
        step, value, waited, known, named = cast("_State", state.get("best", (0, 0.0, 0, "", [])))
        file = self._file(step)
        if step and distributed.broadcast(file.is_file() and checksum(file) == known if distributed.is_main() else None):
            self._step, self._value, self._waited, self._sum = step, value, waited, known
            self._named = [*named, step][-KEPT_CHECKPOINTS:]

    def prune(self) -> None:
        """Remove all saved weights except those that a checkpoint on disk refers to; called after each checkpoint."""
        self._named = [*self._named, self._step][-KEPT_CHECKPOINTS:]
        if distributed.is_main():
            self._sweep()

    def _sweep(self) -> None:
        kept = {self._file(step) for step in (*self._named, self._step)}
        for old in self._folder.glob("best*.safetensors"):
            if old not in kept:
                old.unlink()

    def _save(self, model: PreTrainedModel) -> None:
        from safetensors.torch import save_file

        file = self._file(self._step)
        self._folder.mkdir(parents=True, exist_ok=True)
        full = writing_to_resume(f"the best weights, of step {self._step},", partial_path(file), self._folder)
        with full, atomic_path(file) as partial:
            save_file({name: weight.detach().contiguous() for name, weight in _learned(model).items()}, partial)
            self._sum = checksum(partial)

    def _file(self, step: int) -> Path:
        return self._folder / f"best{step:08d}.safetensors"


def _learned(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """Return the trained weights, each under one name even if weights are tied."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
