"""Runs of the pipeline with other settings, side by side or one after the other: `python -m flows.experiment --set NAME=VALUE`.

Each runs in a git worktree of its own, from the working folder as it was when the experiment was added, and is kept as an
experiment of DVC. The working folder, its index and HEAD stay as they are. `flows.experiments` keeps the queue.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, runtime
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Failed
from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from flows.experiments.changes import as_text, read_form, read_grid, read_option
from flows.experiments.listing import listing, told
from flows.experiments.queue import Claim, ExperimentQueue
from flows.experiments.refs import Experiment
from flows.experiments.setting_names import form, setting_fields
from flows.pipeline import first_line, run_graph
from flows.server import prefect_server
from flows.settings import PipelineSettings, add_options, as_options, read_options
from flows.stale_runs import mark_crashed
from tasks import config, supervisor
from tasks.errors import InputError, one_line_errors
from tasks.tracking.client import sqlite_file, tracking_uri
from tasks.tracking.outbox import outbox_folder

_DEFAULTS = PipelineSettings()
_INTERRUPTED = 130
_claimed: ContextVar[Claim | None] = ContextVar("claimed", default=None)
"""The experiment that this process has claimed before it started the flow."""


class _Form:
    """Shows the settings of `params.yaml` on Prefect's page as a form, with their types, bounds and descriptions."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        try:
            return form(setting_fields(config.load()))
        except InputError:  # as in a folder that holds another project
            return handler(schema)


@flow(name="experiment", persist_result=False)
def experiment(
    settings: Annotated[dict[str, Any] | None, _Form()] = None,
    name: str = "",
    targets: list[str] | None = None,
    execution: PipelineSettings = _DEFAULTS,
) -> State[None]:
    """Run the pipeline with other settings, beside the working folder, and keep the result as an experiment of DVC.

    Args:
        settings: what differs from params.yaml.
        name: of the experiment; without settings, an experiment that waits; empty: it is made of the settings.
        targets: stages or groups of stages, run with the stages that they need; None: all stages.
        execution: how stages run.
    """
    claimed = _claimed.get()
    queue = ExperimentQueue(Path.cwd())
    if claimed is not None:
        return _run(queue, claimed, execution)
    try:
        if settings:
            changes = read_form(config.DEFAULT.read_text(encoding="utf-8"), settings)
            [(one, _)] = queue.add([changes], targets or (), name)
            name = one.name
        elif not name:
            raise InputError("there is nothing to run; change a setting, or give the name of an experiment that waits")
        queue.named([name])
    except InputError as error:
        return Failed(message=str(error))
    with queue.claim([name]) as claim:
        if claim is None:
            [one] = queue.named([name])
            return Cancelled(message=told(one))
        return _run(queue, claim, execution)


def _run(queue: ExperimentQueue, claim: Claim, settings: PipelineSettings) -> State[None]:
    """Run an experiment as the present flow run."""
    run_id = str(runtime.flow_run.id)
    if claim.lock.stale_note not in ("", run_id):
        mark_crashed(claim.lock.stale_note)
    claim.lock.write(run_id)
    queue.prepare(claim)
    one = claim.experiment
    try:
        state = run_graph(claim.place, run_id, one.about.targets, settings, environment=_environment(queue.root, one))
    except InputError as error:  # the settings broke dvc.yaml
        state = Failed(message=str(error))
    if state.is_failed():
        queue.fail(claim, first_line(state))
    elif state.is_completed():
        try:
            queue.finish(claim)
        except InputError as error:
            return Failed(message=str(error))
    return state


def _environment(root: Path, one: Experiment) -> dict[str, str]:
    """Return the variables that lead the runs of an experiment into the repository's own record, with DVC's name for it."""
    uri = tracking_uri(root)
    database = sqlite_file(uri)
    return {
        "DRAFTLINE_OUTBOX": str(outbox_folder(root).absolute()),
        "MLFLOW_TRACKING_URI": uri if database is None else f"sqlite:///{database}",
        "DVC_EXP_BASELINE_REV": one.baseline,
        "DVC_EXP_NAME": one.name,
    }


def run_waiting(queue: ExperimentQueue, names: Sequence[str], settings: PipelineSettings) -> None:
    """Run what waits, of the named experiments if any are named, until nothing is left that nobody else works on.

    Raises:
        RuntimeError: an experiment could not be run, for a reason that is not its own; it waits.
    """
    while True:
        with queue.claim(names) as claim:
            if claim is None:
                break
            one = claim.experiment
            print(f"running {one.name}: {as_text(one.about.settings)}", flush=True)
            _claimed.set(claim)
            state = experiment.with_options(flow_run_name=one.name)(
                one.about.settings, one.name, one.about.targets or None, settings, return_state=True
            )
            after = {other.about.identity: other for other in queue.all()}.get(one.about.identity, one)
            if after.state == "running":
                raise RuntimeError(f"experiment {one.name} could not be run and waits: {first_line(state)}")
            print(told(after), flush=True)
    queue.sweep()


