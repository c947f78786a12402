"""Checkpoints to resume from: written whole or not at all, loaded only if every byte is as it was written."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

_KEPT = 2
_SEAL = "complete.json"


def save(engine: Any, folder: Path, step: int) -> None:
    """Writes the engine's state after `step` steps and drops all but the last two checkpoints."""
    tag = f"step{step:08d}"
    shutil.rmtree(folder / tag, ignore_errors=True)
    engine.save_checkpoint(str(folder), tag=tag, client_state={"step": step}, save_latest=False)
    sums = {str(file.relative_to(folder / tag)): _checksum(file) for file in _files(folder / tag)}
    partial = folder / tag / (_SEAL + ".partial")
    partial.write_text(json.dumps(sums))
    partial.rename(folder / tag / _SEAL)
    for old in _sealed(folder)[:-_KEPT]:
        shutil.rmtree(old)


def load_latest(engine: Any, folder: Path) -> int:
    """Restores the newest whole checkpoint and gives its step; 0 where there is none.

    DeepSpeed's files are pickles, so only files of this run's own folder whose checksums hold are opened.
    """
    for checkpoint in reversed(_sealed(folder)):
        sums: dict[str, str] = json.loads((checkpoint / _SEAL).read_text())
        if all((checkpoint / name).is_file() and _checksum(checkpoint / name) == known for name, known in sums.items()):
            path, state = engine.load_checkpoint(str(folder), tag=checkpoint.name)
            if path is not None:
                return int(state["step"])
    return 0


def _sealed(folder: Path) -> list[Path]:
    return sorted(seal.parent for seal in folder.glob(f"step*/{_SEAL}"))


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(_SEAL))


def _checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
