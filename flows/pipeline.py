"""DVC's stages as a Prefect flow: `python -m flows.pipeline`.

Each stage is a Prefect task that waits for the tasks of the stages that it needs. DVC decides whether a stage has to run, so
a flow that was killed and is started again runs only the remaining stages.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prefect import Flow, flow, get_run_logger, runtime, task
from prefect.assets import add_asset_metadata
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture, wait
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import MaterializingTask, Task

from flows.artifacts import create_artifacts, stage_row
from flows.assets import output_hashes, stage_assets
from flows.graph import Stage, read_graph
from flows.lockfile import AlreadyLockedError, lock_file
from flows.server import is_up, prefect_server
from flows.settings import PipelineSettings, add_options, read_options
from flows.stage import StageError, StageResult, StageRunner
from flows.stale_runs import is_cancelled, mark_crashed
from tasks.errors import one_line_errors
from tasks.paths import CACHE

_DEFAULTS = PipelineSettings()
_POLL_SECONDS = 2.0
_CANCELLED_POLL_SECONDS = 15.0
_RETRY_DELAY_SECONDS = 5.0
_INTERRUPTED = 130
RUN_LOCK = CACHE / "flow-run"
"""The lock file of a repository: the flow run that works there owns it and writes its id into it."""


def _is_retryable(_task: Task[..., object], _run: TaskRun, state: State) -> bool:
    return state.name in ("Failed", "TimedOut")


class RunCancelledError(Exception):
    """The flow run was cancelled on the server."""


@task(cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=_is_retryable)
def run_stage(name: str, runner: StageRunner, *, materializes: bool = False) -> State[StageResult]:
    """Bring one stage up to date; the data of the returned state is a `StageResult`.

    Args:
        name: as `dvc repro` takes it.
        runner: of the repository.
        materializes: whether the outputs are assets of this task, which then receive their DVC hashes.
    """
    try:
        run = runner.run(name, get_run_logger().info)
    except StageError as error:
        return Failed(name=error.kind, message=str(error))
    if run.state == "ran" and materializes:
        for key, metadata in output_hashes(runner.root, name).items():
            add_asset_metadata(key, metadata)
    # Prefect takes the outputs of a task in the state Cached as not materialised anew.
    return Completed(name="Cached" if run.state == "cached" else "Completed", message=run.state, data=run)


@flow(name="pipeline", persist_result=False)
def pipeline(
    targets: list[str] | None = None,
    execution: PipelineSettings = _DEFAULTS,
) -> State[None]:
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
        with lock_file(root / RUN_LOCK) as lock:
            if lock.stale_note not in ("", run_id):
                mark_crashed(lock.stale_note)
            lock.write(run_id)
            return work(root, run_id)
    except AlreadyLockedError as error:
        return Cancelled(message=f"flow run {error.note} is at work in this repository; wait for it to end")


def run_graph(
    root: Path,
    run_id: str,
    targets: Sequence[str],
    settings: PipelineSettings,
    *,
    environment: Mapping[str, str] | None = None,
) -> State[None]:
    """Bring stages up to date, as tasks of this flow run; the state says how many ran, or why they did not.

    Args:
        root: the folder of the repository, which no other flow run works in.
        run_id: of this flow run.
        targets: stages or groups of stages; empty: all.
        settings: how stages run.
        environment: variables that stages see beside those of this process.
    """
    stages = read_graph(root, targets)
    runner = StageRunner(root, timeout=60 * settings.timeout_minutes, flow_run=run_id, environment=environment)
    try:
        states = _run_all(stages, settings, runner, run_id)
    except RunCancelledError:
        return Cancelled(message="cancelled; the next run continues with the remaining stages")
    rows = [stage_row(stage.name, states[stage.name]) for stage in stages]
    create_artifacts(stages, rows)
    failures = [first_line(states[stage.name]) for stage in stages if states[stage.name].is_failed()]
    if failures:
        return Failed(message="\n".join(failures))
    ran = sum(row["state"] == "ran" for row in rows)
    return Completed(message=f"{len(rows)} stages are up to date: {ran} ran, {len(rows) - ran} cached")


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
            parameters = {"name": stage.name, "runner": runner, "materializes": bool(stage.outs)}
            futures[stage.name] = pool.submit(_stage_task(stage, settings, runner), parameters, wait_for=needs)
        _wait(list(futures.values()), runner, run_id)
    return {name: future.state for name, future in futures.items()}


def _stage_task(stage: Stage, settings: PipelineSettings, runner: StageRunner) -> Task[..., State[StageResult]]:
    return MaterializingTask(
        fn=run_stage.fn,
        assets=stage_assets(runner.root, stage),
        materialized_by="dvc",
        name=stage.name,
        task_run_name=stage.name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=settings.retries,
        retry_delay_seconds=_RETRY_DELAY_SECONDS,
        retry_condition_fn=_is_retryable,
    )


def _wait(futures: list[PrefectFuture[State[StageResult]]], runner: StageRunner, run_id: str) -> None:
    """Wait for all futures; give up if the run is cancelled, or if it is served and the process that serves it is gone."""
    parent, served, asked = os.getppid(), _is_served(), time.monotonic()
    while wait(futures, timeout=_POLL_SECONDS).not_done:
        if served and os.getppid() != parent:
            runner.close()
            if not is_up(str(get_current_settings().api.url)):
                os._exit(1)  # no server is left to report to; the next serving process marks this run as crashed
            raise RuntimeError("the process that serves this flow has ended")
        if time.monotonic() > asked + _CANCELLED_POLL_SECONDS:
            if is_cancelled(run_id):
                runner.close()
                raise RunCancelledError
            asked = time.monotonic()
    for future in futures:
        future.wait()  # a future keeps its state and data only after this call


def _is_served() -> bool:
    """Whether a deployment started this flow run. `runtime.deployment` would ask the server, which may be down."""
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    return run is not None and run.deployment_id is not None


def first_line(state: State) -> str:
    """Return what a state says first."""
    return (state.message or state.name or "failed").splitlines()[0]


def run_once(
    one: Flow[..., State[None]], description: str, add_own: Callable[[argparse.ArgumentParser], None] | None = None
) -> int:
    """Run a flow that takes the options of `flows.settings` once and return the exit status: 1 if it did not complete.

    Args:
        one: the flow.
        description: of the command.
        add_own: adds options that the flow alone has, under the names of its parameters.
    """
    parser = argparse.ArgumentParser(prog=f"python -m flows.{one.name}", description=description)
    if add_own is not None:
        add_own(parser)
    own = vars(parser.parse_args([]))
    add_options(parser)
    options = parser.parse_args()
    with one_line_errors():
        execution, further = read_options(options), {name: getattr(options, name) for name in own}
        read_graph(Path.cwd(), options.targets)  # report a wrong target before a server is started
        try:
            with prefect_server():
                state = one(options.targets or None, execution=execution, **further, return_state=True)
        except KeyboardInterrupt:
            print("interrupted; the next run continues with the remaining stages", file=sys.stderr)
            return _INTERRUPTED
    if state.is_completed():
        print(state.message)
        return 0
    print(f"error: {first_line(state)}", file=sys.stderr)
    return 1


def main() -> int:
    """Run the flow once and return the exit status, which is 1 if a stage failed."""
    return run_once(pipeline, "Run DVC's stages as one flow run.")


if __name__ == "__main__":
    raise SystemExit(main())
