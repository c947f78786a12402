"""A work pool of a Prefect server on loopback: toy repositories deployed to it, their runs, and workers."""

import contextlib
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.served import PATIENCE, ROOT, At, below, gone, run_module, running, until

HEARTBEAT = 30
"""Seconds between two signs of life of a run; Prefect allows none that are more frequent."""
VARIABLES = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT)}
_ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def deployable(root: Path, **renamed: str) -> Path:
    """Add the project's flows and its `prefect.yaml` to a repository, with an automation that waits for two heartbeats.

    Args:
        root: the repository.
        renamed: deployments and their names here; two repositories that share a server need different ones.
    """
    for name in ("flows", "tasks"):
        (root / name).symlink_to(ROOT / name)
    text = (ROOT / "prefect.yaml").read_text(encoding="utf-8")
    changes = {f"- name: {before}": f"- name: {after}" for before, after in renamed.items()}
    for before, after in (changes | {"within: 600": f"within: {2 * HEARTBEAT}"}).items():
        assert before in text
        text = text.replace(before, after)
    (root / "prefect.yaml").write_text(text, encoding="utf-8")
    return root


@dataclass
class WorkPool(At):
    """The pool `draftline` of a server."""

    def prefect(self, folder: Path, *words: str) -> None:
        """Run a command of Prefect in a folder."""
        done = run_module(folder, self.environment, "prefect", *words)
        assert done.returncode == 0, done.stdout + done.stderr

    def create(self, limit: int, root: Path) -> None:
        """Make the pool for so many runs at once, and the automations of a repository's `prefect.yaml`."""
        self.prefect(root, "work-pool", "create", "draftline", "--type", "process")
        self.prefect(root, "work-pool", "set-concurrency-limit", "draftline", str(limit))
        self.prefect(root, "automation", "create", "--from-file", "prefect.yaml")

    def deployments(self) -> dict[str, Any]:
        return {one["name"]: one for one in self.ask("/deployments/filter")}

    def start_run(self, deployment: str, **how: Any) -> str:
        """Ask for a run and return its id."""
        return str(self.ask(f"/deployments/{self.deployments()[deployment]['id']}/create_flow_run", **how)["id"])

    def worker(self, name: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run a worker, which takes one run at a time, during the block."""
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "draftline", "--name", name, "--limit", "1"]
        return running(command, self.folder, self.environment, self.folder / f"worker-{name}.log")

    def message_at_end(self, run_id: str) -> str:
        """Wait for a run and return what its last state says."""
        until(f"the end of run {run_id}", lambda: self.state_of(run_id) in _ENDED)
        return str(self.run(run_id)["state"]["message"])


def kill_machine(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker with all that it runs, as when its machine is gone."""
    everything = below(worker)
    for act in ("suspend", "kill"):  # suspended first, so that none of them notices the end of another
        for process in [psutil.Process(worker.pid), *everything]:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(process, act)()
    worker.wait(PATIENCE)
    assert gone(everything)
