"""A sweep of a toy task, and what stands for its run in MLflow."""

import math
from pathlib import Path
from typing import Any, Self

from tasks.config import Params, Task
from tasks.decoding.method import Pair
from tasks.evaluation.results.codec import encode
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import SweepRow
from tasks.evaluation.settings import GridSettings
from tasks.loaded_pair import LoadedPair
from tasks.models.settings import TextSettings
from tasks.paths import TaskPaths
from tasks.sweep import sweep
from tests.architectures import models
from tests.sweeps import Row, plain
from tests.ticking import LIMIT, Words, sweep_settings

BILD = GridSettings(method="bild", values={"fallback_threshold": [0.2, 0.4, 0.6], "rollback_threshold": [1.0, math.inf]})


SPECULATIVE = GridSettings(method="speculative", values={"draft_length": [1, 3, 20, 30]})


PATHS = TaskPaths("toy")


class Recorded:
    """Stands for the sweep's run in MLflow, which is sent when it ends: while the sweep still holds the machine."""

    locked = False

    def __init__(self, *about: Any) -> None:
        self.pairs: list[Row] = []
        self.points: list[Row] = []
        self.kept: list[Path] = []

    def point(self, row: SweepRow) -> None:
        self.points.append(encode(row, omit_null=True))

    def pair(self, pair: PairRecord) -> None:
        self.pairs.append(encode(pair))

    def keep(self, files: list[Path]) -> None:
        self.kept += files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert Recorded.locked


def opened(pair: Pair) -> LoadedPair:
    small, large = models("t5")
    return LoadedPair(pair, {"small": small, "large": large}, Words(), "cpu", [PATHS.split("validation"), PATHS.split("test")])


def swept(*grid: GridSettings, metric: str = "bleu", arm: str = "aligned", **changed: Any) -> list[Row]:
    settings = sweep_settings(grid=list(grid), latency_examples=3, **changed)
    task = Task(metric=metric, text=TextSettings(max_source_tokens=32, max_target_tokens=LIMIT), sweep=settings)
    rows, described = sweep(Params(active={"toy": Path("corpus")}, tasks={"toy": task}), task, PATHS, arm, 1)
    assert described
    return plain(rows)


def named(rows: list[Row]) -> set[tuple[str, str, str]]:
    return {(row["split"], row["method"], str(row["settings"])) for row in rows}
