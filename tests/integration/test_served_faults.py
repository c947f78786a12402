"""Flows that `flows.serve` starts by itself: the server or the serving process killed at work, runs cancelled."""

import json
import sys
from pathlib import Path

import psutil

from tests.held_graph import ONCE, Outcome, at_work, begun, graph, let_go, outcome
from tests.optional import slow_with
from tests.served import PATIENCE, Served, below, ended, gone, log, running, serving, until

pytestmark = slow_with("prefect", "dvc", "psutil")

OFTEN = ("--interval-minutes", "0.25", "--name", "often")


def test_a_pipeline_at_intervals_runs_what_changed_and_outlives_its_server(tmp_path: Path, undisturbed: Outcome) -> None:
    root = graph(tmp_path / "repository", "points")
    with serving(tmp_path, root, *OFTEN) as served:
        until("a run that fires by itself", lambda: at_work(root, "points"))
        run_id = (root / ".cache/flow-run").read_text()
        # The server is killed while a stage is at work, and starts again; the run goes on.
        served.kill_server()
        until("another server", lambda: "starting it again" in served.output.read_text() and served.is_up())
        let_go(root, "points")
        until("the end of the run", lambda: served.state_of(run_id) == "COMPLETED")
        assert outcome(root) == undisturbed
        assert begun(root) == ONCE

        def messages() -> list[str]:
            completed = served.ask("/flow_runs/filter", flow_runs={"state": {"type": {"any_": ["COMPLETED"]}}})
            return [run["state"]["message"] for run in completed]

        until("a run that finds nothing to do", lambda: "4 stages are up to date: 0 ran, 4 cached" in messages())
        assert begun(root) == ONCE
        (root / "raw.txt").write_text("raw again", encoding="utf-8")
        until("the change", lambda: (root / "source.txt").read_text() == "raw again" and begun(root)["report"] == 2)


def test_a_killed_serving_process_leaves_nothing_and_the_next_one_goes_on(tmp_path: Path, undisturbed: Outcome) -> None:
    """The process that serves is worker and keeper of the server at once."""
    root = graph(tmp_path / "repository", "points")
    with serving(tmp_path, root, *OFTEN) as served:
        until("a run", lambda: at_work(root, "points"))
        run_id = (root / ".cache/flow-run").read_text()
        running = below(served.process)
        served.process.kill()
        assert gone(running)
    assert (root / "points").read_text() == "1\n"
    let_go(root, "points")
    with serving(tmp_path, root, *OFTEN) as served:
        until("the stages", lambda: len(ended(root)) == len(ONCE))
        assert served.state_of(run_id) == "CRASHED"
        until("no run at work", lambda: served.slots() == 0)
    assert outcome(root) == undisturbed
    assert begun(root) == {**ONCE, "points": 2}


def cancel(served: Served, root: Path, running: list[psutil.Process]) -> None:
    """Cancel the run of a repository on the server, and wait until it and its processes have ended."""
    run_id = (root / ".cache/flow-run").read_text()
    assert running
    served.ask(f"/flow_runs/{run_id}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
    assert gone(running)
    until("the end of the run", lambda: served.state_of(run_id) == "CANCELLED")
    assert (root / "points").read_text() == "1\n"


def test_a_cancelled_run_ends_with_its_stage_and_a_run_by_hand_goes_on(tmp_path: Path) -> None:
    root = graph(tmp_path / "repository", "points")
    with serving(tmp_path, root, *OFTEN) as served:
        until("a run", lambda: at_work(root, "points"))
        served.stop_schedule()
        cancel(served, root, served.processes("dvc"))
        assert begun(root)["points"] == 1
        # A run by hand is cancelled as well, the next one ends.
        before = log(root)
        with running([sys.executable, "-m", "flows.pipeline"], root, served.environment, tmp_path / "said") as process:
            until("the stage", lambda: at_work(root, "points", before))
            cancel(served, root, below(process))
            assert process.wait(PATIENCE) == 1
        said = (tmp_path / "said").read_text().splitlines()
        assert said[-1] == "error: cancelled; the next run continues with the remaining stages"
        let_go(root, "points")
        ended = served.pipeline(root)
        assert (ended.returncode, json.loads(ended.stdout)) == (0, {"status": 0, "reports": []})
    assert (root / "points").read_text() == "1\n2\n3\n"
    assert begun(root) == {**ONCE, "points": 3}
