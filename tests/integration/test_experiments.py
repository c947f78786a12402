"""Experiments by the command and on the page of Prefect, with real git, DVC and Prefect, cheap stages, and kills in between."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("prefect", "dvc", "psutil")), reason="prefect or dvc is missing"
)

if all(importlib.util.find_spec(name) for name in ("prefect", "dvc", "psutil")):
    from tests.served import PATIENCE, Served, serving, until
    from tests.toy_project import STAGES, experiments, git, make_project, state_of

RATE = "tasks.toy.align.learning_rate"
WAIT = "until test -e {base}/go; do sleep 0.2; done"
TOLD = "echo $DVC_EXP_NAME >> {base}/runs; echo $DVC_EXP_NAME $DRAFTLINE_OUTBOX $MLFLOW_TRACKING_URI >> {base}/record; "
FAILS = "if [ $DVC_EXP_NAME = learning_rate=0.2 -a ! -e {base}/fixed ]; then echo the reason; exit 3; fi; "


def stages(base: Path) -> dict[str, Any]:
    """Return stages whose last one says which experiment it works for, waits for the file `go`, and fails for a rate of 0.2."""
    measure = f"{TOLD}{FAILS}{WAIT}; {sys.executable} measure.py".format(base=base)
    return STAGES | {
        "kept": {**STAGES["kept"], "cmd": "cp source.txt kept.txt"},
        "measure": {**STAGES["measure"], "cmd": measure},
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve experiments of a project; its server is that of all tests."""
    base = tmp_path_factory.mktemp("served")
    (base / "go").touch()
    with serving(base, make_project(base / "project", stages(base)), "--experiments", "--name", "toy") as one:
        yield one


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project", stages(tmp_path))


def start(served: Served, project: Path, *options: str) -> subprocess.Popen[str]:
    """Start `flows.experiment`, which reports to the server."""
    environment = served.environment | {"PREFECT_API_URL": served.url(), "PREFECT_LOGGING_TO_CONSOLE_LEVEL": "ERROR"}
    environment = {name: value for name, value in environment.items() if name != "MLFLOW_TRACKING_URI"}
    command = [sys.executable, "-m", "flows.experiment", *options]
    return subprocess.Popen(command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(served: Served, project: Path, *options: str) -> tuple[int, str]:
    """Run `flows.experiment` to its end and return its status and output."""
    process = start(served, project, *options)
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def leftovers(project: Path) -> list[str]:
    kept = {path.name for path in (project / ".cache" / "experiments").iterdir()} - {"lock", ".gitignore"}
    return [*kept, *git(project, "worktree", "list").splitlines()[1:]]


@pytest.mark.slow
def test_the_page_offers_a_form_and_a_run_of_it_is_kept(served: Served) -> None:
    (deployment,) = until("the deployment", lambda: served.ask("/deployments/filter"))
    described = deployment["parameter_openapi_schema"]["properties"]["settings"]["properties"]["tasks"]["properties"]["toy"]
    assert described["properties"]["align"]["properties"]["beta"]["exclusiveMaximum"] == 1
    path = f"/deployments/{deployment['id']}/create_flow_run"

    def filled(**values: object) -> Any:
        return served.ask(path, parameters={"settings": {"tasks": {"toy": {"align": values}}}})

    for wrong in ({"learning_rate": "fast"}, {"learning_rate": 7}, {"learning_rat": 0.5}):
        with pytest.raises(HTTPError) as error:
            filled(**wrong)
        assert error.value.code in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
    before = state_of(served.folder)
    runs = [filled(learning_rate=rate)["id"] for rate in (0.5, 0.5)]
    until("both runs", lambda: all(served.run(one)["state"]["type"] not in ("SCHEDULED", "PENDING", "RUNNING") for one in runs))
    ended = [served.run(one)["state"] for one in runs]
    assert sorted(state["type"] for state in ended) == ["CANCELLED", "COMPLETED"]
    assert any(state["message"].startswith("learning_rate=0.5: done") for state in ended)
    assert experiments(served.folder) == {"learning_rate=0.5": 0.5}
    assert state_of(served.folder) == before


@pytest.mark.slow
def test_a_killed_queue_is_continued_and_what_fails_stops_nobody(served: Served, project: Path, tmp_path: Path) -> None:
    import psutil

    before = state_of(project)
    grid = tmp_path / "grid.yaml"
    grid.write_text(yaml.safe_dump({RATE: [0.1, 0.2, 0.3]}), encoding="utf-8")
    killed = start(served, project, "--grid", str(grid), "--jobs", "2", "--retries", "0")
    try:
        until("both processes", lambda: {"learning_rate=0.1", "learning_rate=0.3"} <= set(lines(tmp_path / "runs")))
        below = psutil.Process(killed.pid).children(recursive=True)
    finally:
        killed.kill()
        killed.communicate()
    assert psutil.wait_procs(below, timeout=PATIENCE)[1] == []
    (tmp_path / "go").touch()
    status, output = run(served, project, "--grid", str(grid), "--retries", "0")
    assert "known already: learning_rate=0.1: waiting" in output
    assert status == 1
    assert output.splitlines()[-1] == "error: learning_rate=0.2: failed: stage 'measure' failed: the reason"
    assert experiments(project) == {"learning_rate=0.1": 0.1, "learning_rate=0.3": 0.3}
    # What had ended was not run again; what had been killed was run once more.
    assert Counter(lines(tmp_path / "runs")) == {"learning_rate=0.1": 2, "learning_rate=0.2": 1, "learning_rate=0.3": 2}

    (tmp_path / "fixed").touch()
    status, output = run(served, project, "--retry")
    assert (status, output.splitlines()[-1][:24]) == (0, "learning_rate=0.2: done ")
    assert experiments(project) == {"learning_rate=0.1": 0.1, "learning_rate=0.2": 0.2, "learning_rate=0.3": 0.3}
    assert leftovers(project) == []
    assert state_of(project) == before
    # The runs of stages go into the record of the repository itself, under DVC's name of the experiment.
    database = f"sqlite:///{project / 'mlflow.db'}"
    assert f"learning_rate=0.2 {project / '.cache' / 'mlflow-outbox'} {database}" in lines(tmp_path / "record")


KILLS = 6


@pytest.mark.slow
def test_a_hundred_experiments_survive_kills(served: Served, tmp_path: Path) -> None:
    """Each has one stage. The processes are killed again and again; in the end every experiment is there once."""
    runs = tmp_path / "runs"
    only = {"measure": {**STAGES["measure"], "deps": ["measure.py"], "cmd": f"echo x >> {runs}; {sys.executable} measure.py"}}
    project = make_project(tmp_path / "project", only)
    rates = [round(0.001 * number, 3) for number in range(1, 101)]
    grid = tmp_path / "grid.yaml"
    grid.write_text(yaml.safe_dump({RATE: rates}), encoding="utf-8")
    before = state_of(project)
    for kill in range(1, KILLS + 1):
        process = start(served, project, "--grid", str(grid), "--jobs", "2")
        enough = 100 * kill // (KILLS + 1)
        until("some experiments", lambda enough=enough: len(experiments(project)) >= enough)  # type: ignore[misc]
        process.kill()
        process.communicate()
    status, output = run(served, project, "--grid", str(grid), "--jobs", "2")
    assert status == 0, output
    assert experiments(project) == {f"learning_rate={rate}": rate for rate in rates}
    # Each kill interrupts two at the most.
    assert 100 <= len(lines(runs)) <= 100 + 2 * KILLS
    assert leftovers(project) == []
    assert state_of(project) == before
