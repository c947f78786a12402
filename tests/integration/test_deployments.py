"""The deployments of `prefect.yaml`, made and run by the commands of docs/operations.md; the worker's machine is killed."""

import time
from pathlib import Path

from tests.held_graph import ONCE, Outcome, at_work, begun, graph, let_go, outcome
from tests.optional import slow_with
from tests.served import environment, until
from tests.services import free_port, prefect_server
from tests.work_pool import HEARTBEAT, VARIABLES, WorkPool, deployable, kill_machine

pytestmark = slow_with("prefect", "dvc", "psutil")


def test_all_deployments_of_prefect_yaml_run_on_a_worker(tmp_path: Path, undisturbed: Outcome) -> None:
    root = deployable(graph(tmp_path / "repository", "points"))
    variables = environment(tmp_path) | VARIABLES
    with prefect_server(tmp_path, variables, free_port()) as url:
        pool = WorkPool(tmp_path, variables | {"PREFECT_API_URL": url}, url)
        pool.create(1, root)
        pool.prefect(root, "--no-prompt", "deploy", "--all")
        deployments = pool.deployments()
        assert set(deployments) == {"nightly", "pipeline"}
        schedules = {name: [entry["schedule"] for entry in one["schedules"]] for name, one in deployments.items()}
        assert schedules["nightly"][0]["cron"] == "0 3 * * *" and not schedules["pipeline"]
        assert all(one["global_concurrency_limit"]["limit"] == 1 for one in deployments.values())

        run_id = pool.start_run("nightly")
        with pool.worker("one") as worker:
            until("the run", lambda: at_work(root, "points"))
            time.sleep(HEARTBEAT + 10)  # the automation counts from a heartbeat
            kill_machine(worker)
        assert pool.state_of(run_id) == "RUNNING"
        until("the automation", lambda: pool.state_of(run_id) == "CRASHED")
        let_go(root, "points")
        with pool.worker("one"):
            assert pool.message_at_end(pool.start_run("nightly")) == "4 stages are up to date: 2 ran, 2 cached"
    assert outcome(root) == undisturbed
    assert begun(root) == {**ONCE, "points": 2}
