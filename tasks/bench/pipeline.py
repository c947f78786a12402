"""Compares the cost of a newcomer's run at two revisions: processor time and wall time of `make setup` and of each stage.

`python -m tasks.bench pipeline` clones this repository twice into a temporary folder, checks one revision out in each, makes
each environment from that revision's lock file, and runs `dvc repro` in one after the other. Setting up is measured apart and
is no part of the ratio, since it depends on the network. Processor time is that of all processes of a run; unlike wall time, it
hardly depends on what else the machine does. The last line is JSON; `repro_over_before` is the new run's processor time over
the old one's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from tasks.errors import InputError
from tasks.lineage import lineage

_BEFORE = "c124981"
_RUNNING = re.compile(r"^Running stage '(?P<name>[^']+)'")
_TARGET = 0.34


@dataclass(frozen=True)
class Cost:
    """Time of a piece of work."""

    processor: float
    """Seconds of processor time, user and system, of all its processes."""
    wall: float
    """Seconds."""

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.processor - other.processor, self.wall - other.wall)


@dataclass
class RunCost:
    """Cost of a whole run."""

    revision: str
    setup: Cost | None
    """None where an environment was given."""
    stages: dict[str, Cost] = field(default_factory=dict)
    """By name, in the order in which they ran. What dvc itself does until it announces the next stage counts to a stage."""
    total: Cost = field(default=Cost(0.0, 0.0))


def clone(repository: Path, revision: str, folder: Path) -> str:
    """Clone `repository` into `folder` at `revision`; return the full name of the commit.

    Raises:
        InputError: the repository has no such revision.
    """
    named = _git(repository, "rev-parse", "--verify", f"{revision}^{{commit}}")
    if named.returncode:
        raise InputError(f"{repository} has no revision {revision}; fetch it, or name another with --before or --after")
    commit = named.stdout.strip()
    for done in (
        _git(repository, "clone", "--quiet", "--no-checkout", ".", str(folder)),
        _git(folder, "checkout", "-q", commit),
    ):
        if done.returncode:
            raise InputError(f"{repository} cannot be cloned: {done.stderr.strip()}")
    return commit


def _git(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    git = shutil.which("git") or "git"
    return subprocess.run([git, *command], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 (fixed words)


def set_up(folder: Path, environment: Path | None) -> Cost | None:
    """Make the environment of a clone from its lock file, or use a given one for it.

    Raises:
        InputError: `make setup` failed.
    """
    if environment is not None:
        (folder / ".venv").symlink_to(environment.resolve())
        return None
    return _measured(["make", "setup"], folder, os.environ, {})


def repro(folder: Path, cost: RunCost) -> None:
    """Run `dvc repro` in a clone and fill in the cost of its stages.

    Raises:
        InputError: it failed.
    """
    binaries = os.pathsep.join([str(folder / ".venv" / "bin"), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    environment = {**kept, "PATH": binaries, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1", "DO_NOT_TRACK": "1"}
    cost.total = _measured(["dvc", "repro"], folder, environment, cost.stages)


def _measured(command: Sequence[str], folder: Path, environment: Mapping[str, str], stages: dict[str, Cost]) -> Cost:
    """Run a command; return its cost, and fill in that of each stage that it announces."""
    begun = time.monotonic()
    process = subprocess.Popen(  # noqa: S603 (make or dvc of a clone of this repository)
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    watched = psutil.Process(process.pid)
    marks: list[tuple[str, Cost]] = []
    last: list[str] = []
    for line in process.stdout or ():
        last = [*last[-20:], line]
        if found := _RUNNING.match(line):
            marks.append((found["name"], Cost(_processor(watched), time.monotonic() - begun)))
            print(f"  {marks[-1][1].wall:7.0f} s  {found['name']}", flush=True)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise InputError(f"{' '.join(command)} failed in {folder}: {''.join(last)[-1500:].strip()}")
    total = Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - begun)
    for (name, start), (_, end) in itertools.pairwise([*marks, ("", total)]):
        stages[name] = end - start
    return total


def _processor(process: psutil.Process) -> float:
    """Return the processor time of a process and of the descendants that it has waited for, such as finished stages."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def ratio(before: RunCost, after: RunCost) -> float:
    """Return the processor time of the second run over that of the first."""
    return after.total.processor / before.total.processor


def table(before: RunCost, after: RunCost) -> Iterator[str]:
    """Yield a Markdown table: stages of either run in the order of the second, then those that only the first has."""
    yield "| stage | processor s, before | after | wall s, before | after |"
    yield "|---|---|---|---|---|"
    for name in dict.fromkeys([*after.stages, *before.stages]):
        yield _row(name, before.stages.get(name), after.stages.get(name))
    yield _row("**dvc repro**", before.total, after.total)
    yield _row("make setup (not in the ratio)", before.setup, after.setup)


def _row(name: str, before: Cost | None, after: Cost | None) -> str:
    cells = [f"{cost.processor:.0f}" if cost else "" for cost in (before, after)]
    cells += [f"{cost.wall:.0f}" if cost else "" for cost in (before, after)]
    return f"| {' | '.join([name, *cells])} |"


def main(given: Sequence[str]) -> None:
    """Measure both revisions and print a table and JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default=_BEFORE, help="revision to compare with (default: %(default)s)")
    parser.add_argument("--after", default="HEAD", help="revision to measure; what is not committed is left out")
    parser.add_argument("--repository", type=Path, default=Path(), help="repository to clone (default: this one)")
    parser.add_argument("--environment", type=Path, metavar="FOLDER", help="use this environment for both, without make setup")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    arguments = parser.parse_args(given)
    costs = []
    with tempfile.TemporaryDirectory(prefix="draftline-pipeline-") as folder:
        for name, revision in (("before", arguments.before), ("after", arguments.after)):
            place = Path(folder) / name
            commit = clone(arguments.repository.resolve(), revision, place)
            print(f"{name}: {commit[:7]}", flush=True)
            cost = RunCost(commit, set_up(place, arguments.environment))
            repro(place, cost)
            costs.append(cost)
    before, after = costs
    for line in table(before, after):
        print(line)
    found = ratio(before, after)
    print(f"repro_over_before is {found:.2f}; the target is at most {_TARGET}: {'met' if found <= _TARGET else 'missed'}")
    text = json.dumps(
        {
            "before": asdict(before),
            "after": asdict(after),
            "host": {key: value for key, value in lineage().items() if key.startswith("host_")},
            "wall_over_before": after.total.wall / before.total.wall,
            "repro_over_before": found,
        }
    )
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)
