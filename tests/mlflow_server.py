"""MLflow's server in processes of its own, and the runs that a server or a database holds."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE = 600.0
"""Seconds that a loaded machine may take."""


def start_server(database: Path, port: int) -> subprocess.Popen[bytes]:
    """Start a server, which leads a process group; it does not answer at once."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{database}"]
    command += ["--artifacts-destination", str(database.with_suffix("")), "--host", "127.0.0.1", "--port", str(port)]
    with (database.parent / "server.log").open("ab") as log:
        return subprocess.Popen([*command, "--workers", "1"], stdout=log, stderr=log, start_new_session=True)


def kill_server(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes of a server (SIGKILL)."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def runs_of(mlflow: Any, experiment: str = "translation") -> dict[str, Any]:
    """Return the runs by name; fail if two have the same name."""
    found = mlflow.search_runs([mlflow.get_experiment_by_name(experiment).experiment_id], max_results=1000)
    runs = {run.info.run_name: run for run in found}
    assert len(runs) == len(found)
    return runs
