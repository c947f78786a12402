"""A process that serves flows of a toy DVC repository on a schedule, its Prefect server on loopback, and questions to it."""

import abc
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import psutil
import yaml

from tests.kept_databases import kept_database

ROOT = Path(__file__).parents[1]
PATIENCE = 600.0
"""Time limit in seconds for every wait; the machine may be busy."""
_GRACE = 60.0
"""Seconds between asking a process to end and killing it."""
MADE = "mkdir -p results && cp source.txt results/table.md"
STAGES: dict[str, Any] = {
    "report": {"cmd": f"echo report >> log; {MADE}", "deps": ["left.txt", "right.txt"], "outs": ["results/table.md"]},
    "left": {"cmd": "echo left >> log; cp source.txt left.txt", "deps": ["source.txt"], "outs": ["left.txt"]},
    "right": {"cmd": "echo right >> log; cp source.txt right.txt", "deps": ["source.txt"], "outs": ["right.txt"]},
    "source": {
        "cmd": "echo source >> log; echo $PREFECT__FLOW_RUN_ID >> run; echo '| a |' > source.txt",
        "deps": ["raw.txt"],
        "outs": ["source.txt"],
    },
}


def until(what: str, found: Callable[[], Any]) -> Any:
    """Ask twice a second until the answer is true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if answer := found():
            return answer
        time.sleep(0.5)
    raise AssertionError(f"waited {PATIENCE:g} s for {what}")


def below(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    """Return the processes that a process has started, and those that these have."""
    return list(psutil.Process(process.pid).children(recursive=True))


def gone(processes: list[psutil.Process]) -> bool:
    """Wait until processes have ended; false if some have not."""
    return not psutil.wait_procs(processes, timeout=PATIENCE)[1]


def repository(folder: Path, stages: dict[str, Any]) -> Path:
    """Make a git and DVC repository with these stages."""
    from dvc.repo import Repo

    folder.mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    Repo.init(str(folder)).close()
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}), encoding="utf-8")
    (folder / "raw.txt").write_text("raw", encoding="utf-8")
    return folder


def log(folder: Path) -> list[str]:
    file = folder / "log"
    return file.read_text().split() if file.exists() else []


def ended(folder: Path) -> list[str]:
    """Return the stages whose outputs DVC has recorded; none while it is writing the file."""
    with contextlib.suppress(FileNotFoundError, yaml.YAMLError):
        recorded = yaml.safe_load((folder / "dvc.lock").read_text()) or {}
        return list(recorded.get("stages") or ())
    return []


class PrefectApi(abc.ABC):
    """Questions to a Prefect server."""

    @abc.abstractmethod
    def url(self) -> str:
        """The address of the API."""

    def ask(self, path: str, **body: Any) -> Any:
        """Return the answer of the server's API to a POST; a server whose database is busy says so, and is asked again."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 (loopback)
            f"{self.url()}{path}", data, {"Content-Type": "application/json"}
        )

        def answer() -> tuple[Any] | None:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as found:  # noqa: S310 (loopback)
                    return (json.loads(found.read() or "null"),)
            except HTTPError as error:
                # A slow database makes other questions fail as well; what is not only read must not be asked for twice.
                failed = path.endswith("/filter") and error.code == HTTPStatus.INTERNAL_SERVER_ERROR
                if not failed and error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
                return None

        return until(f"an answer to {path}", answer)[0]

    def deployment(self) -> Any:
        """Return the only deployment."""
        (deployment,) = self.ask("/deployments/filter")
        return deployment

    def stop_schedule(self) -> None:
        """Begin no other run by the schedule; one that is at work goes on."""
        self.ask(f"/deployments/{self.deployment()['id']}/pause_deployment")

    def pause(self) -> None:
        """Stop the schedule, and wait for a scheduled run that may be at work."""
        self.stop_schedule()
        until("the last scheduled run", lambda: self.slots() == 0)

    def slots(self) -> int:
        """Return the number of runs that count towards the deployment's limit of one."""
        return int(self.deployment()["global_concurrency_limit"]["active_slots"])

    def state_of(self, run_id: str) -> str:
        """Return the type of a run's state, such as RUNNING."""
        return str(self.run(run_id)["state"]["type"])

    def run(self, run_id: str) -> Any:
        (run,) = self.ask("/flow_runs/filter", flow_runs={"id": {"any_": [run_id]}})
        return run

    def tasks(self, run_id: str) -> dict[str, str]:
        """Return the state of each task of a flow run; the server learns of them with a delay."""
        runs = self.ask("/task_runs/filter", flow_runs={"id": {"any_": [run_id]}})
        return {run["name"]: run["state_name"] for run in runs}


