"""What the rows of a sweep depend on, and where its unfinished work is kept."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.decoding.method import Pair
from tasks.errors import InputError
from tasks.evaluation.sweeping.grid import SweepPoint
from tasks.fingerprint import code_of, fingerprint
from tasks.loaded_pair import LoadedPair, load_pair
from tasks.paths import TaskPaths
from tasks.schema import Params, Task

_PLANNING = (
    "grid",
    "plan",
    "near",
    "sample",
    "seed_methods",
    "margins",
    "risk",
    "temperatures",
    "batch_sizes",
    "batch_examples",
    "child_runs",
)
"""Settings that select points or come after them, and do not change how a point is measured; its row stays valid.

Margins select points by bounds that the rows hold; their confidence changes the bounds and is part of the fingerprint.
"""


def load_pair_elsewhere(
    params: Params, task: Task, paths: TaskPaths, drafter: Path, grid: Sequence[SweepPoint], files: str
) -> Pair:
    """What `load_pair` loads, on a machine with a copy of the repository of its own.

    Args:
        files: `files_fingerprint` of the machine that sweeps.
        params, task, paths, drafter, grid: See `load_pair`.

    Raises:
        InputError: models, data, code or versions here are others.
    """
    loaded = load_pair(params, task, paths, drafter, grid)
    if files_fingerprint(loaded) != files:
        fix = "check out the same commit and run dvc pull"
        raise InputError(f"code, models, data or torch in {Path.cwd()} are not those of the machine that sweeps; {fix}")
    return loaded.pair


def files_fingerprint(loaded: LoadedPair) -> str:
    """The fingerprint of everything that an output depends on, apart from settings and hardware."""
    return fingerprint({"ran on": loaded.described}, _read(loaded), ["decoding"])


def _read(loaded: LoadedPair) -> list[Path]:
    """Files that a row depends on: those of the pair and its corpus, and all code that a sweep runs."""
    return [*loaded.inputs, *code_of("tasks.sweep")]


def work_fingerprint(params: Params, task: Task, loaded: LoadedPair, origin: Mapping[str, str]) -> str:
    """The fingerprint of everything that a row depends on, the hardware included, since times belong to one machine."""
    hardware = {name: value for name, value in origin.items() if name.startswith("host_")}
    measured_as = {name: value for name, value in vars(task.sweep).items() if name not in _PLANNING}
    how = {
        "confidence": task.sweep.margins.confidence,
        "metric": task.metric,
        "text": task.text,
        "machine": params.machine.alone(),
        "ran on": [loaded.described, hardware],
    }
    return fingerprint(measured_as | how, _read(loaded), ["decoding"])


def cache_folder(work: str, folder: Path) -> Path:
    """The folder of cached predictions for this fingerprint; folders of other fingerprints are removed."""
    for other in folder.glob("*") if folder.is_dir() else ():
        if other.name != work:
            shutil.rmtree(other)
    return folder / work
