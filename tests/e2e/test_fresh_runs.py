"""Two fresh runs of the pipeline with one thread give the same: data, calibration, models, and rows but for times."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import environment, make_clone, outcome, repro, smallest
from tests.optional import slow_with
from tests.served import until

pytestmark = slow_with("dvc")


def fresh(folder: Path, *, killed: bool) -> dict[str, Any]:
    """Run the pipeline in a new clone, which is removed; if `killed`, kill it after its first checkpoint and run it again."""
    clone = make_clone(folder, smallest)
    if killed:
        variables = environment(clone)
        with subprocess.Popen(["dvc", "repro", "--quiet"], cwd=clone, env=variables, start_new_session=True) as process:
            try:
                until("a checkpoint", lambda: list((clone / ".cache/resume").rglob("SHA256SUMS")))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL, "it ended before it was killed"
    repro(clone)
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
