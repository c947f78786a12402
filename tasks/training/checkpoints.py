"""Checkpoints to resume from: written as a whole or not at all, and loaded only if their checksums match.

With several hosts, the folder must be shared by all of them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasks import errors
from tasks.errors import InputError
from tasks.files import atomic_write, checksum, remove
from tasks.training import distributed

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

KEPT_CHECKPOINTS = 2
"""Checkpoints on disk: the newest, and the one before in case the newest is damaged."""
_SEAL = "complete.json"


def save(engine: DeepSpeedEngine, folder: Path, step: int, state: Mapping[str, object]) -> None:
    """Write the engine's state after `step` steps, together with `state`; keep only the last two checkpoints.

    Raises:
        InputError: no space is left. The partial checkpoint is removed and older ones are untouched.
    """
    tag = f"step{step:08d}"
    if distributed.is_main():
        remove(folder / tag)
    distributed.barrier()
    with writing_to_resume(f"the checkpoint of step {step}", folder / tag, folder):
        engine.save_checkpoint(str(folder), tag=tag, client_state={**state, "step": step}, save_latest=False)
        distributed.barrier()
        if distributed.is_main():
            _seal(folder / tag)
    if distributed.is_main():
        _rotate(folder, tag)


def writing_to_resume(what: str, partial: Path, folder: Path) -> contextlib.AbstractContextManager[None]:
    """Return `errors.writing` for a run that resumes from the checkpoints in `folder`."""
    return errors.writing(what, partial, lambda: _goes_on(folder))


def _goes_on(folder: Path) -> str:
    good = latest(folder)
    return f"goes on from step {int(good.removeprefix('step'))}" if good else "starts anew, for there is no checkpoint yet"


def load_latest(engine: DeepSpeedEngine, folder: Path) -> tuple[int, Mapping[str, object]]:
    """Restore the newest intact checkpoint; return its step and saved state, or 0 and an empty state where there is none.

    DeepSpeed's files are pickles, so only files of this run's own folder are opened, and only after their checksums match.

    Raises:
        InputError: the checkpoint has no part for this rank.
    """
    tag = distributed.broadcast(latest(folder) if distributed.is_main() else None)
    if tag is None:
        return 0, {}
    path, state = engine.load_checkpoint(str(folder), tag=tag)
    if path is None:
        raise InputError(f"the checkpoint {folder / tag} has no part for rank {distributed.rank()}; remove it and run again")
    return int(state["step"]), state


def latest(folder: Path) -> str | None:
    """Return the name of the newest checkpoint whose checksums match."""
    return next((checkpoint.name for checkpoint in reversed(_sealed(folder)) if _holds(checkpoint)), None)


def _holds(checkpoint: Path) -> bool:
    try:
        sums = json.loads((checkpoint / _SEAL).read_text())
    except ValueError:
        return False
    if not isinstance(sums, dict):
        return False
    files = ((checkpoint / name, known) for name, known in sums.items())
    return bool(sums) and all(file.is_file() and checksum(file) == known for file, known in files)


def _rotate(folder: Path, newest: str) -> None:
    """Remove every checkpoint except the newest and the one before it, including partial and damaged ones."""
    before = [checkpoint.name for checkpoint in _sealed(folder) if checkpoint.name < newest]
    for checkpoint in folder.glob("step*"):
        if checkpoint.name not in (*before[1 - KEPT_CHECKPOINTS :], newest):
            remove(checkpoint)


def _seal(checkpoint: Path) -> None:
    sums = {str(file.relative_to(checkpoint)): checksum(file) for file in _files(checkpoint)}
    atomic_write(checkpoint / _SEAL, json.dumps(sums))


def _sealed(folder: Path) -> list[Path]:
    return sorted(seal.parent for seal in folder.glob(f"step*/{_SEAL}"))


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(_SEAL))
