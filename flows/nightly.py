"""What runs every night: the stages, then the records that still wait for MLflow, then `promote` for each new pair.

`flows.serve --cron` schedules it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.graph import read_graph
from flows.pipeline import first_line, in_workspace, run_graph, run_once
from flows.promote import promote
from flows.settings import PipelineSettings
from tasks import supervisor

_DEFAULTS = PipelineSettings()


@flow(name="nightly", persist_result=False)
def nightly(
    targets: list[str] | None = None,
    execution: PipelineSettings = _DEFAULTS,
    promotes: bool = True,
) -> State[None]:
    """Bring the stages up to date, send the records that wait, and set the new pair of each task beside its champion.

    The state is that of the stages, or Failed if a comparison could not be made. A pair that is not promoted is no failure.

    Args:
        targets: stages or groups of stages, run with the stages that they need; None: all stages.
        execution: how stages run.
        promotes: offer the pair of each report among the stages to `promote`.
    """

    def work(root: Path, run_id: str) -> State[None]:
        state = run_graph(root, run_id, targets or (), execution)
        send_records(root, return_state=True)
        return offer_pairs(root, targets or (), state) if promotes and state.is_completed() else state

    return in_workspace(work)


@task(name="send records", cache_policy=NO_CACHE, persist_result=False)
def send_records(root: Path) -> State[None]:
    """Send to MLflow the runs that earlier stages could not send; it fails if some still wait, which costs no result."""
    done = supervisor.run([sys.executable, "-m", "tasks.tracking"], cwd=root)
    line = (done.stdout.splitlines() or done.stderr.splitlines() or [f"exit status {done.returncode}"])[-1]
    get_run_logger().info(line)
    return Completed(message=line) if done.returncode == 0 else Failed(message=line)


def offer_pairs(root: Path, targets: Sequence[str], state: State[None]) -> State[None]:
    """Run `promote` for the task of each report among the stages; return the state of the stages with the decisions."""
    prefix = "report@"
    tasks = [stage.name.removeprefix(prefix) for stage in read_graph(root, targets) if stage.name.startswith(prefix)]
    decisions = {task: promote(task, return_state=True) for task in tasks}
    message = "; ".join([first_line(state), *(f"{task}: {first_line(one)}" for task, one in decisions.items())])
    return Failed(message=message) if any(one.is_failed() for one in decisions.values()) else Completed(message=message)


def main() -> int:
    """Run the flow once and return the exit status, which is 1 if a stage failed or a pair could not be compared."""
    description = "Run DVC's stages as one flow run, send the records that wait for MLflow, and compare pairs with champions."
    return run_once(nightly, description, add_promotion)


def add_promotion(parser: argparse.ArgumentParser) -> None:
    """Add the option of `nightly` that other flows do not have."""
    text = "nightly does not set new pairs beside the champions"
    parser.add_argument("--no-promotion", dest="promotes", action="store_false", help=text)


if __name__ == "__main__":
    raise SystemExit(main())
