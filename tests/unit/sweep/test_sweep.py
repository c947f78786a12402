"""The stage sweep: calibration targets for tables, early refusals, and its command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tasks import config
from tasks import sweep as stage
from tasks.corpora.example import Example, write_jsonl
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.beam import BeamSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.cascades import TokenCascadeSettings
from tasks.decoding.methods.early_exit import CalmSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.errors import InputError
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import DecodingCounts, FailedRow, MeasuredRow, TimedRow
from tasks.evaluation.sweep.grid import VANILLA, SweepPoint
from tasks.loaded_pair import calibration_targets, require_composable
from tasks.schema import Params, Task
from tests.toys import prefix_pair, says

NO_TABLES = [VANILLA, SweepPoint("token_cascade", TokenCascadeSettings()), SweepPoint("bild", BildSettings(drafter="copy"))]


class Letters:
    """A tokenizer: the code of each letter, then 1."""

    eos_token_id = 1

    def __call__(self, texts: list[str], *, max_length: int, truncation: bool) -> dict[str, Any]:
        return {"input_ids": [[*map(ord, text[: max_length - 1]), 1] for text in texts]}


@pytest.mark.parametrize("drafter", ["unigram", "bigram", "suffix"])
def test_the_calibration_set_is_read_for_points_that_draft_from_it(tmp_path: Path, drafter: str) -> None:
    file = tmp_path / "calibration.jsonl"
    write_jsonl([Example("a source", ("ab",)), Example("another", ("cdefgh", "not the first"))], file)
    grid = [*NO_TABLES, SweepPoint("speculative", SpeculativeSettings(drafter=drafter))]
    assert calibration_targets(grid, file, Letters(), 5) == [[97, 98, 1], [99, 100, 101, 102, 1]]
    assert calibration_targets(NO_TABLES, file, Letters(), 5) == []


def test_a_missing_or_empty_calibration_set_is_refused(tmp_path: Path) -> None:
    file, grid = tmp_path / "calibration.jsonl", [SweepPoint("bild", BildSettings(drafter="bigram"))]
    assert calibration_targets(NO_TABLES, file, Letters(), 5) == []
    with pytest.raises(InputError, match=r"calibration\.jsonl is missing; run the stage that makes it"):
        calibration_targets(grid, file, Letters(), 5)
    file.touch()
    with pytest.raises(InputError, match=r"calibration\.jsonl is empty; run the stage calibrate again"):
        calibration_targets(grid, file, Letters(), 5)


@pytest.mark.parametrize(
    ("point", "sampling", "message"),
    [
        (SweepPoint("calm", CalmSettings()), SamplingSettings(), "sweep.grid asks for calm: .* needs the layers"),
        (
            SweepPoint("speculative", SpeculativeSettings(drafter="heads")),
            SamplingSettings(),
            "speculative: .* train it with draft_heads",
        ),
        (
            SweepPoint("beam_large", BeamSettings()),
            SamplingSettings(temperature=1.0),
            "sweep.grid asks for beam_large: .*temperature",
        ),
    ],
)
def test_points_that_the_pair_cannot_run_are_refused_first(point: SweepPoint, sampling: SamplingSettings, message: str) -> None:
    pair, request = prefix_pair(says([2]), says([3])), Request(5, sampling)
    require_composable(NO_TABLES, pair, request)
    with pytest.raises(InputError, match=message):
        require_composable([*NO_TABLES, point], pair, request)


def test_the_command_line_says_how_many_processes_share_a_sweep() -> None:
    params = Params(active={"toy": Path()}, tasks={"toy": Task(metric="bleu")})
    assert stage.with_workers(params, None) is params
    assert stage.with_workers(params, 3).machine.workers == 3
    shared = stage.with_workers(params, None, "tcp://127.0.0.1:8786").machine
    assert (shared.workers, shared.dask) == (1, "tcp://127.0.0.1:8786")
    assert shared.alone() == params.machine.alone()
    with pytest.raises(InputError, match="--workers: workers"):
        stage.with_workers(params, 0)


def test_a_sweep_without_a_measured_point_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["sweep", "--task", "toy", "--arm", "aligned"])
    monkeypatch.setattr(config, "load", lambda path: Params(active={"toy": Path()}, tasks={"toy": Task(metric="bleu")}))
    header: dict[str, Any] = {"drafter": "aligned", "split": "validation", "method": "bild", "settings": {"max_draft": 3}}
    measured = MeasuredRow(**header, lossless=False, metric="bleu", quality={}, counts=DecodingCounts(tokens=1))
    timed = joined(TimedRow, measured, latency_ms=[1.0], vanilla_latency_ms=[1.0], speedup=1.0)
    one, both = (joined(FailedRow, measured, error=f"RuntimeError: {name}") for name in ("one", "all"))
    outcomes = [[timed, measured, one], [both, both]]
    monkeypatch.setattr(stage, "sweep", lambda *_: (outcomes.pop(0), PairRecord(runtime="native code")))
    stage.main()
    printed = capsys.readouterr()
    failed, counts = printed.err.splitlines()
    assert counts == "toy/aligned: 3 points, 1 timed, 1 failed (native code)"
    assert all(fact in failed for fact in ("validation", "bild", "'max_draft': 3", "RuntimeError: one"))
    with pytest.raises(InputError, match="every point of the sweep failed; the first: RuntimeError: all"):
        stage.main()
