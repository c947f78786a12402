"""A small sweep of a toy pair in a folder; a second object on the same folder simulates the next process."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tasks.decoding.method import Request
from tasks.decoding.methods.beam import BeamSettings
from tasks.decoding.methods.bild import BildOracleSettings, BildSettings
from tasks.decoding.methods.cascades import SequenceCascadeSettings, TokenCascadeSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.evaluation.results.codec import encode
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.pair import Costs, SweepPlan
from tasks.evaluation.results.rows import SweepRow, read_rows
from tasks.evaluation.sweep.fan_out import FanOut
from tasks.evaluation.sweep.grid import SweepPoint
from tasks.evaluation.sweep.replay import Split
from tasks.evaluation.sweep.rows import RowWriter
from tasks.evaluation.sweep.run import SweepRunner, TaskSweep, measured_costs
from tests.ticking import ALIGNED, Clock, evaluator_of, here, split_of, sweep_settings, ticking_pair

GRID = [
    *(
        SweepPoint("bild", BildSettings(fallback_threshold=fallback, rollback_threshold=rollback))
        for fallback in (0.1, 0.2, 0.4, 0.6)
        for rollback in (0.5, 2.0, math.inf)
    ),
    *(SweepPoint("speculative", SpeculativeSettings(draft_length=length)) for length in (1, 2, 3, 5, 20, 30)),
    *(SweepPoint("token_cascade", TokenCascadeSettings(deferral_cost=cost)) for cost in (0.3, 0.6, 0.9)),
    SweepPoint("sequence_cascade", SequenceCascadeSettings(deferral_cost=0.6)),
    SweepPoint("bild_oracle", BildOracleSettings(rollback_threshold=0.5)),
    SweepPoint("beam_large", BeamSettings(beams=2)),
]
ORACLE, BEAMS = GRID[-2:]
FEW = [*GRID[:3], *GRID[12:14], *GRID[18:]]
"""Some of each method, where a test needs no more."""
TIMES = {"latency_ms", "vanilla_latency_ms", "speedup", "speedup_interval", "shown"}
MEASURED = ("quality", "quality_interval", "quality_difference_interval", "signature", "counts")


Row = dict[str, Any]
"""A row as the file holds it."""


class Sweep:
    """A sweep in a folder; a second object on the same folder simulates the next process."""

    def __init__(
        self,
        folder: Path,
        *,
        on_row: Callable[[SweepRow], object] = id,
        work: str = "this work",
        fan_out: FanOut | None = None,
        request: Request | None = None,
        **settings: Any,
    ) -> None:
        self.path = folder / "rows.jsonl"
        clock, sweep = Clock(), sweep_settings(**settings)
        self.pair = ticking_pair(clock)
        self.validation, self.test = (split_of(self.pair, sweep, name) for name in ("validation", "test"))
        self.evaluator = evaluator_of(self.pair, sweep, request, clock)
        self.writer = RowWriter(self.evaluator, SweepRowFile(self.path, work), "toy", "aligned", on_row)
        self._cache, self._fan_out = folder / work, fan_out
        self._validated: list[SweepRow] = []
        self.plan: SweepPlan | None = None

    def validate(self, grid: Sequence[SweepPoint] = GRID, split: Split | None = None) -> list[Row]:
        whole = self._whole(grid)
        self._validated = whole.validate(split or self.validation)[ALIGNED]
        self.plan = whole.plans[ALIGNED]
        return plain(self._validated)

    def report(self) -> list[Row]:
        """Chooses among the rows of the last validation, and measures the choices on test."""
        return plain(self._whole(GRID).report({ALIGNED: self._validated}, self.test)[ALIGNED])

    def _whole(self, grid: Sequence[SweepPoint]) -> TaskSweep:
        costs: Costs | None = None
        if self.evaluator.sweep.plan:
            request, timer = self.evaluator.request, self.evaluator.timer
            costs = measured_costs(self._cache / "costs.json", self.validation, request, lambda: timer)
        runner = SweepRunner(ALIGNED, self.writer, self._cache, self._fan_out, costs)
        return TaskSweep({ALIGNED: runner}, {ALIGNED: grid}, here(self.evaluator.timer))


def plain(rows: Iterable[SweepRow]) -> list[Row]:
    """Rows as the file holds them."""
    return [encode(row, omit_null=True) for row in rows]


def in_file(path: Path) -> list[Row]:
    """The rows of a file, as plain values without its version."""
    return plain(read_rows(path, "run the sweep again"))


def name_of(row: Row) -> tuple[str, str]:
    return row["method"], str(row["settings"])


def by_name(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    found = {name_of(row): row for row in rows}
    assert len(found) == len(rows)
    return found


def named(*points: SweepPoint) -> set[tuple[str, str]]:
    return {(point.method, str(point.plain_settings)) for point in points}


Planned = tuple[Sweep, list[Row], list[Row]]
"""A finished sweep with its rows of validation and test."""
