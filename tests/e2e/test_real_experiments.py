"""Experiments on the project's own pipeline: kept by DVC with verdict and record, compared, and applied."""

import contextlib
import json
import re
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.commands import git
from tests.e2e.conftest import copy_of, read_params, run_in, stages_run
from tests.optional import slow_with

pytestmark = slow_with("dvc", "mlflow")

BETAS = (0.3, 0.7)
NAMES = ["jensen-1", "jensen-2"]
_PATIENCE, _PAUSE = 3600.0, 10.0


def test_two_experiments_are_kept_compared_and_applied(undisturbed: Path, tmp_path: Path) -> None:
    clone = copy_of(undisturbed, tmp_path)
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "results")
    before = read_params(clone)
    align = "tasks.translation.align"
    queue(clone, "jensen", f"+{align}.loss=jensen_shannon", f"+{align}.beta={','.join(map(str, BETAS))}")
    queue(clone, "wrong", f"+{align}.beta=7")
    with worker(clone):
        assert ended(clone) == {**dict.fromkeys(NAMES, "Success"), "wrong": "Failed"}
    # The stages that the setting concerns ran, and no other ones.
    for name in NAMES:
        logged = stages_run(dvc(clone, "queue", "logs", name))
        assert Counter(logged) == {f"{stage}@translation": 1 for stage in ("control", "align", "sweep", "report")}
    refused = [line for line in dvc(clone, "queue", "logs", "wrong").splitlines() if line.startswith("error: ")]
    assert len(refused) == 1 and "beta is 7" in refused[0]
    assert set(dvc(clone, "exp", "list", "--name-only").split()) == set(NAMES)
    assert read_params(clone) == before
    assert git(clone, "status", "--porcelain") == ""

    results = [f"{name}:results/translation" for name in NAMES]
    found = json.loads(run(clone, "tasks.compare", *results, "--json"))
    assert ["experiment", *NAMES] in found["differing"]
    assert "models/translation/aligned/1" in {name for name, *_ in found["differing"]}
    assert found["numbers"]

    # The record is that of the repository, by DVC's name of the experiment.
    with contextlib.closing(sqlite3.connect(clone / "mlflow.db")) as database:
        joined = "SELECT tags.value, runs.name FROM runs JOIN tags USING (run_uuid)"
        runs = database.execute(f"{joined} WHERE tags.key = 'experiment' AND status = 'FINISHED'").fetchall()
    for name in NAMES:
        assert [runs.count((name, run)) for run in ("align aligned seed 1", "sweep aligned", "report")] == [1, 1, 1]

    dvc(clone, "exp", "apply", NAMES[0])
    assert read_params(clone)["tasks"]["translation"]["align"]["beta"] == BETAS[0]
    applied = json.loads((clone / "results/translation/summary.json").read_text(encoding="utf-8"))
    assert applied["verdict"]["headline"]
    assert weights(clone) != weights(undisturbed)
    assert "Running stage" not in dvc(clone, "repro")


def queue(clone: Path, name: str, *settings: str) -> None:
    dvc(clone, "exp", "run", "--queue", "--name", name, *(word for one in settings for word in ("--set-param", one)))


@contextlib.contextmanager
def worker(clone: Path) -> Iterator[None]:
    """Run a worker of DVC until the end of the block, and no longer; two may meet in DVC's locks."""
    dvc(clone, "queue", "start")
    try:
        yield
    finally:
        dvc(clone, "queue", "stop", "--kill")


def ended(clone: Path) -> dict[str, str]:
    """Wait until no experiment is queued or running, and return how each ended."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        found = re.findall(r"^\w+ +(\S+) .* (Queued|Running|Failed|Success)$", dvc(clone, "queue", "status"), re.MULTILINE)
        if not {"Queued", "Running"} & {state for _, state in found}:
            return dict(found)
        time.sleep(_PAUSE)
    raise AssertionError(f"waited {_PATIENCE:g} s for {found}")


def dvc(clone: Path, *words: str) -> str:
    return run(clone, "dvc", *words)


def run(clone: Path, *words: str) -> str:
    """Run a module in a clone, with MLflow (not hidden), and return what it says."""
    done = run_in(clone, sys.executable, "-m", *words, PYTHONPATH=str(clone))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout if "--json" in words else done.stdout + done.stderr


def weights(clone: Path) -> bytes:
    return (clone / "models/translation/aligned/1/model.safetensors").read_bytes()
