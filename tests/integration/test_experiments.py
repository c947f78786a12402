"""Experiments with real git, DVC and Prefect, cheap stages, and kills in between."""

import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.optional import slow_with
from tests.served import PATIENCE, At, environment, until
from tests.services import free_port, prefect_server
from tests.toy_project import STAGES, experiments, git, make_project, state_of

pytestmark = slow_with("prefect", "dvc", "psutil")

RATE = "tasks.toy.align.learning_rate"
NAME = "toy.align.learning_rate="
FAILS = f"if [ $DVC_EXP_NAME = {NAME}0.2 -a ! -e {{base}}/fixed ]; then echo the reason; exit 3; fi; "


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[At]:
    """A Prefect server for all tests of this file."""
    base = tmp_path_factory.mktemp("server")
    with prefect_server(base, environment(base), free_port()) as url:
        yield At(base, environment(base), url)


def start(server: At, project: Path, *options: str) -> subprocess.Popen[str]:
    """Start `flows.experiment`, which reports to the server."""
    variables = server.environment | {"PREFECT_API_URL": server.address, "PREFECT_LOGGING_TO_CONSOLE_LEVEL": "ERROR"}
    variables = {name: value for name, value in variables.items() if name != "MLFLOW_TRACKING_URI"}
    command = [sys.executable, "-m", "flows.experiment", *options]
    return subprocess.Popen(command, cwd=project, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(server: At, project: Path, *options: str) -> tuple[int, str]:
    """Run `flows.experiment` to its end and return its status and output."""
    process = start(server, project, *options)
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def make(base: Path, measure: str) -> Path:
    """Make a project whose last stage runs a command before it measures, and run the stages before that."""
    stages = STAGES | {"measure": {**STAGES["measure"], "cmd": f"{measure}{sys.executable} measure.py"}}
    stages["kept"] = {**STAGES["kept"], "cmd": f"echo kept >> {base}/kept; cp source.txt kept.txt"}
    project = make_project(base / "project", stages)
    subprocess.run([sys.executable, "-m", "dvc", "repro", "--quiet", "kept"], cwd=project, check=True)
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "ran")
    return project


def test_what_fails_stops_nobody_and_runs_again_once_it_is_fixed(server: At, tmp_path: Path) -> None:
    where = "import os; from tasks.tracking import *; print(os.environ['DVC_EXP_NAME'], outbox_folder(), tracking_uri())"
    project = make(tmp_path, f'{sys.executable} -c "{where}" >> {tmp_path}/record; ' + FAILS.format(base=tmp_path))
    before = state_of(project)
    options = ["--grid", str(tmp_path / "grid.yaml"), "--jobs", "2"]
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({RATE: [0.1, 0.2]}), encoding="utf-8")
    status, output = run(server, project, *options)
    assert (status, output.splitlines()[-1]) == (1, f"error: {NAME}0.2: failed: the reason")
    assert experiments(project) == {f"{NAME}0.1": 0.1}
    (tmp_path / "fixed").touch()
    status, output = run(server, project, *options)
    assert status == 0, output
    assert experiments(project) == {f"{NAME}0.1": 0.1, f"{NAME}0.2": 0.2}
    assert state_of(project) == before
    # Stages that were up to date were not run again, and records went to the repository itself.
    assert lines(tmp_path / "kept") == ["kept"]
    recorded = Counter(lines(tmp_path / "record"))
    database = f"sqlite:///{project / 'mlflow.db'}"
    assert recorded[f"{NAME}0.1 {project / '.cache' / 'mlflow-outbox'} {database}"] == 1
    assert run(server, project, *options)[0] == 0
    assert Counter(lines(tmp_path / "record")) == recorded, "what has a result is not run again"


COUNT, KILLS = 8, 2


def test_experiments_survive_kills(server: At, tmp_path: Path) -> None:
    """The flow is killed again and again, half of the times its workers too; in the end every experiment is there once.

    DVC's own queue alone does not do this: of 100 experiments, with its two workers killed six times, 89 were kept and 11 were
    shown as running for ever.
    """
    project = make(tmp_path, f"echo x >> {tmp_path}/runs; sleep 1; ")
    rates = [round(0.001 * number, 3) for number in range(1, COUNT + 1)]
    grid = tmp_path / "grid.yaml"
    grid.write_text(yaml.safe_dump({RATE: rates}), encoding="utf-8")
    before = state_of(project)

    def working() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if Path(process.cwd()).is_relative_to(project) and process.pid != os.getpid():
                    found.append(process)
        return found

    for kill in range(1, KILLS + 1):
        process = start(server, project, "--grid", str(grid), "--jobs", "2")
        enough = COUNT * kill // (KILLS + 1)
        until("some experiments", lambda enough=enough: len(experiments(project)) >= enough)  # type: ignore[misc]
        process.kill()
        process.communicate()
        while kill % 2 and (below := working()):
            for one in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(below, timeout=PATIENCE)
    status, output = run(server, project, "--grid", str(grid), "--jobs", "2")
    assert status == 0, output
    assert experiments(project) == {f"{NAME}{rate}": rate for rate in rates}
    # Each kill interrupts two at the most.
    assert COUNT <= len(lines(tmp_path / "runs")) <= COUNT + 2 * KILLS
    assert state_of(project) == before


def test_a_second_command_is_cancelled(server: At, tmp_path: Path) -> None:
    project = make(tmp_path, f"until test -e {tmp_path}/go; do sleep 0.2; done; ")
    first = start(server, project, "--set", f"{RATE}=0.3")
    try:
        until("its lock", lambda: (project / ".cache" / "experiments").exists())
        status, output = run(server, project, "--set", f"{RATE}=0.4")
        assert status == 1
        # The client of Prefect may add a line of its own behind it.
        assert "error: experiments are at work in this repository; wait for them to end" in output.splitlines()
    finally:
        (tmp_path / "go").touch()
        assert first.wait(PATIENCE) == 0
    assert experiments(project) == {f"{NAME}0.3": 0.3}
