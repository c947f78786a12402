"""Runs of the pipeline with other settings, by DVC's queue of experiments: `python -m flows.experiment --set NAME=VALUE`.

Each runs in a copy of the repository that DVC makes and removes, and is kept as an experiment of DVC under the current commit.
The flow fills the queue, starts DVC's workers and waits for them; they go on where the flow is killed. The same command, given
again, does what is left: DVC's queue shows an experiment whose worker was killed as running for ever, so what has neither a
result nor a worker is queued again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from prefect import flow, get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from flows.graph import read_graph
from flows.pipeline import first_line
from flows.server import AlreadyLockedError, lock_file, prefect_server
from flows.stage import dvc
from tasks import config
from tasks.console import command_parser, log
from tasks.errors import InputError, one_line_errors
from tasks.paths import CACHE

Settings = dict[str, Any]
"""Values by the dotted names of settings, such as `tasks.translation.align.beta`."""
_LOCK = CACHE / "experiments"
_LONGEST_NAME = 80
_ROUNDS = 3
"""How often an experiment is queued that ends with neither a result nor a failure."""
_STATES = ("Running", "Queued", "Failed", "Success")
_NO_REASON = "no stage began; see the logs in .dvc/tmp/exps/celery"
_LONGEST_PAUSE = 30.0
"""Seconds between two looks at the queue while workers are busy: a look takes a second of what they may be timing."""


def read_option(text: str) -> tuple[str, Any]:
    """Return name and value of an option `NAME=VALUE`; the value is YAML, and `1e-3` is a number as well.

    Raises:
        InputError: it has another form.
    """
    name, equals, value = text.partition("=")
    if not (equals and name.strip()):
        raise InputError(f"--set {text}: give NAME=VALUE, such as tasks.translation.align.beta=0.3")
    try:
        return name.strip(), _number(yaml.safe_load(value))
    except yaml.YAMLError:
        raise InputError(f"--set {text}: {value} is not YAML; quote it, as in --set '{name}=\"…\"'") from None


def read_grid(path: Path) -> list[Settings]:
    """Return the experiments of a grid file.

    The file maps names of settings to lists of values, of which every combination is an experiment, or lists the experiments,
    each a map of names to values.

    Raises:
        InputError: the file is missing or has another form.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no grid file {path}; give the path of a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {error}") from None
    if isinstance(raw, list) and raw and all(isinstance(one, dict) and one for one in raw):
        return [{str(name): _number(value) for name, value in one.items()} for one in raw]
    if isinstance(raw, dict) and raw and all(values != [] for values in raw.values()):
        axes = [[(str(name), _number(one)) for one in (v if isinstance(v, list) else [v])] for name, v in raw.items()]
        return [dict(combination) for combination in itertools.product(*axes)]
    raise InputError(f"{path}: give lists of values by setting, as in tasks.x.align.beta: [0.1, 0.3], or a list of maps")


def check_settings(text: str, settings: Settings) -> None:
    """Check the parameter file with this text and other settings.

    Raises:
        InputError: there is no such setting, or its value is wrong; names the setting and the fix.
    """
    content = yaml.safe_load(text)
    for name, value in settings.items():
        *sections, last = name.split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise InputError(f"{name}: set the whole value, not a part of it")
        place[last] = value
    config.check(yaml.safe_dump(content), f"{config.DEFAULT} with {as_text(settings)}", lines=False)


def as_text(settings: Settings) -> str:
    """Return settings as options are written: `a.b=1 c=x`."""
    return " ".join(f"{name}={_value_text(value)}" for name, value in settings.items())


def name_of(settings: Settings) -> str:
    """Return the name of an experiment: its settings without `tasks.`, in characters that git allows in the name of a ref."""
    text = ",".join(f"{name.removeprefix('tasks.')}={_value_text(value)}" for name, value in sorted(settings.items()))
    allowed = re.sub(r"\.{2,}", "-", re.sub(r"[^\w.,=+-]+", "-", text)).strip(".-,")
    if allowed == text and len(text) <= _LONGEST_NAME:
        return text
    return f"{allowed[:_LONGEST_NAME].rstrip('.-,')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def override(name: str, value: Any) -> str:
    """Return a setting as `dvc exp run --set-param` takes it; two plus signs add it where the file leaves it out."""
    return f"++{name}={_hydra(value)}"


