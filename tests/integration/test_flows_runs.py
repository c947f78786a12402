"""The flow with a real Prefect server and a real DVC in toy repositories: scheduled, run by hand, failed, killed.

One process serves a flow on a schedule for all tests; runs that are started by hand report to its server. Each command of a
toy repository appends a line to `log`, which DVC does not track.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("prefect", "dvc", "psutil")), reason="prefect or dvc is missing"
)

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0
"""Time limit in seconds for every wait; the machine may be busy."""
MADE = "mkdir -p results && cp source.txt results/table.md"
STAGES: dict[str, Any] = {
    "report": {"cmd": f"echo report >> log; {MADE}", "deps": ["left.txt", "right.txt"], "outs": ["results/table.md"]},
    "left": {"cmd": "echo left >> log; cp source.txt left.txt", "deps": ["source.txt"], "outs": ["left.txt"]},
    "right": {"cmd": "echo right >> log; cp source.txt right.txt", "deps": ["source.txt"], "outs": ["right.txt"]},
    "source": {
        "cmd": "echo source >> log; echo $PREFECT__FLOW_RUN_ID >> run; echo '| a |' > source.txt",
        "deps": ["raw.txt"],
        "outs": ["source.txt"],
    },
}


def until(what: str, found: Callable[[], Any]) -> Any:
    """Ask twice a second until the answer is true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if answer := found():
            return answer
        time.sleep(0.5)
    raise AssertionError(f"waited {PATIENCE:g} s for {what}")


def repository(folder: Path, stages: dict[str, Any]) -> Path:
    """Make a git and DVC repository with these stages."""
    folder.mkdir()
    for command in (["git", "init", "--quiet"], [sys.executable, "-m", "dvc", "init", "--quiet"]):
        subprocess.run(command, cwd=folder, check=True)
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}), encoding="utf-8")
    (folder / "raw.txt").write_text("raw", encoding="utf-8")
    return folder


def log(folder: Path) -> list[str]:
    file = folder / "log"
    return file.read_text().split() if file.exists() else []


def ended(folder: Path) -> list[str]:
    """Return the stages whose outputs DVC has recorded."""
    file = folder / "dvc.lock"
    return list(yaml.safe_load(file.read_text())["stages"]) if file.exists() else []


