"""Workers of a Prefect work pool on PostgreSQL: killed in each stage, or with their machine; another worker goes on."""

import contextlib
import datetime
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.held_graph import GRAPH, KILLED_IN_EACH, ONCE, Outcome, at_work, begun, graph, kill_in_each_stage, let_go, outcome
from tests.optional import slow_with
from tests.served import below, environment, until
from tests.services import NO_POSTGRES, POSTGRES, free_port, postgres, prefect_server
from tests.work_pool import HEARTBEAT, VARIABLES, WorkPool, deployable, kill_machine

pytestmark = [*slow_with("prefect", "dvc", "psycopg2"), pytest.mark.skipif(POSTGRES is None, reason=NO_POSTGRES)]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkPool]:
    folder = tmp_path_factory.mktemp("pool")
    variables = environment(folder) | VARIABLES
    with postgres("prefect") as database:
        address = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database.url("prefect", "postgresql+asyncpg")}
        with prefect_server(folder, variables | database.variables | address, free_port()) as url:
            found = WorkPool(folder, variables | {"PREFECT_API_URL": url}, url)
            found.create(2, deployable(graph(folder / "repository")))
            yield found


def deployed(pool: WorkPool, root: Path) -> Path:
    """Deploy the pipeline of a repository under the name of its folder."""
    pool.prefect(deployable(root, pipeline=root.name), "--no-prompt", "deploy", "--name", root.name)
    return root


def test_a_worker_killed_in_each_stage_ends_as_an_undisturbed_run(pool: WorkPool, tmp_path: Path, undisturbed: Outcome) -> None:
    root = deployed(pool, graph(tmp_path / "each", *GRAPH))
    runs: list[str] = []

    @contextlib.contextmanager
    def started() -> Iterator[subprocess.Popen[bytes]]:
        runs.append(pool.start_run("each"))
        with pool.worker("doomed") as worker:
            yield worker

    kill_in_each_stage(root, started)
    # Each run noticed the end of its worker, and left the deployment free for the next one.
    assert {pool.state_of(run) for run in runs} <= {"FAILED", "CRASHED"}
    with pool.worker("last"):
        assert pool.message_at_end(pool.start_run("each")) == "4 stages are up to date: 1 ran, 3 cached"
    assert outcome(root) == undisturbed
    assert begun(root) == KILLED_IN_EACH


def projects_of(worker: subprocess.Popen[bytes]) -> set[str]:
    """The repositories in which a worker's runs have a `dvc` at work."""
    found = set()
    for process in below(worker):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "dvc" in process.cmdline():
                found.add(Path(process.cwd()).name)
    return found


def test_two_workers_share_runs_and_a_killed_machine_loses_none(pool: WorkPool, tmp_path: Path, undisturbed: Outcome) -> None:
    roots = {name: deployed(pool, graph(tmp_path / name, "report")) for name in ("first", "second")}
    soon = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=20)).isoformat()
    scheduled = {"type": "SCHEDULED", "state_details": {"scheduled_time": soon}}
    runs = {name: pool.start_run(name, state=scheduled) for name in roots}
    with pool.worker("two") as other:
        with pool.worker("one") as doomed:
            until("both runs", lambda: all(at_work(root, "report") for root in roots.values()))
            by_worker = [projects_of(doomed), projects_of(other)]
            assert sorted(map(sorted, by_worker)) == [["first"], ["second"]]
            [lost], [kept] = by_worker
            time.sleep(HEARTBEAT + 10)  # the automation counts from a heartbeat
            kill_machine(doomed)
        for root in roots.values():
            let_go(root, "report")
        assert pool.message_at_end(runs[kept]) == "4 stages are up to date: 4 ran, 0 cached"
        until("the automation", lambda: pool.state_of(runs[lost]) == "CRASHED")
        assert pool.message_at_end(pool.start_run(lost)) == "4 stages are up to date: 1 ran, 3 cached"
    assert begun(roots[kept]) == ONCE
    assert begun(roots[lost]) == {**ONCE, "report": 2}
    assert outcome(roots[kept]) == outcome(roots[lost]) == undisturbed
