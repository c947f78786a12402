"""The project's own pipeline as a flow, killed in every stage: the flow itself, and the servers of Prefect and MLflow.

The results are those of a `dvc repro` that nobody disturbed: the same weights, byte by byte, and the same rows apart from what
is timed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import environment, make_clone, run_in, smaller
from tests.mlflow_server import server_process
from tests.served import PATIENCE, Served, ended, until

NEEDED = ("prefect", "dvc", "psutil", "mlflow")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(importlib.util.find_spec, NEEDED)), reason="prefect, dvc or mlflow is missing"),
]

TASK = "translation"
KILLED = {
    f"prepare@{TASK}": {"tasks.prepare"},
    f"finetune_large@{TASK}": {"tasks.finetune", "large"},
    f"calibrate@{TASK}": {"tasks.calibrate"},
    f"align@{TASK}": {"tasks.align", "aligned"},
    f"sweep_aligned@{TASK}": {"tasks.sweep", "aligned"},
    f"report@{TASK}": {"tasks.report"},
}
"""The stages in which something is killed, in their order, and words of the command that each runs."""
ALL = {*KILLED, f"finetune_small@{TASK}", f"control@{TASK}", f"sweep_unaligned@{TASK}"}
MEASURED = ("quality", "quality_interval", "signature", "counts")


@contextlib.contextmanager
def flow(clone: Path, served: Served, output: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `flows.pipeline` in a clone, its lines appended to `output`; at the end of the block it is gone."""
    home = served.environment["PREFECT_HOME"]
    variables = environment(clone) | {"PREFECT_HOME": home, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"} | more
    command = [sys.executable, "-m", "flows.pipeline", "--workers", "1", "--retries", "0"]
    with output.open("ab") as file:
        process = subprocess.Popen(command, cwd=clone, env=variables, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)


def below(process: subprocess.Popen[bytes]) -> list[Any]:
    import psutil

    return list(psutil.Process(process.pid).children(recursive=True))


def gone(processes: list[Any]) -> bool:
    import psutil

    return not psutil.wait_procs(processes, timeout=PATIENCE)[1]


def in_its_middle(clone: Path, process: subprocess.Popen[bytes], stage: str, began: float) -> bool:
    """Whether a stage of a flow is at work: a training has saved a checkpoint, a sweep has rows, any other has started."""
    import psutil

    words = KILLED[stage]
    with contextlib.suppress(psutil.NoSuchProcess):
        running = any(words <= set(one.cmdline()) for one in below(process))
        if not running or stage in ended(clone):
            return False
        if words & {"tasks.finetune", "tasks.align"}:
            return any(one.stat().st_mtime > began for one in (clone / ".cache/resume").rglob("complete.json"))
        if "tasks.sweep" in words:
            rows = clone / f"results/{TASK}/sweep/aligned/rows.jsonl"
            return rows.is_file() and len(rows.read_text(encoding="utf-8").splitlines()) >= 2
        return True
    return False


def begun(output: Path) -> Counter[str]:
    """How often each stage was run, by what DVC says."""
    words = "Running stage '"
    lines = [line for line in output.read_text(encoding="utf-8").splitlines() if words in line]
    return Counter(line.partition(words)[2].partition("'")[0] for line in lines)


def outcome(clone: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The weights of all models, and what the sweeps found on validation without timing; fail if a row is doubled."""
    weights = {str(file.relative_to(clone)): file.read_bytes() for file in (clone / "models").rglob("*.safetensors")}
    rows: dict[str, Any] = {}
    for file in sorted((clone / "results").rglob("rows*.jsonl")):
        found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        names = [(str(file.relative_to(clone)), row["split"], row["method"], json.dumps(row["settings"])) for row in found]
        assert len(names) == len(set(names))
        # Which points are measured on test depends on how fast they were.
        rows |= {
            str(name): {key: row.get(key) for key in MEASURED}
            for name, row in zip(names, found, strict=True)
            if row["split"] == "validation"
        }
    return weights, rows


def same(clone: Path, undisturbed: Path) -> None:
    (weights, rows), (expected_weights, expected_rows) = outcome(clone), outcome(undisturbed)
    assert len(weights) >= 6
    assert weights.keys() == expected_weights.keys()
    assert [name for name, data in weights.items() if data != expected_weights[name]] == []
    assert rows == expected_rows
    for name in ("table.md", "report.html", "pair"):
        assert (clone / "results" / TASK / name).exists()
    # No stale lock and no rest of a killed run: a plain `dvc repro` finds nothing to do.
    again = run_in(clone, "dvc", "repro")
    assert (again.returncode, "Running stage" in again.stdout) == (0, False)


def test_a_flow_killed_in_each_stage_ends_as_an_undisturbed_run(undisturbed: Path, served: Served, tmp_path: Path) -> None:
    clone, output = make_clone(tmp_path / "project", smaller), tmp_path / "output"
    for stage in KILLED:
        began = time.time()
        with flow(clone, served, output) as process:
            until(stage, lambda: process.poll() is not None or in_its_middle(clone, process, stage, began))  # noqa: B023
            assert process.poll() is None, output.read_text()[-3000:]
            running = below(process)
            process.kill()
        assert gone(running), f"killed in {stage}, it left a process behind"
        assert stage not in ended(clone)
    with flow(clone, served, output) as process:
        assert process.wait(PATIENCE) == 0, output.read_text()[-3000:]
    # Each stage that was killed ran once more; none ran again after its end.
    assert begun(output) == {stage: 2 if stage in KILLED else 1 for stage in ALL}
    same(clone, undisturbed)


def test_servers_killed_in_each_stage_cost_no_result_and_no_record(undisturbed: Path, served: Served, tmp_path: Path) -> None:
    """MLflow's server dies with its database connection; it and the server of Prefect are started again each time.

    The flow goes on meanwhile, so that a short stage may begin and end before the servers are back.
    """
    import psutil

    from flows.server import is_up

    clone, output = make_clone(tmp_path / "project", smaller), tmp_path / "output"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    more = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}", "PYTHONPATH": str(clone)}  # MLflow is not hidden
    with contextlib.ExitStack() as stack:
        mlflow = stack.enter_context(contextlib.ExitStack())
        mlflow.enter_context(server_process(tmp_path / "mlflow.db", port))
        process = stack.enter_context(flow(clone, served, output, **more))
        disturbed: set[str] = set()

        def another() -> str | None:
            return next((one for one in KILLED if one not in disturbed and in_its_middle(clone, process, one, 0.0)), None)

        while process.poll() is None:
            until("another stage", lambda: process.poll() is not None or another())
            stage = another()
            if stage is None:
                continue
            disturbed.add(stage)
            keeper = psutil.Process(served.process.pid).children(recursive=True)
            killed = [one for one in keeper if "prefect server start" in " ".join(one.cmdline())]
            assert killed
            for one in killed:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            mlflow.close()
            assert gone(killed)
            until("another Prefect server", lambda: served.url() and is_up(served.url()))
            mlflow.enter_context(server_process(tmp_path / "mlflow.db", port))
        assert process.wait(PATIENCE) == 0, output.read_text()[-3000:]
        assert len(disturbed) >= 3, disturbed
        assert begun(output) == dict.fromkeys(ALL, 1)
        sent = subprocess.run(
            [sys.executable, "-m", "tasks.tracking"],
            cwd=clone,
            env=environment(clone) | more,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert sent.returncode == 0, sent.stdout + sent.stderr
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
