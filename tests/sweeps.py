"""A small sweep of a toy pair, in a folder: what is made again on the same folder is the next process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasks.decoding.settings import (
    BeamSettings,
    BildOracleSettings,
    BildSettings,
    SequenceCascadeSettings,
    SpeculativeSettings,
    TokenCascadeSettings,
)
from tasks.decoding.strategies import Request
from tasks.evaluation.rows import Row, RowFile
from tasks.evaluation.sweeping.points import SweepPoint
from tasks.evaluation.sweeping.row_writer import RowWriter
from tasks.evaluation.sweeping.runner import SweepRunner
from tests.ticking import Clock, TickingDecoder, evaluator_of, split_of, sweep_settings, ticking_pair

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
TIMES = {"latency_ms", "vanilla_latency_ms", "speedup", "speedup_interval", "shown"}
JUDGED = ("quality", "quality_interval", "quality_difference_interval", "signature", "counts")


class Sweep:
    """A sweep in a folder; made again on the same folder it is the next process."""

    def __init__(
        self,
        folder: Path,
        *,
        finished: Callable[[Row], object] = id,
        work: str = "this work",
        request: Request | None = None,
        **settings: Any,
    ) -> None:
        self.path = folder / "rows.jsonl"
        clock, sweep = Clock(), sweep_settings(**settings)
        self.pair = ticking_pair(clock)
        self.validation, self.test = (split_of(self.pair, sweep, name) for name in ("validation", "test"))
        self.evaluator = evaluator_of(self.pair, clock, sweep, request)
        rows = RowFile(self.path, work)
        self.runner = SweepRunner(
            RowWriter(self.evaluator, rows, {"task": "toy", "drafter": "aligned"}, finished), folder / work
        )

    def validate(self, grid: Sequence[SweepPoint] = GRID) -> list[Row]:
        return self.runner.validate(grid, self.validation)

    def large(self) -> TickingDecoder:
        assert isinstance(self.pair.large, TickingDecoder)
        return self.pair.large


def name_of(row: Row) -> tuple[str, str]:
    return row["method"], str(row["settings"])


def by_name(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    found = {name_of(row): row for row in rows}
    assert len(found) == len(rows)
    return found


def named(*points: SweepPoint) -> set[tuple[str, str]]:
    return {name_of(point.fields()) for point in points}


Planned = tuple[Sweep, list[Row], list[Row]]
"""A sweep that went through, and its rows of validation and test."""
