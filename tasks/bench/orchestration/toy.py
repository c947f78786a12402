"""Repositories whose stages cost nothing, commands that run in them, and a Prefect server that they report to."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tasks import supervisor
from tasks.errors import InputError

REPOSITORY = Path(__file__).parents[3]
_IDENTITY = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
_PATIENCE_SECONDS = 600.0
_POLL_SECONDS = 0.5
PARAMS = """\
active: {toy: raw.txt}
tasks:
  toy:
    metric: bleu
    seeds: [1, 2]
    align:
      learning_rate: 0.01
"""


def environment(home: Path) -> dict[str, str]:
    """Return this environment with Prefect's files in `home`, and without what leads a run to another server or record."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_", "DRAFTLINE_"))}
    home.mkdir(parents=True, exist_ok=True)
    return kept | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]),
        "PYTHONPATH": str(REPOSITORY),
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_TO_CONSOLE_LEVEL": "ERROR",
        "DO_NOT_TRACK": "1",
        "DVC_NO_ANALYTICS": "true",
    }


def make_repository(folder: Path, stages: Mapping[str, Any]) -> Path:
    """Make a git and DVC repository of one commit with these stages and the source `raw.txt`."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    run([sys.executable, "-m", "dvc", "init", "--quiet"], folder, dict(os.environ))
    outs = [out for stage in stages.values() for out in stage.get("outs", ())]
    (folder / ".gitignore").write_text("\n".join(["/.cache/", *(f"/{out}" for out in outs), ""]), encoding="utf-8")
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": dict(stages)}, sort_keys=False), encoding="utf-8")
    (folder / "params.yaml").write_text(PARAMS, encoding="utf-8")
    (folder / "raw.txt").write_text("raw\n", encoding="utf-8")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "toy")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Run git with an identity and return its output."""
    return run(["git", *_IDENTITY, *arguments], folder, dict(os.environ))


def run(command: list[str], folder: Path, variables: Mapping[str, str]) -> str:
    """Run a command to its end and return its output.

    Raises:
        InputError: it failed.
    """
    done = supervisor.run(command, cwd=folder, env=dict(variables))
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-1500:]
        raise InputError(f"{' '.join(command)} failed in {folder} with status {done.returncode}: {said}")
    return done.stdout


def seconds(command: list[str], folder: Path, variables: Mapping[str, str]) -> float:
    """Return how long a command takes, in seconds of the clock."""
    begun = time.monotonic()
    run(command, folder, variables)
    return time.monotonic() - begun


@contextlib.contextmanager
def prefect_server(folder: Path) -> Iterator[dict[str, str]]:
    """Run `flows.serve` with a Prefect server of its own in `folder`; yield the environment in which flows report to it.

    Raises:
        InputError: it does not start.
    """
    variables = environment(folder / "home")
    place = make_repository(folder / "server", {"idle": {"cmd": "true", "deps": ["raw.txt"]}})
    output = folder / "server.log"
    command = [sys.executable, "-m", "flows.serve", "--cron", "0 3 1 1 *", "--name", "bench"]
    with (
        output.open("wb") as log,
        supervisor.running(command, cwd=place, env=variables, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while b"serving " not in output.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise InputError(f"the Prefect server does not start: {output.read_text(errors='replace').strip()[-1500:]}")
            time.sleep(_POLL_SECONDS)
        yield variables
