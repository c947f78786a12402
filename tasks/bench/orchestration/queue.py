"""Whether the queue of experiments loses or doubles any when the processes that run it are killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import yaml

from tasks import supervisor
from tasks.bench.orchestration.toy import git, make_repository
from tasks.errors import InputError

_RATE = "tasks.toy.align.learning_rate"
_POLL_SECONDS, _PATIENCE_SECONDS = 0.5, 1800.0
_MEASURE = (
    "import json, pathlib, yaml\n"
    "rate = yaml.safe_load(open('params.yaml'))['tasks']['toy']['align']['learning_rate']\n"
    "pathlib.Path('metrics.json').write_text(json.dumps({'rate': rate}))\n"
)


def queue_costs(folder: Path, variables: Mapping[str, str], count: int, kills: int) -> dict[str, float]:
    """Run experiments of one stage, two side by side, and kill their runner with SIGKILL in between.

    Args:
        folder: An empty folder.
        variables: The environment, in which a Prefect server is found.
        count: Experiments.
        kills: How often the runner is killed; the command that started it is then given again.

    Raises:
        InputError: the queue does not go on.
    """
    log = folder / "log"
    command = f"echo x >> {log}; {sys.executable} measure.py"
    stage = {"cmd": command, "deps": ["raw.txt"], "params": [_RATE], "metrics": [{"metrics.json": {"cache": False}}]}
    project = make_repository(folder / "project", {"measure": stage})
    (project / "measure.py").write_text(_MEASURE, encoding="utf-8")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "what is measured")
    rates = [round(0.001 * number, 3) for number in range(1, count + 1)]
    grid = folder / "grid.yaml"
    grid.write_text(yaml.safe_dump({_RATE: rates}), encoding="utf-8")
    runner = [sys.executable, "-m", "flows.experiment", "--grid", str(grid), "--jobs", "2"]
    begun = time.monotonic()
    killed = sum(_kill_after(count * kill // (kills + 1), runner, project, variables) for kill in range(1, kills + 1))
    done = supervisor.run(runner, cwd=project, env=dict(variables))
    if done.returncode:
        raise InputError(f"the queue ended with status {done.returncode}: {(done.stdout + done.stderr).strip()[-1500:]}")
    found = _results(project)
    return {
        "experiments_lost": len(set(rates) - set(found)),
        "experiments_doubled": len(found) - len(set(found)),
        "experiments": count,
        "experiments_kills": killed,
        "experiments_stages_begun": len(log.read_text(encoding="utf-8").splitlines()),
        "experiments_s_each": round((time.monotonic() - begun) / count, 1),
    }


def _kill_after(finished: int, runner: list[str], project: Path, variables: Mapping[str, str]) -> bool:
    """Start the runner and kill it as soon as so many experiments are finished; return whether it was still at work."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    # Without a supervisor, whose end would be another one than that of a killed runner.
    process = subprocess.Popen(  # noqa: S603 (python of this environment)
        runner, cwd=project, env=dict(variables), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while len(_refs(project)) < finished and process.poll() is None:
            if time.monotonic() > deadline:
                raise InputError(f"the queue finished {len(_refs(project))} of {finished} experiments and does not go on")
            time.sleep(_POLL_SECONDS)
        return process.poll() is None
    finally:
        process.kill()
        process.wait()


def _refs(project: Path) -> list[str]:
    refs = git(project, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    return [ref for ref in refs if ref.count("/") == 4]  # refs/exps/two letters/the others/name


def _results(project: Path) -> list[float]:
    """Return what each finished experiment has measured."""
    return [float(json.loads(git(project, "show", f"{ref}:metrics.json"))["rate"]) for ref in _refs(project)]
