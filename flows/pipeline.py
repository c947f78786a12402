"""DVC's stages as a Prefect flow: `python -m flows.pipeline`.

Each stage is a Prefect task that waits for the tasks of the stages that it needs. DVC decides whether a stage has to run, so
a flow that was killed and is started again runs only the remaining stages.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from uuid import UUID

from httpx import HTTPError
from prefect import flow, get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType, TaskRun
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.futures import PrefectFuture, wait
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task

from flows.graph import Stage, read_graph
from flows.server import AlreadyLockedError, is_up, lock_file, prefect_server
from flows.stage import PipelineSettings, StageError, StageResult, StageRunner, pipeline_parser
from tasks.console import add_json, log, output_apart, print_verdicts
from tasks.errors import one_line_errors
from tasks.paths import CACHE
from tasks.settings import read_options

_DEFAULTS = PipelineSettings()
_POLL_SECONDS = 2.0
_CANCELLED_POLL_SECONDS = 15.0
UNFINISHED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
RUN_LOCK = CACHE / "flow-run"
"""The lock file of a repository: the flow run that works there owns it and writes its id into it."""


class RunCancelledError(Exception):
    """The flow run was cancelled on the server."""


def _is_retryable(_task: Task[..., object], _run: TaskRun, state: State) -> bool:
    return state.name in ("Failed", "TimedOut")


@task(cache_policy=NO_CACHE, persist_result=False, retry_delay_seconds=5, retry_condition_fn=_is_retryable)
def run_stage(name: str, runner: StageRunner) -> State[StageResult]:
    """Bring one stage up to date; the data of the returned state is a `StageResult`."""
    try:
        run = runner.run(name, get_run_logger().info)
    except StageError as error:
        return Failed(name=error.kind, message=str(error))
    return Completed(name="Cached" if run.state == "cached" else "Completed", message=run.state, data=run)


@flow(name="pipeline", persist_result=False)
def pipeline(targets: list[str] | None = None, execution: PipelineSettings = _DEFAULTS) -> State[None]:
    """Bring the stages of the DVC repository in the working directory up to date.

    Args:
        targets: stages or groups of stages, run with the stages that they need; None: all stages.
        execution: how stages run.
    """
    return in_workspace(lambda root, run_id: run_graph(root, run_id, targets or (), execution))


def in_workspace(work: Callable[[Path, str], State[None]]) -> State[None]:
    """Call `work` with the working directory and the id of this flow run, if no other run works in the directory.

    A run that worked there and died is marked as crashed. If another one is at work, `work` is not called.
    """
    root, run_id = Path.cwd(), str(runtime.flow_run.id)
    try:
        with lock_file(root / RUN_LOCK) as stale:
            if stale not in ("", run_id):
                mark_crashed(stale)
            (root / RUN_LOCK).write_text(run_id, encoding="utf-8")
            return work(root, run_id)
    except AlreadyLockedError as error:
        return Cancelled(message=f"flow run {error} is at work in this repository; wait for it to end")


def mark_crashed(run_id: str) -> None:
    """Mark a run whose process died; do nothing if the run has ended or the server does not know it."""
    message = "The process of this run ended without reporting a state."
    with get_client(sync_client=True) as client, contextlib.suppress(ObjectNotFound, ValueError):
        run = client.read_flow_run(UUID(run_id))
        if run.state is not None and run.state.type in UNFINISHED:
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)


def run_graph(root: Path, run_id: str, targets: Sequence[str], settings: PipelineSettings) -> State[None]:
    """Bring stages up to date, as tasks of this flow run; the state says how many ran, or why they did not.

    Args:
        root: the folder of the repository, which no other flow run works in.
        run_id: of this flow run.
        targets: stages or groups of stages; empty: all.
        settings: how stages run.
    """
    stages = read_graph(root, targets)
    runner = StageRunner(root, timeout=60 * settings.timeout_minutes, flow_run=run_id)
    try:
        states = _run_all(stages, settings, runner, run_id)
    except RunCancelledError:
        return Cancelled(message="cancelled; the next run continues with the remaining stages")
    results = {name: state.result() for name, state in states.items() if state.is_completed()}
    _create_artifacts(stages, states, results)
    failures = [first_line(state) for state in states.values() if state.is_failed()]
    if failures:
        return Failed(message="\n".join(failures))
    ran = sum(result.state == "ran" for result in results.values())
    return Completed(message=f"{len(stages)} stages are up to date: {ran} ran, {len(stages) - ran} cached")


def _run_all(
    stages: Sequence[Stage], settings: PipelineSettings, runner: StageRunner, run_id: str
) -> dict[str, State[StageResult]]:
    """Return the state in which each stage's task ended; Pending if a stage that it needs failed."""
    futures: dict[str, PrefectFuture[State[StageResult]]] = {}
    # The runner is closed first, also when this run is cancelled: that ends the threads that the pool waits for.
    threads: ThreadPoolTaskRunner[State[StageResult]] = ThreadPoolTaskRunner(max_workers=settings.workers)
    with threads as pool, contextlib.closing(runner):
        for stage in stages:
            needs = [futures[name] for name in stage.needs if name in futures]
            named = run_stage.with_options(name=stage.name, task_run_name=stage.name, retries=settings.retries)
            futures[stage.name] = pool.submit(named, {"name": stage.name, "runner": runner}, wait_for=needs)
        _wait(list(futures.values()), runner, run_id)
    return {name: future.state for name, future in futures.items()}


