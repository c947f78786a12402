"""A sweep of a toy task, and what stands for its run in MLflow."""

import math
from pathlib import Path
from typing import Any, Self

import pytest

from tasks import loaded_pair
from tasks import sweep as stage
from tasks.config import Params, Task
from tasks.decoding.inference import DEFAULT, DecodingPair
from tasks.decoding.method import Pair
from tasks.decoding.pair_folder import PairManifest
from tasks.evaluation.results.codec import encode
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import SweepRow
from tasks.evaluation.settings import GridSettings
from tasks.evaluation.sweep.clock import PointTimer
from tasks.evaluation.sweep.grid import Drafter
from tasks.evaluation.sweep.run import Grids
from tasks.loaded_pair import LoadedPair
from tasks.models.settings import TextSettings
from tasks.paths import TaskPaths
from tests.architectures import models
from tests.sweeps import Row, plain
from tests.ticking import LIMIT, Words, here, sweep_settings

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
    manifest = PairManifest(DEFAULT, TextSettings(), chosen="")
    whole = DecodingPair(pair, {"small": small, "large": large}, Words(), "cpu", manifest)
    return LoadedPair(whole, pair, [PATHS.split("validation"), PATHS.split("test")])


def use(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sweeps load this pair for each drafter, and time in this process."""

    def timer(task: Task, grids: Grids) -> PointTimer:
        return PointTimer(dict.fromkeys(grids, pair), task.sweep, "cpu")

    monkeypatch.setattr(loaded_pair, "load_drafter", lambda *_: opened(pair))
    monkeypatch.setattr(loaded_pair, "open_timer", lambda _, task, __, grids, *___: timer(task, grids))
    monkeypatch.setattr(loaded_pair, "point_timer", lambda _, task, grids: timer(task, grids))
    monkeypatch.setattr(stage, "start_elsewhere", lambda open_timer, close: here(open_timer(0)))


def swept(*grid: GridSettings, metric: str = "bleu", arm: str = "aligned", **changed: Any) -> list[Row]:
    settings = sweep_settings(grid=list(grid), latency_examples=3, **changed)
    task = Task(metric=metric, text=TextSettings(max_source_tokens=32, max_target_tokens=LIMIT), sweep=settings)
    rows, pairs = stage.sweep(Params(active={"toy": Path("corpus")}, tasks={"toy": task}), task, PATHS, [arm])
    assert rows.keys() == pairs.keys() == {Drafter(arm, 1)}
    return plain(rows[Drafter(arm, 1)])


def named(rows: list[Row]) -> set[tuple[str, str, str]]:
    return {(row["split"], row["method"], str(row["settings"])) for row in rows}
