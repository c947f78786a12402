"""A flow started by hand: it or its server killed in each stage, cancelled, started twice. No stage that ended runs again."""

import contextlib
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.held_graph import GRAPH, KILLED_IN_EACH, ONCE, Outcome, at_work, begun, graph, kill_in_each_stage, let_go, outcome
from tests.optional import slow_with
from tests.served import PATIENCE, Served, below, ended, gone, running, serving, until

pytestmark = slow_with("prefect", "dvc", "psutil")

FLOW = [sys.executable, "-m", "flows.pipeline", "--retries", "0"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A process that serves a graph of its own once a year: its server is what runs by hand report to."""
    base = tmp_path_factory.mktemp("server")
    with serving(base, graph(base / "repository"), "--cron", "0 3 1 1 *", "--name", "rare") as one:
        yield one


@contextlib.contextmanager
def flow(server: Served, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a flow by hand; at the end of the block it must have ended."""
    with subprocess.Popen(
        FLOW, cwd=folder, env=server.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_flow_killed_in_each_stage_ends_as_an_undisturbed_one(server: Served, tmp_path: Path, undisturbed: Outcome) -> None:
    root = graph(tmp_path / "repository", *GRAPH)
    kill_in_each_stage(root, functools.partial(flow, server, root))
    done = server.pipeline(root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 stages are up to date" in done.stdout
    assert outcome(root) == undisturbed
    assert begun(root) == KILLED_IN_EACH
    runs = server.ask("/flow_runs/filter", flows={"name": {"any_": ["pipeline"]}})
    mine = sorted((run["start_time"], run["state"]["type"]) for run in runs)[-5:]
    assert [state for _, state in mine] == ["CRASHED"] * 4 + ["COMPLETED"]


def test_a_server_killed_in_each_stage_costs_no_run(server: Served, tmp_path: Path, undisturbed: Outcome) -> None:
    """Each stage ends while the server is away."""
    root, output = graph(tmp_path / "repository", *GRAPH), tmp_path / "output"
    # A busy machine takes long to start a server: the flow asks for more than a minute.
    variables = server.environment | {"PREFECT_CLIENT_MAX_RETRIES": "8"}
    with running(FLOW, root, variables, output) as process:
        for name in GRAPH:
            until(f"{name} at work", lambda: at_work(root, name) or process.poll() is not None)  # noqa: B023
            assert process.poll() is None, output.read_text()
            run_id = (root / ".cache/flow-run").read_text()
            server.kill_server()
            let_go(root, name)
            until(f"the end of {name}", lambda: name in ended(root))  # noqa: B023
            until("another server", server.is_up)
        assert process.wait(PATIENCE) == 0, output.read_text()
    assert server.run(run_id)["state"]["message"] == "4 stages are up to date: 4 ran, 0 cached"
    assert outcome(root) == undisturbed
    assert begun(root) == ONCE


def test_a_second_flow_in_a_repository_is_refused(server: Served, tmp_path: Path) -> None:
    root = graph(tmp_path / "repository", "source")
    with flow(server, root) as first:
        until("the first flow", lambda: at_work(root, "source"))
        run_id = (root / ".cache/flow-run").read_text()
        second = server.pipeline(root)
        assert second.returncode == 1
        refusal = f"error: flow run {run_id} is at work in this repository; wait for it to end"
        assert second.stderr.splitlines()[-1] == refusal
        let_go(root, "source")
        output, errors = first.communicate(timeout=PATIENCE)
        assert first.returncode == 0, output + errors
    assert begun(root) == ONCE


def test_a_run_by_hand_that_is_cancelled_on_the_server_ends_and_keeps_its_work(server: Served, tmp_path: Path) -> None:
    root = graph(tmp_path / "repository", "points")
    with flow(server, root) as process:
        until("the stage", lambda: at_work(root, "points"))
        running = below(process)
        run_id = (root / ".cache/flow-run").read_text()
        server.ask(f"/flow_runs/{run_id}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        assert errors.splitlines()[-1] == "error: cancelled; the next run continues with the remaining stages"
    assert gone(running)
    assert server.run(run_id)["state"]["type"] == "CANCELLED"
    assert (root / "points").read_text() == "1\n"
    let_go(root, "points")
    # What somebody cancelled, watch does not start again, but a run by hand does.
    assert server.pipeline(root).returncode == 0
    assert (root / "points").read_text() == "1\n2\n3\n"
    assert begun(root) == {**ONCE, "points": 2}