def _wait(futures: list[PrefectFuture[State[StageResult]]], runner: StageRunner, run_id: str) -> None:
    """Wait for all futures; give up if the run is cancelled, or if it is served and the process that serves it is gone."""
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    served = run is not None and run.deployment_id is not None  # `runtime.deployment` would ask the server
    parent, asked = os.getppid(), time.monotonic()
    while wait(futures, timeout=_POLL_SECONDS).not_done:
        if served and os.getppid() != parent:
            runner.close()
            if not is_up(str(get_current_settings().api.url)):
                os._exit(1)  # no server is left to report to; the next run marks this one as crashed
            # Prefect reports the failure, which leaves the deployment's only place to the next run.
            raise RuntimeError("the process that serves this flow has ended")
        if time.monotonic() > asked + _CANCELLED_POLL_SECONDS:
            if read_state(run_id) in (StateType.CANCELLING, StateType.CANCELLED):
                runner.close()
                raise RunCancelledError
            asked = time.monotonic()
    for future in futures:
        future.wait()  # a future keeps its state and data only after this call


def read_state(run_id: str) -> StateType | None:
    """Return the type of a run's state; None if the server does not know the run or does not answer."""
    with contextlib.suppress(HTTPError, PrefectHTTPStatusError, ObjectNotFound, ValueError):
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(run_id)).state
        return None if state is None else state.type
    return None


def _create_artifacts(stages: Sequence[Stage], states: dict[str, State[StageResult]], results: dict[str, StageResult]) -> None:
    """Show the table of stages on the run's page, and each verdict that a stage of this run has brought up to date."""
    rows = []
    for stage in stages:
        result = results.get(stage.name)
        state = result.state if result else "failed" if states[stage.name].is_failed() else "not run"
        rows.append({"stage": stage.name, "state": state, "seconds": round(result.seconds, 1) if result else None})
    for stage, file in verdicts(stage for stage in stages if stage.name in results):
        # Prefect allows lower-case letters, digits and dashes.
        key = "verdict-" + re.sub("[^a-z0-9]+", "-", stage.name.rpartition("@")[2].lower()).strip("-")
        create_markdown_artifact(file.read_text(encoding="utf-8"), key=key, description=f"The verdict of {stage.name}.")
    create_table_artifact(rows, key="stages", description="The result of each stage in this flow run.")


def verdicts(stages: Iterable[Stage]) -> Iterator[tuple[Stage, Path]]:
    """Yield the stages that write a `table.md`, each with that file."""
    yield from ((stage, out) for stage in stages for out in stage.outs if out.name == "table.md")


def first_line(state: State) -> str:
    """Return what a state says first."""
    return (state.message or state.name or "failed").splitlines()[0]


def main() -> int:
    """Run the flow once and return the exit status, which is 1 if a stage failed."""
    with one_line_errors():
        parser = pipeline_parser("Run DVC's stages as one flow run.")
        add_json(parser)
        options = parser.parse_args()
        execution = read_options(PipelineSettings, options)
        stages = read_graph(Path.cwd(), options.targets)  # reports a wrong target before a server is started
        try:
            with output_apart(options.json), prefect_server():
                state = pipeline(options.targets or None, execution, return_state=True)
        except KeyboardInterrupt:
            log.info("interrupted; the next run continues with the remaining stages")
            return 130  # as a shell says of a program that SIGINT ended
    status = 0 if state.is_completed() else 1
    if status:
        log.error("%s", first_line(state))
    elif not options.json:
        print(state.message)
    print_verdicts([file for _, file in verdicts(stages) if status == 0], status, as_json=options.json)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
