"""A pool of examples with what every setting makes of them: from it, validation and test splits are drawn again and again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.errors import InputError
from tasks.evaluation.quality import values_of


@dataclass(frozen=True)
class Arm:
    """The settings of one drafter's grid on the pool."""

    name: str
    statistics: NDArray[np.generic]
    """`[settings, examples, values]`: `quality.example_statistics` of each setting."""
    speedups: NDArray[np.float64]
    """`[settings]`: speed-up over vanilla, by the cost model."""
    lossless: NDArray[np.bool_]
    """`[settings]`: the output is vanilla's by construction."""
    labels: list[str]
    """Method and settings."""

    def differences(self, vanilla: NDArray[np.generic]) -> NDArray[np.float64]:
        """Quality of each setting minus vanilla's on the whole pool, `[settings]`, in points: the truth of a simulation."""
        examples = len(vanilla)
        sums = self.statistics.sum(axis=1, dtype=np.float64)
        return values_of(sums, examples) - values_of(vanilla.sum(axis=0, dtype=np.float64)[None], examples)


@dataclass(frozen=True)
class Pool:
    """The arms on the same examples."""

    vanilla: NDArray[np.generic]
    """`[examples, values]`: statistics of the vanilla large model."""
    arms: list[Arm]
    about: dict[str, str]
    """Where the pool comes from, as text."""

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return len(self.vanilla)


def save_pool(pool: Pool, path: Path) -> None:
    """Write a pool as a compressed npz file."""
    arrays: dict[str, NDArray[np.generic]] = {"vanilla": pool.vanilla}
    for arm in pool.arms:
        named = {"statistics": arm.statistics, "speedups": arm.speedups, "lossless": arm.lossless}
        arrays |= {f"{name} {arm.name}": array for name, array in named.items()}
    described = json.dumps({"about": pool.about, "arms": {arm.name: arm.labels for arm in pool.arms}})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, described=np.array(described), **arrays)  # type: ignore[arg-type]  # allow_pickle's position


def read_pool(path: Path) -> Pool:
    """Read a file that `save_pool` wrote.

    Raises:
        InputError: the file is missing or is no pool.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            described = json.loads(str(file["described"]))
            arms = []
            for name, labels in described["arms"].items():
                statistics, speedups, lossless = (file[f"{array} {name}"] for array in ("statistics", "speedups", "lossless"))
                arms.append(Arm(name, statistics, speedups, lossless, labels))
            return Pool(file["vanilla"], arms, described["about"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is no pool of examples ({error}); leave --pool out to make one") from None
