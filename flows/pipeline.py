"""DVC's stages as a Prefect flow: `python -m flows.pipeline`, or `flows.serve` on a schedule.

Each stage is a Prefect task that waits for the tasks of the stages that it needs. DVC decides whether a stage has to run, so
a flow that was killed and is started again runs only the remaining stages.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from prefect import flow, get_run_logger, runtime, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture, wait
from prefect.settings import get_current_settings
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import Task

from flows.graph import Stage, read_graph
from flows.lockfile import AlreadyLockedError, lock_file
from flows.server import is_up, prefect_server
from flows.settings import PipelineSettings, add_options, read_options
from flows.stage import StageError, StageResult, StageRunner
from flows.stale_runs import mark_crashed
from tasks.errors import one_line_errors
from tasks.paths import CACHE

_DEFAULTS = PipelineSettings()
_REPORT = "table.md"
_POLL_SECONDS = 2.0
_RETRY_DELAY_SECONDS = 5.0
_INTERRUPTED = 130
RUN_LOCK = CACHE / "flow-run"
"""The lock file of a repository: the flow run that works there owns it and writes its id into it."""


class StageRow(TypedDict):
    """A line of the table of stages."""

    stage: str
    state: str
    seconds: float | None


def _is_retryable(_task: Task[..., object], _run: TaskRun, state: State) -> bool:
    return state.name in ("Failed", "TimedOut")


@task(cache_policy=NO_CACHE, persist_result=False, retry_condition_fn=_is_retryable)
def run_stage(name: str, runner: StageRunner) -> State[StageResult]:
    """Bring one stage up to date; the data of the returned state is a `StageResult`."""
    try:
        run = runner.run(name, get_run_logger().info)
    except StageError as error:
        return Failed(name=error.kind, message=str(error))
    return Completed(name="Cached" if run.state == "cached" else "Completed", message=run.state, data=run)


@flow(name="pipeline", persist_result=False)
def pipeline(
    targets: list[str] | None = None,
    workers: int = _DEFAULTS.workers,
    retries: int = _DEFAULTS.retries,
    timeout_minutes: float = _DEFAULTS.timeout_minutes,
) -> State[None]:
    """Bring the stages of the DVC repository in the working directory up to date.

    Args:
        targets: stages or groups of stages, run with the stages that they need; None: all stages.
        workers: stages that run concurrently.
        retries: retries of a failed stage; a stage that rejects its input is not retried.
        timeout_minutes: time limit for one attempt at a stage.
    """
    settings = PipelineSettings(workers=workers, retries=retries, timeout_minutes=timeout_minutes)
    root, run_id = Path.cwd(), str(runtime.flow_run.id)
    stages = read_graph(root, targets or ())
    try:
        with lock_file(root / RUN_LOCK) as lock:
            if lock.stale_note not in ("", run_id):
                mark_crashed(lock.stale_note)
            lock.write(run_id)
            states = _run_all(stages, settings, StageRunner(root, timeout=60 * settings.timeout_minutes, flow_run=run_id))
    except AlreadyLockedError as error:
        return Cancelled(message=f"flow run {error.note} is at work in this repository; wait for it to end")
    rows = [_row(stage.name, states[stage.name]) for stage in stages]
    _create_artifacts(stages, rows)
    failures = [_first_line(states[stage.name]) for stage in stages if states[stage.name].is_failed()]
    if failures:
        return Failed(message="\n".join(failures))
    ran = sum(row["state"] == "ran" for row in rows)
    return Completed(message=f"{len(rows)} stages are up to date: {ran} ran, {len(rows) - ran} cached")


def _run_all(stages: Sequence[Stage], settings: PipelineSettings, runner: StageRunner) -> dict[str, State[StageResult]]:
    """Return the state in which each stage's task ended; Pending if a stage that it needs failed."""
    futures: dict[str, PrefectFuture[State[StageResult]]] = {}
    # The runner is closed first, also when this run is cancelled: that ends the threads that the pool waits for.
    threads: ThreadPoolTaskRunner[State[StageResult]] = ThreadPoolTaskRunner(max_workers=settings.workers)
    with threads as pool, contextlib.closing(runner):
        for stage in stages:
            named = run_stage.with_options(
                name=stage.name,
                task_run_name=stage.name,
                retries=settings.retries,
                retry_delay_seconds=_RETRY_DELAY_SECONDS,
            )
            needs = [futures[name] for name in stage.needs if name in futures]
            futures[stage.name] = pool.submit(named, {"name": stage.name, "runner": runner}, wait_for=needs)
        _wait(list(futures.values()), runner)
    return {name: future.state for name, future in futures.items()}


def _wait(futures: list[PrefectFuture[State[StageResult]]], runner: StageRunner) -> None:
    """Wait for all futures; give up if this is a served run and the process that serves it is gone."""
    parent = os.getppid()
    while wait(futures, timeout=_POLL_SECONDS).not_done:
        if runtime.deployment.id and os.getppid() != parent:
            runner.close()
            if not is_up(str(get_current_settings().api.url)):
                os._exit(1)  # no server is left to report to; the next serving process marks this run as crashed
            raise RuntimeError("the process that serves this flow has ended")
    for future in futures:
        future.wait()  # a future keeps its state and data only after this call


def _first_line(state: State) -> str:
    return (state.message or state.name or "failed").splitlines()[0]


def _row(name: str, state: State[StageResult]) -> StageRow:
    """Return the row of one stage for the table of stages."""
    if state.is_completed():
        run: StageResult = state.result()
        return {"stage": name, "state": run.state, "seconds": round(run.seconds, 1)}
    return {"stage": name, "state": "failed" if state.is_failed() else "not run", "seconds": None}


def _create_artifacts(stages: Sequence[Stage], rows: list[StageRow]) -> None:
    create_table_artifact([dict(row) for row in rows], key="stages", description="The result of each stage in this flow run.")
    done = {row["stage"] for row in rows if row["state"] in ("ran", "cached")}
    for stage in stages:
        for out in stage.outs:
            if stage.name in done and out.name == _REPORT:
                key = f"report-{_artifact_key(stage.name)}"
                create_markdown_artifact(out.read_text(encoding="utf-8"), key=key, description=f"The table of {stage.name}.")


def _artifact_key(name: str) -> str:
    """Reduce a name to the lower-case letters, digits and dashes that Prefect allows in artifact keys."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def main() -> int:
    """Run the flow once and return the exit status, which is 1 if a stage failed."""
    parser = argparse.ArgumentParser(prog="python -m flows.pipeline", description="Run DVC's stages as one flow run.")
    add_options(parser)
    options = parser.parse_args()
    with one_line_errors():
        settings = read_options(options)
        read_graph(Path.cwd(), options.targets)  # report a wrong target before a server is started
        try:
            with prefect_server():
                state = pipeline(options.targets or None, **dataclasses.asdict(settings), return_state=True)
        except KeyboardInterrupt:
            print("interrupted; the next run continues with the remaining stages", file=sys.stderr)
            return _INTERRUPTED
    if state.is_completed():
        return 0
    print(f"error: {_first_line(state)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
