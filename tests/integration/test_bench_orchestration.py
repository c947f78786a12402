"""The benchmark of the orchestration, made small: every part measures something, through the real commands."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tasks.bench.orchestration import command
from tasks.bench.orchestration.command import PARTS, QUICK, TARGETS
from tasks.bench.orchestration.record import record_costs
from tasks.errors import InputError

NEEDED = ("prefect", "dvc", "psutil", "mlflow")
pytestmark = pytest.mark.skipif(not all(map(importlib.util.find_spec, NEEDED)), reason="prefect, dvc or mlflow is missing")


@pytest.mark.slow
def test_every_part_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    command.main(["--quick", "--json", str(file)])
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert found == json.loads(file.read_text(encoding="utf-8"))
    assert [line.split()[0] for line in lines[: len(PARTS)]] == list(PARTS)
    assert set(TARGETS) <= set(found)
    counts = {name: found.pop(name) for name in ("experiments_lost", "experiments_doubled", "quick")}
    assert counts == {"experiments_lost": 0, "experiments_doubled": 0, "quick": True}
    assert found["experiments"] == QUICK.experiments
    assert QUICK.experiments <= found["experiments_stages_begun"] <= QUICK.experiments + 2 * QUICK.kills
    assert all(value > 0 for name, value in found.items() if isinstance(value, int | float) and name != "busy_before")


def test_points_recorded_both_ways_are_all_found_and_timed(tmp_path: Path) -> None:
    found = record_costs(tmp_path, 40, 4)
    assert set(found) >= {"mlflow_s_per_300_points", "mlflow_client_s_per_300_points"}
    assert all(seconds > 0 for seconds in found.values())


def test_a_record_that_is_not_whole_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.bench.orchestration.record.upload_all", lambda *_: (1, []))
    with pytest.raises(InputError, match="MLflow holds 0 of 4 runs"):
        record_costs(tmp_path, 3, 1)
