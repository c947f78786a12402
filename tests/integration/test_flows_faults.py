"""A flow started by hand that is cancelled on the server: it ends with its stage, and no work is lost.

`tests/e2e/test_killed_flows.py` kills flows and servers in each stage of the real pipeline.
"""

import subprocess
import sys
from pathlib import Path

from tests.held_graph import ONCE, at_work, begun, graph, let_go
from tests.optional import slow_with
from tests.served import PATIENCE, below, gone, serving, until

pytestmark = slow_with("prefect", "dvc", "psutil")


def test_a_run_by_hand_that_is_cancelled_on_the_server_ends_and_keeps_its_work(tmp_path: Path) -> None:
    """A process that serves a graph of its own once a year keeps the server that runs by hand report to."""
    (tmp_path / "server").mkdir()
    yearly = ("--cron", "0 3 1 1 *", "--name", "rare")
    root = graph(tmp_path / "repository", "points")
    command = [sys.executable, "-m", "flows.pipeline", "--retries", "0"]
    with serving(tmp_path / "server", graph(tmp_path / "server" / "repository"), *yearly) as server:
        with subprocess.Popen(command, cwd=root, env=server.environment, stderr=subprocess.PIPE, text=True) as process:
            try:
                until("the stage", lambda: at_work(root, "points"))
                running = below(process)
                run_id = (root / ".cache/flow-run").read_text()
                server.ask(f"/flow_runs/{run_id}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
                _, errors = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
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
