"""The flow with a real Prefect server and a real DVC in toy repositories: scheduled, run by hand, failed, ended.

One process serves a flow on a schedule for all tests; runs that are started by hand report to its server. Each command of a
toy repository appends a line to `log`, which DVC does not track.
"""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.served import PATIENCE, STAGES, Served, below, gone, log, repository, serving, spare_tables, until

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("prefect", "dvc", "psutil")), reason="prefect or dvc is missing"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("served")
    spare_tables(base)
    with serving(base, repository(base / "repository", STAGES), "--interval-minutes", "0.2", "--name", "often") as one:
        yield one


def test_a_scheduled_run_fires_and_runs_the_graph(served: Served) -> None:
    begun = {"state": {"type": {"any_": ["RUNNING", "COMPLETED", "FAILED", "CRASHED"]}}}
    until("a run of the schedule", lambda: served.ask("/flow_runs/filter", flow_runs=begun))
    served.pause()  # it ends; the next one would begin at once
    finished = served.ask("/flow_runs/filter", flow_runs=begun)
    assert [run["state"]["type"] for run in finished] == ["COMPLETED"] * len(finished), served.output.read_text()
    first = min(finished, key=lambda run: run["start_time"])
    assert first["auto_scheduled"]
    assert first["state"]["message"] == "4 stages are up to date: 4 ran, 0 cached"
    source, *middle, report = log(served.folder)
    assert (source, sorted(middle), report) == ("source", ["left", "right"], "report")
    assert (served.folder / "run").read_text().strip() == first["id"]
    done = dict.fromkeys(STAGES, "Completed")
    until("the states of the tasks", lambda: served.tasks(first["id"]) == done)
    runs = {"id": {"any_": [first["id"]]}}
    artifacts = {artifact["key"]: artifact["data"] for artifact in served.ask("/artifacts/filter", flow_runs=runs)}
    assert artifacts["verdict-report"] == "| a |\n"
    assert {(row["stage"], row["state"]) for row in json.loads(artifacts["stages"])} == {(name, "ran") for name in STAGES}


def test_a_failed_stage_is_named_and_the_rest_still_runs(served: Served, tmp_path: Path) -> None:
    from flows.pipeline import RUN_LOCK

    stages = STAGES | {"left": {**STAGES["left"], "cmd": "echo the reason; exit 3"}}
    folder = repository(tmp_path / "repository", stages)
    # An earlier run in this folder was killed.
    died = served.ask("/flow_runs/", flow_id=served.deployment()["flow_id"], state={"type": "RUNNING"})["id"]
    (folder / RUN_LOCK).parent.mkdir()
    (folder / RUN_LOCK).write_text(died)
    # Found by address alone, as a server of the user's own is.
    result = served.pipeline(folder, PREFECT_API_URL=served.url(), PREFECT_HOME=str(tmp_path))
    assert result.returncode == 1 and json.loads(result.stdout) == {"status": 1, "reports": []}
    assert result.stderr.splitlines()[-1] == "error: stage 'left' failed: the reason"
    assert log(folder) == ["source", "right"]
    assert served.run(died)["state"]["type"] == "CRASHED"
    run_id = (folder / "run").read_text().strip()
    state = served.run(run_id)["state"]
    assert (state["type"], state["message"]) == ("FAILED", "stage 'left' failed: the reason")
    ended = {"source": "Completed", "right": "Completed", "left": "Failed", "report": "NotReady"}
    until("the states of the tasks", lambda: served.tasks(run_id) == ended)


def test_runs_of_a_dead_serving_process_are_marked_as_crashed(served: Served) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.serve import _mark_all_crashed

    served.pause()
    path = f"/deployments/{served.deployment()['id']}/create_flow_run"
    scheduled = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2100-01-01T00:00:00Z"}}
    stale, waiting = (served.ask(path, state=scheduled)["id"] for _ in range(2))
    served.ask(f"/flow_runs/{stale}/set_state", state={"type": "PENDING"})
    assert served.slots() == 1
    with temporary_settings({PREFECT_API_URL: served.url()}):
        _mark_all_crashed("another", "often")
        assert served.run(stale)["state"]["type"] == "PENDING"
        _mark_all_crashed("pipeline", "often")
    assert served.run(stale)["state"]["type"] == "CRASHED"
    assert served.run(waiting)["state"]["type"] == "SCHEDULED"
    assert served.slots() == 0


def test_stopping_leaves_no_process(served: Served) -> None:
    running = below(served.process)
    assert any("prefect" in " ".join(process.cmdline()) for process in running)
    served.process.terminate()
    served.process.wait(PATIENCE)
    assert gone(running)
    assert served.url() == ""