@dataclass
class Served(PrefectApi):
    """The process that serves the first toy repository, and its server."""

    process: subprocess.Popen[bytes]
    folder: Path
    output: Path
    environment: dict[str, str]

    def url(self) -> str:
        return (Path(self.environment["PREFECT_HOME"]) / "served").read_text()

    def is_up(self) -> bool:
        """Whether the server answers."""
        from flows.server import is_up

        return is_up(self.url())

    def processes(self, words: str) -> list[psutil.Process]:
        """Return the processes below the serving one whose command line contains these words."""
        found = []
        for process in below(self.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [process] if words in " ".join(process.cmdline()) else []
        return found

    def kill_server(self) -> None:
        """Kill all processes of the server, which the serving process then starts again."""
        killed = self.processes("prefect server start")
        assert killed
        for process in killed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert gone(killed)

    def pipeline(self, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Start a run by hand in a repository, and wait for it."""
        return run_module(folder, self.environment | environment, "flows.pipeline", "--retries", "0", "--json")


@dataclass
class At(PrefectApi):
    """A Prefect server at an address of its own, without a process that serves flows."""

    folder: Path
    environment: dict[str, str]
    address: str

    def url(self) -> str:
        return self.address


def environment(base: Path) -> dict[str, str]:
    """Return the environment of this process with Prefect's files in `base`, and without other settings of Prefect."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    (base / "prefect").mkdir(exist_ok=True)
    kept |= {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(base / "prefect")}
    return kept | {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}


def _make_tables(file: Path) -> None:
    variables = environment(file.parent) | {"PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{file}"}
    done = run_module(file.parent, variables, "prefect", "server", "database", "upgrade", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr


def spare_tables(base: Path) -> None:
    """Give a server whose files will be in `base` a database that has Prefect's tables already."""
    shutil.copyfile(kept_database("prefect", _make_tables), Path(environment(base)["PREFECT_HOME"]) / "prefect.db")


@contextlib.contextmanager
def serving(base: Path, folder: Path, *options: str) -> Iterator[Served]:
    """Run `flows.serve` with these options in a repository until the end of the block."""
    output = base / "output"
    with output.open("ab") as file:
        command = [sys.executable, "-m", "flows.serve", *options]
        process = subprocess.Popen(command, cwd=folder, env=environment(base), stdout=file, stderr=subprocess.STDOUT)
    try:
        one = Served(process, folder, output, environment(base))
        before = output.read_bytes().count(b"serving ")
        until("the server", lambda: process.poll() is not None or output.read_bytes().count(b"serving ") > before)
        assert process.poll() is None, output.read_text()
        yield one
    finally:
        process.terminate()
        process.wait(PATIENCE)


@contextlib.contextmanager
def running(command: list[str], folder: Path, variables: dict[str, str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, which writes to a file, until the end of the block."""
    with output.open("ab") as file:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:  # as a Prefect worker that misses the signal
            process.kill()
            process.wait(PATIENCE)


def run_module(folder: Path, variables: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module with these words in a folder, and wait for it."""
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE)


def send_runs(folder: Path, variables: dict[str, str]) -> None:
    """Send MLflow the runs that wait in the outbox of a repository."""
    done = run_module(folder, variables, "tasks.tracking")
    assert done.returncode == 0, done.stdout + done.stderr
