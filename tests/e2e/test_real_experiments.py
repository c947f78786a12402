"""Experiments on the project's own pipeline: kept by DVC with verdict and record, compared, and applied."""

import contextlib
import json
import sqlite3
import sys
from collections import Counter
from pathlib import Path

import yaml

from tests.e2e.conftest import copy_of, read_params, run_in, stages_run
from tests.optional import slow_with
from tests.served import Served
from tests.toy_project import git

pytestmark = slow_with("prefect", "dvc", "psutil", "mlflow")

BETAS = (0.3, 0.7)
NAMES = [f"translation.align.beta={beta},translation.align.loss=jensen_shannon" for beta in BETAS]


def test_two_experiments_are_kept_compared_and_applied(undisturbed: Path, served: Served, tmp_path: Path) -> None:
    clone = copy_of(undisturbed, tmp_path)
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "results")
    before = read_params(clone)
    align = "tasks.translation.align"
    grid = tmp_path / "grid.yaml"
    grid.write_text(yaml.safe_dump({f"{align}.beta": list(BETAS)}), encoding="utf-8")
    shown = run(clone, served, "-m", "flows.experiment", "--set", f"{align}.loss=jensen_shannon", "--grid", str(grid))
    assert "2 experiments are done" in shown
    # The stages that the setting concerns ran, and no other ones.
    for name in NAMES:
        logged = stages_run(run(clone, served, "-m", "dvc", "queue", "logs", name))
        assert Counter(logged) == {f"{stage}@translation": 1 for stage in ("control", "align", "sweep", "report")}
    assert read_params(clone) == before
    assert git(clone, "status", "--porcelain") == ""

    results = [f"{name}:results/translation" for name in NAMES]
    found = json.loads(run(clone, served, "-m", "tasks.compare", *results, "--json"))
    assert ["experiment", *NAMES] in found["differing"]
    assert "models/translation/aligned/1" in {name for name, *_ in found["differing"]}
    assert found["numbers"]

    # The record is that of the repository, by DVC's name of the experiment.
    with contextlib.closing(sqlite3.connect(clone / "mlflow.db")) as database:
        joined = "SELECT tags.value, runs.name FROM runs JOIN tags USING (run_uuid)"
        runs = database.execute(f"{joined} WHERE tags.key = 'experiment' AND status = 'FINISHED'").fetchall()
    for name in NAMES:
        assert [runs.count((name, run)) for run in ("align aligned seed 1", "sweep aligned", "report")] == [1, 1, 1]

    run(clone, served, "-m", "dvc", "exp", "apply", NAMES[0])
    assert read_params(clone)["tasks"]["translation"]["align"]["beta"] == BETAS[0]
    applied = json.loads((clone / "results/translation/summary.json").read_text(encoding="utf-8"))
    assert applied["verdict"]["headline"]
    assert weights(clone) != weights(undisturbed)
    assert "Running stage" not in run(clone, served, "-m", "dvc", "repro")


def run(clone: Path, served: Served, *words: str) -> str:
    """Run a module in a clone, with MLflow (not hidden) and the Prefect server of `served`, and return what it says."""
    prefect = {name: served.environment[name] for name in ("PREFECT_HOME", "PREFECT_SERVER_ANALYTICS_ENABLED")}
    done = run_in(clone, sys.executable, *words, PYTHONPATH=str(clone), **prefect)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout if "--json" in words else done.stdout + done.stderr


def weights(clone: Path) -> bytes:
    return (clone / "models/translation/aligned/1/model.safetensors").read_bytes()
