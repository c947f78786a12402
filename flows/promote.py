"""The comparison with the champion as a Prefect flow: `python -m flows.promote --task translation`.

The comparison runs in a process of its own, so that nothing of Prefect runs in the process that is timed.
"""

from __future__ import annotations

import subprocess
import sys

from prefect import flow, get_run_logger, runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.pipeline import first_line
from flows.server import prefect_server
from flows.stage import environment
from tasks import supervisor
from tasks.config import load, task_parser
from tasks.console import log
from tasks.errors import STATUS_BAD_INPUT, STATUS_NOT_PROMOTED, one_line_errors

_COMMAND = (sys.executable, "-m", "tasks.promote")
_STATES = {0: "Promoted", STATUS_NOT_PROMOTED: "NotPromoted"}
_REFUSED = "Refused"
"""The name of the state of a run whose input was bad."""


@flow(name="promote", persist_result=False)
def promote(task: str, options: list[str] | None = None) -> State[None]:
    """Set the new pair of a task beside its champion; the run's state says whether it was promoted.

    Args:
        task: the task's name in the parameter file.
        options: further options of `python -m tasks.promote`.
    """
    shown, last = get_run_logger(), "it said nothing"
    command = [*_COMMAND, "--task", task, *(options or ())]
    variables = environment(str(runtime.flow_run.id))
    with supervisor.running(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for raw in process.stdout or ():
            if line := raw.decode(errors="replace").rstrip().rpartition("\r")[2]:
                shown.info(line)
                last = line
        status = process.wait()
    if status in _STATES:
        return Completed(name=_STATES[status], message=last)
    return Failed(name=_REFUSED if status == STATUS_BAD_INPUT else "Failed", message=last.removeprefix("error: "))


def main() -> int:
    """Run the flow once; the exit status is that of `python -m tasks.promote`."""
    parser = task_parser("Set the new pair of a task beside its champion, as a Prefect flow.")
    parser.add_argument("--version", metavar="N", help="the candidate by its number")
    parser.add_argument("--rounds", type=int, help="rounds of timing")
    parser.add_argument("--again", action="store_true", help="compare a candidate that was refused before")
    with one_line_errors():
        options = parser.parse_args()
        given = [name for name in ("params", "version", "rounds") if getattr(options, name) is not None]
        further = [f"--{name}={getattr(options, name)}" for name in given] + ["--again"] * options.again
        load(options.params).task(options.task)  # report a wrong task before a server is started
        with prefect_server():
            state = promote(options.task, further, return_state=True)
    if state.is_completed():
        print(first_line(state))
        return next(status for status, name in _STATES.items() if name == state.name)
    log.error("%s", first_line(state))
    return STATUS_BAD_INPUT if state.name == _REFUSED else 1


if __name__ == "__main__":
    raise SystemExit(main())
