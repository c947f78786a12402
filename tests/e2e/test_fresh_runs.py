"""Two fresh runs of the pipeline with one thread give the same: data, calibration, models, and rows but for times."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tasks.files import checksum
from tests.e2e.conftest import environment, make_clone, run_in, smaller
from tests.optional import slow_with
from tests.served import until

pytestmark = slow_with("dvc")

TIMED = {"latency_ms", "vanilla_latency_ms", "speedup", "speedup_interval", "rounds", "timed_mismatches", "predicted"}
"""Columns that a clock fills."""
CHOSEN = {"how", "why", "shown"}
"""Columns that only timed points have; the predicted times choose these."""


def outcome(clone: Path) -> dict[str, Any]:
    """Return checksums of data and models, and the rows on validation: which points go on to test depends on times."""
    files = [file for part in ("data/translation", "models") for file in (clone / part).rglob("*") if file.is_file()]
    found: dict[str, Any] = {str(file.relative_to(clone)): checksum(file) for file in files}
    for file in (clone / "results").rglob("rows.jsonl"):
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            if row["split"] == "validation":
                name = f"{file.relative_to(clone)} {row['method']} {row['settings']}"
                found[name] = {key: row[key] for key in row.keys() - TIMED - CHOSEN - {"sha256"}}
    return found


def fresh(folder: Path, *, killed: bool) -> dict[str, Any]:
    """Run the pipeline in a new clone, which is removed; if `killed`, kill it after its first checkpoint and run it again."""

    def shrink(params: dict[str, Any]) -> dict[str, Any]:
        params["tasks"]["translation"]["seeds"] = [1]
        return smaller(params)

    clone = make_clone(folder, shrink)
    if killed:
        variables = environment(clone)
        with subprocess.Popen(["dvc", "repro", "--quiet"], cwd=clone, env=variables, start_new_session=True) as process:
            try:
                until("a checkpoint", lambda: list((clone / ".cache/resume").rglob("SHA256SUMS")))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL, "it ended before it was killed"
    done = run_in(clone, "dvc", "repro")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = outcome(clone)
    shutil.rmtree(clone)
    return found


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed run gives."""
    return fresh(tmp_path_factory.mktemp("first") / "project", killed=False)


@pytest.mark.parametrize("killed", [False, True], ids=["undisturbed", "killed"])
def test_a_fresh_run_gives_the_same(first: dict[str, Any], killed: bool, tmp_path: Path) -> None:
    found = fresh(tmp_path / "project", killed=killed)
    assert sum(name.endswith(".safetensors") for name in first) >= 4 and any("rows.jsonl" in name for name in first)
    assert found == first, sorted(name for name in found | first if found.get(name) != first.get(name))
