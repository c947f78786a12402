"""The project's own pipeline as a flow, killed in every stage: the flow itself, and the servers of Prefect and MLflow.

The results are those of a `dvc repro` that nobody disturbed: the same weights, byte by byte, and the same rows apart from what
is timed.
"""

import contextlib
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

import psutil

from tests.e2e.conftest import environment, make_clone, outcome, run_in, smaller, stages_run
from tests.mlflow_server import kill_server, start_server
from tests.optional import slow_with
from tests.served import PATIENCE, Served, below, ended, gone, running, send_runs, until
from tests.services import answers, free_port

pytestmark = slow_with("prefect", "dvc", "psutil", "mlflow")

TASK = "translation"
STAGES = {
    f"prepare@{TASK}": {"tasks.prepare"},
    f"finetune_large@{TASK}": {"tasks.finetune", "large"},
    f"finetune_small@{TASK}": {"tasks.finetune", "small"},
    f"calibrate@{TASK}": {"tasks.calibrate"},
    f"align@{TASK}": {"tasks.align", "aligned"},
    f"control@{TASK}": {"tasks.align", "unaligned"},
    f"sweep@{TASK}": {"tasks.sweep"},
    f"report@{TASK}": {"tasks.report"},
}
"""Words of the command that each stage runs."""


def flow(clone: Path, served: Served, output: Path, **more: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run `flows.pipeline` in a clone, its lines appended to `output`; at the end of the block it is gone."""
    home = served.environment["PREFECT_HOME"]
    variables = environment(clone) | {"PREFECT_HOME": home, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"} | more
    command = [sys.executable, "-m", "flows.pipeline", "--workers", "1", "--retries", "0"]
    return running(command, clone, variables, output)


def processes_of(process: subprocess.Popen[bytes], stage: str) -> list[psutil.Process]:
    """The processes below a flow that run a stage's command."""
    found = []
    for one in below(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [one] if STAGES[stage] <= set(one.cmdline()) else []
    return found


def in_its_middle(clone: Path, process: subprocess.Popen[bytes], stage: str, began: float) -> bool:
    """Whether a stage of a flow is at work: a training has saved a checkpoint, a sweep has rows, any other has started."""
    words = STAGES[stage]
    if process.poll() is not None or not processes_of(process, stage) or stage in ended(clone):
        return False
    if words & {"tasks.finetune", "tasks.align"}:
        return any(one.stat().st_mtime > began for one in (clone / ".cache/resume").rglob("SHA256SUMS"))
    if "tasks.sweep" in words:
        rows = (clone / f"results/{TASK}/sweep").rglob("rows.jsonl")
        return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in rows) >= 2
    return True


def next_stage(clone: Path, process: subprocess.Popen[bytes], done: set[str], began: float) -> str | None:
    """Wait for a stage that is at work and not in `done`, and return it; None if the flow has ended."""

    def found() -> tuple[str | None] | None:
        at_work = [one for one in STAGES if one not in done and in_its_middle(clone, process, one, began)]
        return (at_work[0],) if at_work else (None,) if process.poll() is not None else None

    return cast("tuple[str | None]", until("another stage, or the end of the flow", found))[0]


def begun(output: Path) -> Counter[str]:
    """How often each stage was run, by what DVC says."""
    return Counter(stages_run(output.read_text(encoding="utf-8")))


def same(clone: Path, undisturbed: Path) -> None:
    found, expected = outcome(clone), outcome(undisturbed)
    assert sum(name.endswith(".safetensors") for name in found) >= 6
    assert found == expected, sorted(name for name in found | expected if found.get(name) != expected.get(name))
    for name in ("table.md", "report.html", "pair"):
        assert (clone / "results" / TASK / name).exists()
    # No stale lock and no rest of a killed run: a plain `dvc repro` finds nothing to do.
    again = run_in(clone, "dvc", "repro")
    assert (again.returncode, "Running stage" in again.stdout) == (0, False)


def test_a_flow_killed_in_each_stage_ends_as_an_undisturbed_run(undisturbed: Path, served: Served, tmp_path: Path) -> None:
    clone, output = make_clone(tmp_path / "project", smaller), tmp_path / "output"
    killed: set[str] = set()
    while killed < STAGES.keys():
        began = time.time()
        with flow(clone, served, output) as process:
            stage = next_stage(clone, process, killed, began)
            assert stage is not None, f"killed in {killed} alone: {output.read_text()[-3000:]}"
            left = below(process)
            process.kill()
        assert gone(left), f"killed in {stage}, it left a process behind"
        assert stage not in ended(clone)
        killed.add(stage)
    with flow(clone, served, output) as process:
        assert process.wait(PATIENCE) == 0, output.read_text()[-3000:]
    # Each stage was killed and ran once more; none ran again after its end.
    assert begun(output) == dict.fromkeys(STAGES, 2)
    same(clone, undisturbed)


@contextlib.contextmanager
def suspended(processes: list[psutil.Process]) -> Iterator[None]:
    """Stop processes during the block."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def test_servers_killed_in_each_stage_cost_no_result_and_no_record(undisturbed: Path, served: Served, tmp_path: Path) -> None:
    """MLflow's server dies with its database connection, and Prefect's with it; the stage goes on, and both are started again.

    The next stage is stopped in its middle until both servers are back, or they could not be killed in it.
    """
    clone, output, port = make_clone(tmp_path / "project", smaller), tmp_path / "output", free_port()
    more = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}", "PYTHONPATH": str(clone)}  # MLflow is not hidden
    # A busy machine takes long to start a server: the flow asks for more than a minute.
    more["PREFECT_CLIENT_MAX_RETRIES"] = "8"
    disturbed: set[str] = set()
    with contextlib.ExitStack() as stack:
        mlflow = [start_server(tmp_path / "mlflow.db", port)]
        stack.callback(lambda: kill_server(mlflow[-1]))

        def wait_for_servers() -> None:
            until("the server of MLflow", lambda: answers(f"http://127.0.0.1:{port}/health"))
            until("the server of Prefect", served.is_up)

        wait_for_servers()
        process = stack.enter_context(flow(clone, served, output, **more))
        while (stage := next_stage(clone, process, disturbed, 0.0)) is not None:
            with suspended(processes_of(process, stage)):
                wait_for_servers()
                served.kill_server()
                kill_server(mlflow[-1])
            disturbed.add(stage)
            mlflow.append(start_server(tmp_path / "mlflow.db", port))
        assert process.wait(PATIENCE) == 0, output.read_text()[-3000:]
        assert disturbed == STAGES.keys()
        assert begun(output) == dict.fromkeys(STAGES, 1)
        wait_for_servers()
        send_runs(clone, environment(clone) | more)
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        runs = database.execute("SELECT run_uuid, name, status FROM runs WHERE lifecycle_stage = 'active'").fetchall()
        keys = database.execute("SELECT value FROM tags WHERE key = 'draftline.key'").fetchall()
        points = database.execute("SELECT value FROM tags WHERE key = 'kind' AND value = 'point'").fetchall()
    assert {status for _, _, status in runs} == {"FINISHED"}
    assert len(keys) == len(set(keys)) == len(runs)
    rows = sum(len(file.read_text().splitlines()) for file in (clone / "results").rglob("rows*.jsonl"))
    assert 0 < len(points) <= rows
    names = {name for _, name, _ in runs}
    assert {"sweep aligned", "sweep unaligned", "report"} <= names
    same(clone, undisturbed)
