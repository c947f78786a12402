"""Serves the flows that run by themselves, every night or at intervals, until the process is stopped.

`python -m flows.serve --cron "0 3 * * *" --interval-minutes 60`
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from prefect import Flow, flow, get_run_logger, serve, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy, State
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.states import Completed, Failed
from pydantic import ValidationError

from flows.graph import read_graph
from flows.pipeline import UNFINISHED, first_line, in_workspace, mark_crashed, pipeline, run_graph
from flows.promote import promote
from flows.server import prefect_server
from flows.stage import PipelineSettings, pipeline_parser
from tasks import supervisor
from tasks.console import log
from tasks.errors import InputError, one_line_errors
from tasks.settings import read_options

_DEFAULTS = PipelineSettings()
_DEFAULT_CRON = "0 3 * * *"


@flow(name="nightly", persist_result=False)
def nightly(targets: list[str] | None = None, execution: PipelineSettings = _DEFAULTS, promotes: bool = True) -> State[None]:
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
    command, pipe = [sys.executable, "-m", "tasks.tracking"], subprocess.PIPE
    with supervisor.running(command, cwd=root, stdout=pipe, stderr=pipe) as process:
        said, failures = (text.decode(errors="replace").splitlines() for text in process.communicate())
    line = (said or failures or [f"exit status {process.returncode}"])[-1]
    get_run_logger().info(line)
    return Completed(message=line) if process.returncode == 0 else Failed(message=line)


def offer_pairs(root: Path, targets: Sequence[str], state: State[None]) -> State[None]:
    """Run `promote` for the task of each report among the stages; return the state of the stages with the decisions."""
    prefix = "report@"
    tasks = [stage.name.removeprefix(prefix) for stage in read_graph(root, targets) if stage.name.startswith(prefix)]
    decisions = {task: promote(task, return_state=True) for task in tasks}
    message = "; ".join([first_line(state), *(f"{task}: {first_line(one)}" for task, one in decisions.items())])
    return Failed(message=message) if any(one.is_failed() for one in decisions.values()) else Completed(message=message)


def _mark_all_crashed(flow_name: str, deployment: str) -> None:
    """Mark all unfinished runs of a deployment as crashed: their process died, and they would hold its only slot."""
    with get_client(sync_client=True) as client:
        stale = client.read_flow_runs(
            flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": UNFINISHED}}}),
            flow_filter=FlowFilter.model_validate({"name": {"any_": [flow_name]}}),
            deployment_filter=DeploymentFilter.model_validate({"name": {"any_": [deployment]}}),
        )
    for run in stale:
        mark_crashed(str(run.id))
    if stale:
        log.info("marked %d unfinished runs of an earlier process as crashed", len(stale))


def _schedules(options: argparse.Namespace) -> list[tuple[Flow[..., State[None]], dict[str, Any]]]:
    """Return the flows that the options schedule, each with its schedule as arguments of `Flow.to_deployment`.

    Raises:
        InputError: a schedule is not valid, or there is none; names the option.
    """
    found: list[tuple[Flow[..., State[None]], dict[str, Any]]] = []
    if options.cron is not None:
        try:
            CronSchedule(cron=options.cron)
        except ValidationError:
            raise InputError(f"--cron {options.cron!r} is not a schedule; give five fields, as {_DEFAULT_CRON!r}") from None
        found.append((nightly, {"cron": options.cron}))
    if (minutes := options.interval_minutes) is not None:
        if not minutes > 0:
            raise InputError(f"--interval-minutes is {minutes:g}; it must be more than 0")
        found.append((pipeline, {"interval": datetime.timedelta(minutes=minutes)}))
    if not found:
        raise InputError(f"no flow has a schedule; give --cron {_DEFAULT_CRON!r} or --interval-minutes")
    return found


def main() -> None:
    """Serve the flows until the process is stopped."""
    description = "Run flows on their schedules, with a Prefect server of its own if none is configured."
    parser = pipeline_parser(description)
    parser.add_argument("--cron", metavar="'M H D M W'", help="minute, hour, day, month and weekday of nightly, in UTC")
    parser.add_argument("--interval-minutes", type=float, metavar="N", help="minutes between the starts of two pipelines")
    name = "name of the deployments; repositories that share a server need different names [scheduled]"
    parser.add_argument("--name", default="scheduled", help=name)
    text = "nightly does not set new pairs beside the champions"
    parser.add_argument("--no-promotion", dest="promotes", action="store_false", help=text)
    with one_line_errors():
        options = parser.parse_args()
        execution = dataclasses.asdict(read_options(PipelineSettings, options))
        parameters = {"targets": options.targets or None, "execution": execution}
        schedules = _schedules(options)
        read_graph(Path.cwd(), options.targets)
        # A scheduled run that comes due beside another of the same deployment is cancelled.
        limit = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
        with prefect_server(announce=True) as url:
            deployments = []
            for one, schedule in schedules:
                _mark_all_crashed(one.name, options.name)
                own = {"promotes": options.promotes} if one is nightly else {}
                found = one.to_deployment(options.name, parameters=parameters | own, concurrency_limit=limit, **schedule)
                deployments.append(cast(RunnerDeployment, found))  # a coroutine only inside of one
                log.info("serving %s/%s; its runs: %s", one.name, options.name, url.removesuffix("/api"))
            serve(*deployments, print_starting_message=False)


if __name__ == "__main__":
    main()