def _hydra(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_hydra(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> Any:
    """Return a text such as `1e-3`, which YAML 1.1 does not take for a number, as one; also inside a list."""
    if isinstance(value, list):
        return [_number(item) for item in value]
    if isinstance(value, str) and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+", value):
        return float(value)
    return value


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


class Queue:
    """DVC's queue in a repository, by DVC's own commands, for the experiments that start from its present commit."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, name: str, settings: Settings, targets: Sequence[str]) -> None:
        """Queue an experiment from the working folder as it is; do nothing if it has been kept meanwhile."""
        params = [word for one in settings.items() for word in ("--set-param", override(*one))]
        try:
            dvc(self.root, "exp", "run", "--queue", "--name", name, *params, *targets)
        except InputError:
            # A worker that was taken for lost may have kept the experiment since, and DVC refuses a second one of its name.
            if name not in self.done():
                raise

    def remove(self, names: Sequence[str]) -> None:
        """Remove entries that failed."""
        if names:
            dvc(self.root, "queue", "remove", *names)

    def done(self) -> set[str]:
        """Return the names of the experiments that are kept under the present commit."""
        return set(dvc(self.root, "exp", "list", "--name-only").split())

    def states(self) -> tuple[dict[str, str], bool]:
        """Return Queued, Running, Failed or Success by the names of the entries, and whether a worker is alive.

        Of several entries of one name the later state counts: one whose worker was killed is shown as running for ever.
        """
        entries = dvc(self.root, "queue", "status").rpartition("Worker status:")[0]
        rows = [row for row in map(str.split, entries.splitlines()) if row and row[-1] in _STATES]
        return {name: state for _, name, *_, state in sorted(rows, key=lambda row: _STATES.index(row[-1]))}, self._has_worker()

    def _has_worker(self) -> bool:
        """Whether a worker runs. DVC asks workers to answer within a second, which those of a busy machine do not."""
        import psutil

        here = str(self.root.resolve())
        workers = (one.info for one in psutil.process_iter(["cmdline", "cwd"]))
        return any(one["cwd"] == here and "queue-worker" in (one["cmdline"] or ()) for one in workers)

    def start(self, jobs: int) -> None:
        """Start DVC's workers, which go on without this process and end when the queue is empty."""
        dvc(self.root, "queue", "start", "--jobs", str(jobs))

    def reason(self, name: str) -> str | None:
        """Return the last line that a failed experiment printed which is not DVC's own; None where no stage began."""
        with contextlib.suppress(InputError):
            output = dvc(self.root, "queue", "logs", name).splitlines()
            own = [line for line in output if line.strip() and not line.startswith(("ERROR: ", "Running stage", "> "))]
            return own[-1] if own else f"see dvc queue logs {name}"
        return None


@flow(name="experiment", persist_result=False)
def experiment(experiments: dict[str, Settings], targets: list[str] | None = None, jobs: int = 1) -> State[None]:
    """Bring DVC's queue to the point where each experiment has a result or has failed.

    Args:
        experiments: settings that differ from params.yaml, by the name of the experiment.
        targets: stages or groups of stages, run with the stages that they need; None: all stages.
        jobs: experiments that run side by side.
    """
    queue = Queue(Path.cwd())
    try:
        with lock_file(queue.root / _LOCK):
            return _run(queue, experiments, targets or (), jobs)
    except AlreadyLockedError:
        return Cancelled(message="experiments are at work in this repository; wait for them to end")
    except InputError as error:
        return Failed(message=str(error))


def _run(queue: Queue, experiments: Mapping[str, Settings], targets: Sequence[str], jobs: int) -> State[None]:
    failed = dict[str, str]()
    """Reasons of what failed in this run, by name; what failed before is tried again."""
    states, alive = queue.states()
    for _ in range(_ROUNDS):
        # 1. What has no result and is neither queued nor at work is queued: new, failed before, or lost with its worker.
        # An entry that lost its worker stays: `dvc queue kill` would signal whatever has the worker's process id by now.
        # Results are read after the states: what ended in between has one.
        done = queue.done()
        waits = ("Queued", "Running") if alive else ("Queued",)
        missing = [name for name in experiments if name not in done | failed.keys() and states.get(name) not in waits]
        if not missing and not alive and "Queued" not in states.values():
            break
        get_run_logger().info("%d of %d experiments are done", len(done & experiments.keys()), len(experiments))
        queue.remove([name for name in missing if states.get(name) == "Failed"])
        for name in missing:
            queue.add(name, experiments[name], targets)
        # 2. DVC's workers empty the queue.
        queue.start(min(jobs, len(experiments.keys() - done) or jobs))
        states, alive = _wait(queue, done), False
        # 3. What failed before a stage began, as two workers that met in DVC's locks do, is queued again.
        reasons = {name: queue.reason(name) for name in experiments.keys() - failed if states.get(name) == "Failed"}
        failed |= {name: reason for name, reason in reasons.items() if reason is not None}
    done = queue.done()
    rows = [(name, "done" if name in done else states.get(name, "lost").lower()) for name in experiments]
    create_table_artifact(
        [{"experiment": name, "settings": as_text(experiments[name]), "state": state} for name, state in rows],
        key="experiments",
        description="Experiments of DVC; dvc exp show compares them.",
    )
    if len(done & experiments.keys()) < len(rows):
        unfinished = [(name, state) for name, state in rows if state != "done"]
        return Failed(message="\n".join(f"{name}: {state}: {failed.get(name, _NO_REASON)}" for name, state in unfinished))
    return Completed(message=f"{len(rows)} experiments are done (dvc exp show; dvc exp apply NAME)")


def _wait(queue: Queue, done: set[str]) -> dict[str, str]:
    """Log each experiment that ends until no worker is left; return the states of the entries."""
    pause, ended, alive = 1.0, set(done), True
    while alive:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        states, alive = queue.states()
        for name in [name for name, state in states.items() if state == "Success" and name not in ended]:
            get_run_logger().info("%s: done", name)
            ended.add(name)
    return states


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("Run DVC's stages with other settings.")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of params.yaml; repeatable")
    parser.add_argument("--grid", type=Path, metavar="FILE", help="YAML: lists of values by setting, or a list of experiments")
    parser.add_argument("--name", default="", help="name of the experiment [made of its settings]")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="experiments that run side by side [1]")
    parser.add_argument("--targets", nargs="+", default=[], metavar="STAGE", help="stages to run, with those they need [all]")
    return parser


def main() -> int:
    """Run experiments; return the exit status, which is 1 if one failed."""
    with one_line_errors():
        options = _parser().parse_args()
        if options.jobs < 1:
            raise InputError(f"--jobs is {options.jobs}; it must be at least 1")
        common = dict(map(read_option, options.set))
        grid = [{**one, **common} for one in (read_grid(options.grid) if options.grid else [{}])]
        if not all(grid):
            raise InputError("there is nothing to run; give --set or --grid")
        if options.name and len(grid) > 1:
            raise InputError(f"--name {options.name} names one experiment, not {len(grid)}; leave it out")
        read_graph(Path.cwd(), options.targets)
        text = config.DEFAULT.read_text(encoding="utf-8")
        for one in grid:
            check_settings(text, one)
        named = {options.name or name_of(one): one for one in grid}
        try:
            with prefect_server():
                state = experiment(named, options.targets or None, options.jobs, return_state=True)
        except KeyboardInterrupt:
            log.info("interrupted; DVC's workers go on (dvc queue stop --kill ends them); the same command does what is left")
            return 130
    if state.is_completed():
        print(first_line(state))
        return 0
    for line in (state.message or "failed").splitlines():
        log.error("%s", line)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
