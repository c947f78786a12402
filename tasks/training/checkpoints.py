"""What a run resumes from and what it keeps: checkpoints, written as a whole or not at all, and the best weights.

A checkpoint is loaded only if its checksums match. With several hosts, the folder must be shared by all of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from tasks import errors
from tasks.errors import InputError
from tasks.files import SUMS, atomic_path, is_sealed, link_file, partial_path, remove, seal
from tasks.training import distributed
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from transformers import PreTrainedModel

KEPT_CHECKPOINTS = 2
"""Checkpoints on disk: the newest, and the one before in case the newest is damaged."""
_LOWER = ("validation_loss",)
"""Measurements of which less is better."""
_State = tuple[int, float]
"""Best step, its value, evaluations without improvement."""
_BEST = "best.safetensors"
"""The best weights so far; each checkpoint has those of its time, under its own seal."""


def save(engine: DeepSpeedEngine, folder: Path, step: int, state: Mapping[str, object]) -> None:
    """Write the engine's state after `step` steps, together with `state`; keep only the last two checkpoints.

    The best weights, where there are any, become part of the checkpoint.

    Raises:
        InputError: no space is left. The partial checkpoint is removed and older ones are untouched.
    """
    # 1. Make room: a damaged checkpoint of this step may be there from before a kill.
    checkpoint = folder / f"step{step:08d}"
    if distributed.is_main():
        remove(checkpoint)
    distributed.barrier()
    # 2. Every process writes its part.
    with writing_to_resume(f"the checkpoint of step {step}", checkpoint, folder):
        engine.save_checkpoint(str(folder), tag=checkpoint.name, client_state={**state, "step": step}, save_latest=False)
        distributed.barrier()
        if distributed.is_main():
            if (folder / _BEST).is_file():
                link_file(folder / _BEST, checkpoint / _BEST)
            # 3. The seal is written last: without it, or with another checksum in it, the checkpoint does not count.
            seal(checkpoint)
    if distributed.is_main():
        # 4. All others go, also partial and damaged ones, and those of later steps that a resumed run writes again.
        before = [one.name for one in _finished(folder) if one.name < checkpoint.name]
        for other in folder.glob("step*"):
            if other.name not in (*before[1 - KEPT_CHECKPOINTS :], checkpoint.name):
                remove(other)


def load_latest(engine: DeepSpeedEngine, folder: Path) -> tuple[int, Mapping[str, object]]:
    """Restore the newest intact checkpoint; return its step and saved state, or 0 and an empty state where there is none.

    DeepSpeed's files are pickles, so only files of this run's own folder are opened, and only after their checksums match.

    Raises:
        InputError: the checkpoint has no part for this rank.
    """
    # All processes take the checkpoint that rank 0 finds intact.
    tag = distributed.broadcast(latest(folder) if distributed.is_main() else None)
    if tag is None:
        return 0, {}
    path, state = engine.load_checkpoint(str(folder), tag=tag)
    if path is None:
        raise InputError(f"the checkpoint {folder / tag} has no part for rank {distributed.rank()}; remove it and run again")
    return int(state["step"]), state


def latest(folder: Path) -> str | None:
    """Return the name of the newest checkpoint whose checksums match."""
    return next((checkpoint.name for checkpoint in reversed(_finished(folder)) if is_sealed(checkpoint)), None)


def writing_to_resume(what: str, partial: Path, folder: Path) -> contextlib.AbstractContextManager[None]:
    """Return `errors.writing` for a run that resumes from the checkpoints in `folder`."""

    def then() -> str:
        good = latest(folder)
        return f"goes on from step {int(good.removeprefix('step'))}" if good else "starts anew, for there is no checkpoint yet"

    return errors.writing(what, partial, then)


def _finished(folder: Path) -> list[Path]:
    return sorted(sums.parent for sums in folder.glob(f"step*/{SUMS}"))


class BestWeights:
    """Saves the weights with the best `choose_by` so far; saves nothing if `choose_by` is `last`."""

    def __init__(self, folder: Path, settings: TrainingSettings, state: Mapping[str, object]) -> None:
        """Continue from a checkpoint's state and its weights; start over if the state is empty."""
        self._folder, self._by = folder, settings.choose_by
        self._step, self._value = cast("_State", state.get("best", (0, 0.0)))
        if distributed.is_main():
            (folder / _BEST).unlink(missing_ok=True)  # of a later step than the checkpoint's
            if self._step:
                link_file(folder / f"step{state['step']:08d}" / _BEST, folder / _BEST)
        distributed.barrier()

    def update(self, model: PreTrainedModel, measured: Mapping[str, float], step: int) -> None:
        """Save these weights if they are better than all before. The first of equal values is kept; NaN and infinity never win.

        Raises:
            InputError: `choose_by` was not measured, or no space is left.
        """
        if self._by == "last":
            return
        if self._by not in measured:
            raise InputError(f"choose_by is {self._by}, but this run measures {', '.join(measured)}; name one of them")
        # Rank 0 decides: measurements of other processes may differ in the last bits.
        value = distributed.broadcast(measured[self._by])
        better = not self._step or (value < self._value if self._by in _LOWER else value > self._value)
        if not (better and math.isfinite(value)):
            return
        self._step, self._value = step, value
        if distributed.is_main():
            self._save(model)
        distributed.barrier()

    def restore_weights(self, model: PreTrainedModel) -> int | None:
        """Load the best weights into the model and return their step; None if the last weights are kept."""
        from safetensors.torch import load_file

        if not self._step:
            return None
        kept, weights = load_file(self._folder / _BEST), _learned(model)
        with torch.no_grad():
            for name, values in kept.items():
                weights[name].copy_(values)
        return self._step

    def state_dict(self) -> dict[str, _State]:
        """Return the state for a checkpoint."""
        return {"best": (self._step, self._value)}

    def _save(self, model: PreTrainedModel) -> None:
        from safetensors.torch import save_file

        file = self._folder / _BEST
        self._folder.mkdir(parents=True, exist_ok=True)
        full = writing_to_resume(f"the best weights, of step {self._step},", partial_path(file), self._folder)
        with full, atomic_path(file) as partial:
            save_file({name: weight.detach().contiguous() for name, weight in _learned(model).items()}, partial)


def _learned(model: PreTrainedModel) -> dict[str, torch.nn.Parameter]:
    """Return the trained weights, each under one name even if weights are tied."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
