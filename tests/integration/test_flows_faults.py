"""Flows, worker and server killed in each stage, cancelled, started twice: nothing finished runs again, and nothing is lost.

In the toy graph each command waits in its middle for as long as `hold-STAGE` exists. `points` appends to an output that DVC
keeps (`persist`), as a sweep does with its rows: three points, the second of them held.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.served import PATIENCE, ROOT, At, PrefectApi, Served, ended, environment, log, repository, serving, until
from tests.services import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("prefect", "dvc", "psutil")), reason="prefect or dvc is missing"
    ),
]


def held(name: str, command: str) -> str:
    """A command that writes its name to `log`, then waits while it is held, then does its work."""
    return f"echo {name} >> log; while test -e hold-{name}; do sleep 0.1; done; {command}"


EACH_POINT = "grep -qsx $p points || {{ while test -e hold-points -a $p = 2; do sleep 0.1; done; echo $p >> points; }}".format()
GRAPH: dict[str, Any] = {
    "source": {"cmd": held("source", "cp raw.txt source.txt"), "deps": ["raw.txt"], "outs": ["source.txt"]},
    "left": {"cmd": held("left", "cp source.txt left.txt"), "deps": ["source.txt"], "outs": ["left.txt"]},
    "points": {
        "cmd": f"echo points >> log; for p in 1 2 3; do {EACH_POINT}; done",
        "deps": ["source.txt"],
        "outs": [{"points": {"persist": True}}],
    },
    "report": {"cmd": held("report", "cat left.txt points > table.md"), "deps": ["left.txt", "points"], "outs": ["table.md"]},
}
NEEDS = {"source": (), "left": ("source",), "points": ("source",), "report": ("left", "points")}


def graph(folder: Path, *holds: str) -> Path:
    root = repository(folder, GRAPH)
    for name in holds:
        (root / f"hold-{name}").touch()
    return root


def let_go(folder: Path, name: str) -> None:
    (folder / f"hold-{name}").unlink()


def at_work(folder: Path, name: str, before: Sequence[str] = ()) -> bool:
    """Whether a stage waits in its middle, and with it all that can run; `before` is the log as it was when the run began."""
    done, entered = set(ended(folder)), log(folder)
    can_run = [one for one, needs in NEEDS.items() if one not in done and done.issuperset(needs)]
    return name in can_run and all(
        entered.count(one) > before.count(one)
        and (folder / f"hold-{one}").exists()
        and (one != "points" or (folder / "points").exists())
        for one in can_run
    )


def outcome(folder: Path) -> tuple[Any, dict[str, str]]:
    """What DVC recorded, and the outputs themselves."""
    recorded = yaml.safe_load((folder / "dvc.lock").read_text())
    return recorded, {name: (folder / name).read_text() for name in ("source.txt", "left.txt", "points", "table.md")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, str]]:
    """The outcome of a run by DVC alone."""
    root = graph(tmp_path_factory.mktemp("undisturbed") / "repository")
    subprocess.run([sys.executable, "-m", "dvc", "repro", "--quiet"], cwd=root, check=True)
    assert sorted(log(root)) == sorted(GRAPH)
    return outcome(root)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A process that serves a graph of its own once a year: its server is what runs by hand report to."""
    base = tmp_path_factory.mktemp("server")
    with serving(base, graph(base / "repository"), "--cron", "0 3 1 1 *", "--name", "rare") as one:
        yield one