@dataclass
class Served:
    """The process that serves the first toy repository, and its server."""

    process: subprocess.Popen[bytes]
    folder: Path
    output: Path
    environment: dict[str, str]

    def url(self) -> str:
        return (Path(self.environment["PREFECT_HOME"]) / "served").read_text()

    def ask(self, path: str, **body: Any) -> Any:
        """Return the answer of the server's API to a POST; a server whose database is busy says so, and is asked again."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 (loopback)
            f"{self.url()}{path}", data, {"Content-Type": "application/json"}
        )

        def answer() -> tuple[Any] | None:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as found:  # noqa: S310 (loopback)
                    return (json.loads(found.read() or "null"),)
            except HTTPError as error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                return None

        return until(f"an answer to {path}", answer)[0]

    def deployment(self) -> Any:
        (deployment,) = self.ask("/deployments/filter")
        return deployment

    def pause(self) -> None:
        """Stop the schedule, and wait for a scheduled run that may be at work."""
        self.ask(f"/deployments/{self.deployment()['id']}/pause_deployment")
        until("the last scheduled run", lambda: self.slots() == 0)

    def slots(self) -> int:
        """Return the number of runs that count towards the deployment's limit of one."""
        return int(self.deployment()["global_concurrency_limit"]["active_slots"])

    def run(self, run_id: str) -> Any:
        (run,) = self.ask("/flow_runs/filter", flow_runs={"id": {"any_": [run_id]}})
        return run

    def tasks(self, run_id: str) -> dict[str, str]:
        """Return the state of each task of a flow run; the server learns of them with a delay."""
        runs = self.ask("/task_runs/filter", flow_runs={"id": {"any_": [run_id]}})
        return {run["name"]: run["state_name"] for run in runs}

    def pipeline(self, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Start a run by hand in a repository, and wait for it."""
        return subprocess.run(
            [sys.executable, "-m", "flows.pipeline", "--retries", "0"],
            cwd=folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("served")
    folder, output = repository(base / "repository", STAGES), base / "output"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(base / "prefect")}
    (base / "prefect").mkdir()
    with output.open("wb") as file:
        command = [sys.executable, "-m", "flows.serve", "--interval-minutes", "0.2", "--name", "often"]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        one = Served(process, folder, output, environment)
        until("the server", lambda: process.poll() is not None or b"serving pipeline/often" in output.read_bytes())
        assert process.poll() is None, output.read_text()
        yield one
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_a_scheduled_run_fires_and_runs_the_graph(served: Served) -> None:
    finished = until(
        "a finished run of the schedule",
        lambda: served.ask("/flow_runs/filter", flow_runs={"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED"]}}}),
    )
    assert [run["state"]["type"] for run in finished] == ["COMPLETED"] * len(finished), served.output.read_text()
    first = min(finished, key=lambda run: run["start_time"])
    assert first["auto_scheduled"]
    assert first["state"]["message"] == "4 stages are up to date: 4 ran, 0 cached"
    served.pause()
    source, *middle, report = log(served.folder)
    assert (source, sorted(middle), report) == ("source", ["left", "right"], "report")
    assert (served.folder / "run").read_text().strip() == first["id"]
    done = dict.fromkeys(STAGES, "Completed")
    until("the states of the tasks", lambda: served.tasks(first["id"]) == done)
    runs = {"id": {"any_": [first["id"]]}}
    artifacts = {artifact["key"]: artifact["data"] for artifact in served.ask("/artifacts/filter", flow_runs=runs)}
    assert artifacts["report-report"] == "| a |\n"
    assert {(row["stage"], row["state"]) for row in json.loads(artifacts["stages"])} == {(name, "ran") for name in STAGES}


def test_a_failed_stage_is_named_and_the_rest_still_runs(served: Served, tmp_path: Path) -> None:
    stages = STAGES | {"left": {**STAGES["left"], "cmd": "echo the reason; exit 3"}}
    folder = repository(tmp_path / "repository", stages)
    # Found by address alone, as a server of the user's own is.
    result = served.pipeline(folder, PREFECT_API_URL=served.url(), PREFECT_HOME=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "error: stage 'left' failed: the reason"
    assert log(folder) == ["source", "right"]
    run_id = (folder / "run").read_text().strip()
    state = served.run(run_id)["state"]
    assert (state["type"], state["message"]) == ("FAILED", "stage 'left' failed: the reason")
    ended = {"source": "Completed", "right": "Completed", "left": "Failed", "report": "NotReady"}
    until("the states of the tasks", lambda: served.tasks(run_id) == ended)


def test_a_killed_run_leaves_no_process_and_the_next_run_continues(served: Served, tmp_path: Path) -> None:
    import psutil

    # The command waits for as long as `go` is missing.
    slow = "echo left >> log; test -e go || sleep 300; cp source.txt left.txt"
    folder = repository(tmp_path / "repository", STAGES | {"left": {**STAGES["left"], "cmd": slow}})
    command = [sys.executable, "-m", "flows.pipeline"]
    killed = subprocess.Popen(command, cwd=folder, env=served.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until("the slow stage", lambda: "left" in log(folder))
        # A stage that has ended is in the lock file; its command ends a little before that.
        until("the other stage", lambda: "right" in ended(folder))
        below = psutil.Process(killed.pid).children(recursive=True)
        assert any(process.name() == "sleep" for process in below)
    finally:
        killed.kill()
        killed.wait()
    assert psutil.wait_procs(below, timeout=PATIENCE)[1] == []

    run_id = (folder / "run").read_text().strip()
    assert served.run(run_id)["state"]["type"] == "RUNNING"
    (folder / "go").touch()
    result = served.pipeline(folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 stages are up to date: 2 ran, 2 cached" in result.stdout + result.stderr
    assert served.run(run_id)["state"]["type"] == "CRASHED"
    assert sorted(log(folder)) == ["left", "left", "report", "right", "source"]


def test_runs_of_a_dead_serving_process_are_marked_as_crashed(served: Served) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.stale_runs import mark_all_crashed

    served.pause()
    path = f"/deployments/{served.deployment()['id']}/create_flow_run"
    scheduled = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2100-01-01T00:00:00Z"}}
    stale, waiting = (served.ask(path, state=scheduled)["id"] for _ in range(2))
    served.ask(f"/flow_runs/{stale}/set_state", state={"type": "PENDING"})
    assert served.slots() == 1
    with temporary_settings({PREFECT_API_URL: served.url()}):
        assert mark_all_crashed("another", "often") == 0
        assert mark_all_crashed("pipeline", "often") == 1
    assert served.run(stale)["state"]["type"] == "CRASHED"
    assert served.run(waiting)["state"]["type"] == "SCHEDULED"
    assert served.slots() == 0


def test_stopping_leaves_no_process(served: Served) -> None:
    import psutil

    below = psutil.Process(served.process.pid).children(recursive=True)
    assert any("prefect" in " ".join(process.cmdline()) for process in below)
    served.process.terminate()
    served.process.wait(PATIENCE)
    assert psutil.wait_procs(below, timeout=PATIENCE)[1] == []
    assert served.url() == ""
