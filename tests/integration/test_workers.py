"""A Prefect server on PostgreSQL, a process work pool and two workers; the database and a worker are killed."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks import supervisor
from tests.served import PATIENCE, ROOT, At, environment, log, repository, until
from tests.services import NO_POSTGRES, POSTGRES, Postgres, free_port, postgres, prefect_server

MISSING = [name for name in ("prefect", "dvc", "psycopg2") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"missing of the extras orchestration and servers: {', '.join(MISSING)}"),
    pytest.mark.skipif(POSTGRES is None, reason=NO_POSTGRES),
]

PREFECT = [sys.executable, "-m", "prefect"]
STAGES: dict[str, Any] = {
    "source": {"cmd": "echo source >> log; cp raw.txt source.txt", "deps": ["raw.txt"], "outs": ["source.txt"]},
    "work": {
        "cmd": "echo work >> log; while test -e hold; do sleep 0.1; done; cp source.txt work.txt",
        "deps": ["source.txt"],
        "outs": ["work.txt"],
    },
}
HEARTBEAT = 30
"""Seconds; Prefect allows none that are more frequent."""
BETWEEN_REPORTS = 2.0
"""Seconds after which a run sends its log to the server."""


def project(folder: Path) -> Path:
    """A repository whose deployment is named after its folder: two that share a server need different names."""
    root = repository(folder, STAGES)
    (root / "hold").touch()
    for name in ("flows", "tasks"):
        (root / name).symlink_to(ROOT / name)
    text = (ROOT / "prefect.yaml").read_text(encoding="utf-8")
    for before, after in (("- name: pipeline", f"- name: {folder.name}"), ("within: 600", f"within: {2 * HEARTBEAT}")):
        assert before in text
        text = text.replace(before, after)
    (root / "prefect.yaml").write_text(text, encoding="utf-8")
    return root


@dataclass
class OnPostgres(At):
    """A Prefect server with its database."""

    database: Postgres


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OnPostgres]:
    variables = environment(tmp_path) | {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT)}
    with postgres("prefect") as database:
        address = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database.url("prefect", "postgresql+asyncpg")}
        with prefect_server(tmp_path, variables | database.variables | address, free_port()) as url:
            yield OnPostgres(tmp_path, variables | {"PREFECT_API_URL": url}, url, database)


@contextlib.contextmanager
def worker(server: At, name: str) -> Iterator[psutil.Process]:
    """Run a worker that takes one run at a time; yield the process above all of its."""
    command = [*PREFECT, "worker", "start", "--pool", "draftline", "--name", name, "--limit", "1"]
    with (
        (server.folder / f"worker-{name}.log").open("ab") as output,
        supervisor.running(
            command, cwd=server.folder, env=server.environment, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        yield psutil.Process(process.pid)


def projects_of(worker: psutil.Process) -> set[str]:
    """The repositories in which a worker's runs have a `dvc` at work."""
    found = set()
    for process in worker.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "dvc" in process.cmdline():
                found.add(Path(process.cwd()).name)
    return found


def test_a_database_killed_during_a_stage_costs_no_run(server: OnPostgres, tmp_path: Path) -> None:
    root = repository(tmp_path / "alone", STAGES)
    (root / "hold").touch()
    command = [sys.executable, "-m", "flows.pipeline", "--retries", "0"]
    with (tmp_path / "flow.log").open("wb") as output:
        process = subprocess.Popen(command, cwd=root, env=server.environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            until("the stage", lambda: "work" in log(root) or process.poll() is not None)
            server.database.kill()
            time.sleep(2 * BETWEEN_REPORTS)
            assert process.poll() is None
            server.database.start()
            (root / "hold").unlink()
            status = process.wait(PATIENCE)
        finally:
            process.kill()
    assert status == 0, (tmp_path / "flow.log").read_text(encoding="utf-8")
    assert log(root) == ["source", "work"]
    [run] = server.ask("/flow_runs/filter", flow_runs={"state": {"type": {"any_": ["COMPLETED"]}}})
    assert run["state"]["message"] == "2 stages are up to date: 2 ran, 0 cached"


def test_two_workers_share_scheduled_runs_and_a_killed_one_loses_none(server: At, tmp_path: Path) -> None:
    roots = {name: project(tmp_path / name) for name in ("first", "second")}

    def run(root: Path, *words: str) -> None:
        done = subprocess.run(
            [*PREFECT, *words], cwd=root, env=server.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run(tmp_path, "work-pool", "create", "draftline", "--type", "process")
    run(tmp_path, "work-pool", "set-concurrency-limit", "draftline", "2")
    for name, root in roots.items():
        run(root, "--no-prompt", "deploy", "--name", name)
    run(roots["first"], "automation", "create", "--from-file", "prefect.yaml")
    deployments = {one["name"]: one["id"] for one in server.ask("/deployments/filter")}
    soon = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=20)).isoformat()
    scheduled = {"type": "SCHEDULED", "state_details": {"scheduled_time": soon}}
    runs = {name: server.ask(f"/deployments/{deployments[name]}/create_flow_run", state=scheduled)["id"] for name in roots}
    with worker(server, "two") as other:
        with worker(server, "one") as doomed:
            until("both runs", lambda: all("work" in log(root) for root in roots.values()))
            by_worker = [projects_of(doomed), projects_of(other)]
            assert sorted(map(sorted, by_worker)) == [["first"], ["second"]]
            [lost], [kept] = by_worker
            time.sleep(HEARTBEAT + 10)  # the automation counts from a heartbeat
            everything = doomed.children(recursive=True)
            for process in everything:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            assert not psutil.wait_procs(everything, timeout=PATIENCE)[1]
        for root in roots.values():
            (root / "hold").unlink()
        until("the undisturbed run", lambda: server.run(runs[kept])["state"]["type"] == "COMPLETED")
        until("the automation", lambda: server.run(runs[lost])["state"]["type"] == "CRASHED")
        again = server.ask(f"/deployments/{deployments[lost]}/create_flow_run")["id"]
        until("the run started again", lambda: server.run(again)["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED"))
        assert server.run(again)["state"]["message"] == "2 stages are up to date: 1 ran, 1 cached"
    assert sorted(log(roots[kept])) == ["source", "work"]
    assert sorted(log(roots[lost])) == ["source", "work", "work"]
    assert all((root / "work.txt").read_text(encoding="utf-8") == "raw" for root in roots.values())