@contextlib.contextmanager
def _helpers(number: int, names: Sequence[str], settings: PipelineSettings) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start processes that run what waits beside this one; at the end of the block, none is left."""
    command = [sys.executable, "-m", "flows.experiment", *as_options(settings), "--run", *names]
    with contextlib.ExitStack() as running:
        yield [running.enter_context(supervisor.running(command)) for _ in range(number)]


def _run_all(queue: ExperimentQueue, names: Sequence[str], settings: PipelineSettings, jobs: int) -> None:
    """Run what waits in `jobs` processes, this one among them."""
    waiting = [one for one in queue.all() if one.state == "waiting" and (not names or one.name in names)]
    if not waiting:
        return
    with prefect_server():
        with _helpers(min(jobs, len(waiting)) - 1, names, settings) as helpers:
            run_waiting(queue, names, settings)
            for helper in helpers:
                helper.wait()
        run_waiting(queue, names, settings)  # what a helper had to leave


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flows.experiment", description="Run DVC's stages with other settings.")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of params.yaml; repeatable")
    parser.add_argument("--grid", type=Path, metavar="FILE", help="YAML: lists of values by setting, or a list of experiments")
    parser.add_argument("--name", default="", help="name of the experiment [made of its settings]")
    parser.add_argument(
        "--queue", action="store_true", help="add experiments, or let failed ones wait again, without running them"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--run", nargs="*", metavar="EXPERIMENT", help="run what waits, or only the experiments named")
    action.add_argument("--retry", nargs="*", metavar="EXPERIMENT", help="run again what failed, or only the experiments named")
    action.add_argument("--remove", nargs="+", metavar="EXPERIMENT", help="remove experiments that wait or have failed")
    action.add_argument("--list", action="store_true", help="list the experiments with their states")
    parser.add_argument("--json", action="store_true", help="with --list: a line of JSON for programs")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="experiments that run side by side [1]")
    add_options(parser)
    return parser


def _wanted(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the settings of the experiments to add."""
    pairs = [read_option(text) for text in options.set]
    fixed = dict(pairs)
    for name in fixed:
        if sum(name == other for other, _ in pairs) > 1:
            raise InputError(f"--set {name} is given more than once; a file for --grid holds several values")
    wanted = [{**fixed, **changes} for changes in (read_grid(options.grid) if options.grid else [{}])]
    if options.name and len(wanted) > 1:
        raise InputError(f"--name {options.name} is for one experiment, and {options.grid} has {len(wanted)}; leave it out")
    return wanted


def _names(options: argparse.Namespace, queue: ExperimentQueue) -> list[str] | None:
    """Do what the options ask for, up to the running, and return the experiments to run; None: do not run any."""
    if options.list:
        known = queue.all()
        print(json.dumps([dataclasses.asdict(one) for one in known]) if options.json else listing(known))
        return None
    if options.remove:
        queue.remove(options.remove)
        return None
    if options.run is not None:
        return [one.name for one in queue.named(options.run)] if options.run else []
    if options.retry is not None:
        names = queue.retry(options.retry)
    else:
        added = queue.add(_wanted(options), options.targets, options.name)
        for one, new in added:
            print(f"added {one.name}: {as_text(one.about.settings)}" if new else f"known already: {told(one)}", flush=True)
        names = [one.name for one, _ in added]
    return None if options.queue or not names else names


def main() -> int:
    """Add, run, list or remove experiments; return the exit status, which is 1 if an experiment failed."""
    parser = _parser()
    options = parser.parse_args()
    adding = bool(options.set or options.grid)
    others = options.run is not None or options.retry is not None or options.remove or options.list
    if adding == bool(others):
        parser.error("give either --set or --grid, or one of --run, --retry, --remove, --list")
    with one_line_errors():
        settings = read_options(options)
        if options.jobs < 1:
            raise InputError(f"--jobs is {options.jobs}; it must be at least 1")
        queue = ExperimentQueue(Path.cwd())
        names = _names(options, queue)
        if names is None:
            return 0
        try:
            _run_all(queue, names, settings, options.jobs)
        except KeyboardInterrupt:
            print("interrupted; python -m flows.experiment --run continues", file=sys.stderr)
            return _INTERRUPTED
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        failed = [one for one in queue.all() if one.state == "failed" and (not names or one.name in names)]
    for one in failed:
        print(f"error: {told(one)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