@contextlib.contextmanager
def flow(server: Served, folder: Path, module: str = "flows.pipeline") -> Iterator[subprocess.Popen[str]]:
    """Run a flow by hand; at the end of the block it must have ended."""
    command = [sys.executable, "-m", module, "--retries", "0"]
    with subprocess.Popen(
        command, cwd=folder, env=server.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def below(process: subprocess.Popen[Any]) -> list[Any]:
    import psutil

    return list(psutil.Process(process.pid).children(recursive=True))


def gone(processes: list[Any]) -> bool:
    import psutil

    return not psutil.wait_procs(processes, timeout=PATIENCE)[1]


def test_a_flow_killed_in_each_stage_ends_as_an_undisturbed_one(
    server: Served, tmp_path: Path, undisturbed: tuple[Any, dict[str, str]]
) -> None:
    root = graph(tmp_path / "repository", *GRAPH)
    for name in GRAPH:
        if name == "points":  # it is held beside `left`, in which the run before was killed
            assert (root / "points").read_text() == "1\n"
        before = log(root)
        with flow(server, root) as process:
            until(f"{name} at work", lambda: at_work(root, name, before) or process.poll() is not None)  # noqa: B023
            assert process.poll() is None
            running = below(process)
            process.kill()
        assert gone(running), f"killed in {name}, it left a process behind"
        let_go(root, name)
    done = server.pipeline(root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 stages are up to date" in done.stdout
    assert outcome(root) == undisturbed
    # Each stage was killed once in its middle; `points` also when it was held beside `left`. None ran after it had ended.
    assert {name: log(root).count(name) for name in GRAPH} == {"source": 2, "left": 2, "points": 3, "report": 2}
    runs = server.ask("/flow_runs/filter", flows={"name": {"any_": ["pipeline"]}})
    mine = sorted((run["start_time"], run["state"]["type"]) for run in runs)[-5:]
    assert [state for _, state in mine] == ["CRASHED"] * 4 + ["COMPLETED"]


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
    assert sorted(log(root)) == sorted(GRAPH)


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
    assert log(root).count("source") == log(root).count("left") == 1


def state_of(served: PrefectApi, run_id: str) -> str:
    return str(served.run(run_id)["state"]["type"])


def processes_of(served: Served, words: str) -> list[Any]:
    """The processes below the serving one whose command line contains these words."""
    import psutil

    found = []
    for process in psutil.Process(served.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if words in " ".join(process.cmdline()) else []
    return found


def test_watch_fires_by_itself_only_for_changes_and_outlives_its_server(
    tmp_path: Path, undisturbed: tuple[Any, dict[str, str]]
) -> None:
    root = graph(tmp_path / "repository", "points")
    with serving(tmp_path, root, "--watch-minutes", "0.25", "--name", "often") as served:
        until("a run that fires by itself", lambda: at_work(root, "points"))
        run_id = (root / ".cache/flow-run").read_text()
        # The server is killed while a stage is at work, and starts again; the run goes on.
        killed = processes_of(served, "prefect server start")
        assert killed
        for process in killed:
            with contextlib.suppress(Exception):
                process.kill()
        assert gone(killed)
        until("another server", lambda: "starting it again" in served.output.read_text() and is_up(served))
        let_go(root, "points")
        until("the end of the run", lambda: state_of(served, run_id) == "COMPLETED")
        assert outcome(root) == undisturbed
        assert sorted(log(root)) == sorted(GRAPH)

        def unchanged() -> Any:
            return served.ask("/flow_runs/filter", flow_runs={"state": {"name": {"any_": ["Unchanged"]}}})

        found = until("a look that finds nothing", unchanged)
        assert found[0]["state"]["message"] == "nothing changed: 4 stages are up to date with their sources"
        assert sorted(log(root)) == sorted(GRAPH)
        (root / "raw.txt").write_text("raw again", encoding="utf-8")
        until("the change", lambda: (root / "source.txt").read_text() == "raw again" and log(root).count("report") == 2)


def is_up(served: Served) -> bool:
    from flows.server import is_up

    return is_up(served.url())


def test_a_killed_serving_process_leaves_nothing_and_the_next_one_goes_on(
    tmp_path: Path, undisturbed: tuple[Any, dict[str, str]]
) -> None:
    """The process that serves is worker and keeper of the server at once."""
    root = graph(tmp_path / "repository", "points")
    options = ("--watch-minutes", "0.25", "--name", "often")
    with serving(tmp_path, root, *options) as served:
        until("a run", lambda: at_work(root, "points"))
        run_id = (root / ".cache/flow-run").read_text()
        running = below(served.process)
        served.process.kill()
        assert gone(running)
    assert (root / "points").read_text() == "1\n"
    let_go(root, "points")
    with serving(tmp_path, root, *options) as served:
        until("the stages", lambda: len(ended(root)) == len(GRAPH))
        assert state_of(served, run_id) == "CRASHED"
        until("no run at work", lambda: served.slots() == 0)
    assert outcome(root) == undisturbed
    assert {name: log(root).count(name) for name in GRAPH} == {"source": 1, "left": 1, "points": 2, "report": 1}


def test_a_served_run_that_is_cancelled_ends_with_its_stage(tmp_path: Path) -> None:
    root = graph(tmp_path / "repository", "points")
    with serving(tmp_path, root, "--watch-minutes", "0.25", "--name", "often") as served:
        until("a run", lambda: at_work(root, "points"))
        run_id = (root / ".cache/flow-run").read_text()
        running = processes_of(served, "dvc")
        assert running
        served.ask(f"/flow_runs/{run_id}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
        assert gone(running)
        until("the end of the run", lambda: state_of(served, run_id) == "CANCELLED")
        assert (root / "points").read_text() == "1\n"
        let_go(root, "points")
        # Watch waits for a change of a source.
        named = {"state": {"name": {"any_": ["Unchanged"]}}}
        look = until("another look", lambda: served.ask("/flow_runs/filter", flow_runs=named))[0]
        assert look["state"]["message"].startswith(f"nothing changed since flow run {run_id}, which was cancelled")
        assert log(root).count("points") == 1


@contextlib.contextmanager
def running(command: list[str], folder: Path, variables: dict[str, str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs until the end of the block."""
    with output.open("ab") as file:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_all_deployments_of_prefect_yaml_run_on_a_worker(tmp_path: Path, undisturbed: tuple[Any, dict[str, str]]) -> None:
    """The commands of docs/operations.md; then the worker is killed in a stage, and another one is started."""
    from flows.server import is_up

    root = graph(tmp_path / "repository", "points")
    for name in ("flows", "tasks"):
        (root / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "prefect.yaml", root)
    # Heartbeats as frequent as Prefect allows, and an automation that waits for three of them.
    text = (root / "prefect.yaml").read_text(encoding="utf-8")
    assert "within: 600" in text
    (root / "prefect.yaml").write_text(text.replace("within: 600", "within: 60"), encoding="utf-8")
    port = free_port()
    variables = environment(tmp_path) | {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
    prefect = [sys.executable, "-m", "prefect"]
    url = f"http://127.0.0.1:{port}/api"
    start = [*prefect, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with running(start, root, variables, tmp_path / "server") as process:
        until("the server", lambda: is_up(url) or process.poll() is not None)
        variables["PREFECT_API_URL"] = url

        def run(*words: str) -> str:
            done = subprocess.run([*prefect, *words], cwd=root, env=variables, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        run("work-pool", "create", "draftline", "--type", "process")
        run("work-pool", "set-concurrency-limit", "draftline", "1")
        run("--no-prompt", "deploy", "--all")
        run("automation", "create", "--from-file", "prefect.yaml")
        served = At(root, variables, url)
        deployments = {one["name"]: one for one in served.ask("/deployments/filter")}
        assert set(deployments) == {"nightly", "watch", "pipeline"}
        schedules = {name: [entry["schedule"] for entry in one["schedules"]] for name, one in deployments.items()}
        assert schedules["nightly"][0]["cron"] == "0 3 * * *"
        assert schedules["watch"][0]["interval"] == 3600
        assert all(one["global_concurrency_limit"]["limit"] == 1 for one in deployments.values())

        run_id = served.ask(f"/deployments/{deployments['nightly']['id']}/create_flow_run")["id"]
        work = [*prefect, "worker", "start", "--pool", "draftline", "--name", "one"]
        with running(work, root, variables, tmp_path / "worker") as worker:
            until("the run", lambda: at_work(root, "points"))
            everything = [*below(worker)]
            time.sleep(40)  # one heartbeat, which the automation waits for the next of
            worker.kill()
            for one in everything:  # the machine is gone, not the worker alone
                with contextlib.suppress(Exception):
                    one.kill()
            assert gone(everything)
        assert state_of(served, run_id) == "RUNNING"
        until("the automation", lambda: state_of(served, run_id) == "CRASHED")
        let_go(root, "points")
        again = served.ask(f"/deployments/{deployments['nightly']['id']}/create_flow_run")["id"]
        with running(work, root, variables, tmp_path / "worker"):
            until("the second run", lambda: state_of(served, again) in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"))
        assert served.run(again)["state"]["message"] == "4 stages are up to date: 2 ran, 2 cached"
    assert outcome(root) == undisturbed
    assert {name: log(root).count(name) for name in GRAPH} == {"source": 1, "left": 1, "points": 2, "report": 1}
