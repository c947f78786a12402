"""Runs a probe in a child process, since a package that is imported may crash, hang, or write to the terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.doctor.text import shortened

SECONDS = 120.0
"""A probe that takes longer counts as hanging; the slowest takes some seconds on an idle machine."""
_OFFLINE = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


@dataclass(frozen=True)
class Answer:
    """What a probe said."""

    values: list[Any]
    failure: str = ""
    """Why it ended early, one line; empty if it did not."""


class ProbeError(Exception):
    """A probe failed. The message is one line."""


def probe(name: str, *arguments: str, seconds: float = SECONDS) -> Answer:
    """Run a function of `tasks.doctor.probes` with these arguments in a new process of this Python, offline."""
    command = [sys.executable, "-m", "tasks.doctor.probes", name, *arguments]
    try:
        done = subprocess.run(  # noqa: S603 (this Python and a module of this package)
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False, env=_environment()
        )
    except subprocess.TimeoutExpired as error:
        return Answer(_values(error.stdout or b""), f"no answer within {seconds:g} s")
    values = _values(done.stdout)
    if values and "error" in values[-1]:
        return Answer(values[:-1], values[-1]["error"])
    return Answer(values, _ended(done) if done.returncode else "")


def _environment() -> dict[str, str]:
    """Return the environment of a probe. Importing Prefect makes its folder, which is in the project as for a flow."""
    return {"PREFECT_HOME": str(Path(".cache", "prefect").absolute()), **os.environ, **_OFFLINE}


def ask(name: str, *arguments: str) -> Any:
    """Return the only value of a probe.

    Raises:
        ProbeError: it failed.
    """
    answer = probe(name, *arguments)
    if answer.failure or not answer.values:
        raise ProbeError(answer.failure or "no answer")
    return answer.values[-1]["value"]


def _values(output: bytes) -> list[Any]:
    return [json.loads(line) for line in output.decode(errors="replace").splitlines() if line.endswith("}")]


def _ended(done: subprocess.CompletedProcess[bytes]) -> str:
    """Say how a process ended that could not say it itself."""
    if done.returncode < 0:
        return f"the process was ended by {signal.Signals(-done.returncode).name}"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return shortened(lines[-1] if lines else f"exit status {done.returncode}")
