"""The comparison with the champion as a Prefect flow: `python -m flows.promote --task translation`.

The comparison runs in a process of its own, so that nothing of Prefect runs in the process that is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, runtime
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.artifacts import artifact_key
from flows.pipeline import first_line
from flows.server import prefect_server
from flows.stage import FLOW_RUN
from tasks import supervisor
from tasks.config import load, task_parser
from tasks.errors import STATUS_BAD_INPUT, one_line_errors
from tasks.evaluation.promotion.result import NOT_PROMOTED

_STATES = {0: "Promoted", NOT_PROMOTED: "NotPromoted"}
_REFUSED = "Refused"
"""The name of the state of a run whose input was bad."""


@flow(name="promote", persist_result=False)
def promote(
    task: str, params: str = "params.yaml", rounds: int | None = None, again: bool = False, roll_back: bool = False
) -> State[dict[str, Any]]:
    """Set the new pair of a task beside its champion; the run's state says whether it was promoted.

    Args:
        task: the task's name in the parameter file.
        params: the parameter file.
        rounds: rounds of timing; None: as many as `python -m tasks.promote` takes.
        again: compare a candidate that was refused or rolled back before.
        roll_back: give the alias back to the champion before this one instead.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "promotion.json")
        command = [sys.executable, "-m", "tasks.promote", "--task", task, "--params", params, "--json", str(answer)]
        command += [] if rounds is None else ["--rounds", str(rounds)]
        command += ["--again"] * again + ["--roll-back"] * roll_back
        status, last = _run(command)
        if status not in _STATES:
            reason = last.removeprefix("error: ")
            return Failed(name=_REFUSED if status == STATUS_BAD_INPUT else "Failed", message=reason)
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    create_markdown_artifact(found["markdown"], key=f"promotion-{artifact_key(task)}", description=found["line"])
    return Completed(name=_STATES[status], message=found["line"], data=found)


def _run(command: list[str]) -> tuple[int, str]:
    """Run a command, its lines in the run's log, and return its status and last line."""
    log, last = get_run_logger(), "it said nothing"
    environment = {**os.environ, FLOW_RUN: str(runtime.flow_run.id), "PYTHONUNBUFFERED": "1"}
    with supervisor.running(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for raw in process.stdout or ():
            if line := raw.decode(errors="replace").rstrip().rpartition("\r")[2]:
                log.info(line)
                last = line
        return process.wait(), last


def main() -> int:
    """Run the flow once; the exit status is that of `python -m tasks.promote`."""
    parser: argparse.ArgumentParser = task_parser("Set the new pair of a task beside its champion, as a Prefect flow.")
    parser.add_argument("--rounds", type=int, help="rounds of timing")
    parser.add_argument("--again", action="store_true", help="compare a candidate that was refused or rolled back before")
    parser.add_argument("--roll-back", action="store_true", help="give the alias back to the champion before this one")
    options = parser.parse_args()
    with one_line_errors():
        load(options.params).task(options.task)  # report a wrong task before a server is started
        with prefect_server():
            settings = {name: getattr(options, name) for name in ("rounds", "again", "roll_back")}
            state = promote(options.task, str(options.params), **settings, return_state=True)
    if state.is_completed():
        print(first_line(state))
        return next(status for status, name in _STATES.items() if name == state.name)
    print(f"error: {first_line(state)}", file=sys.stderr)
    return STATUS_BAD_INPUT if state.name == _REFUSED else 1


if __name__ == "__main__":
    raise SystemExit(main())
