"""What DVC and Prefect add to a stage, and what two workers of the pipeline save."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.bench.orchestration.toy import environment, make_repository, run, seconds
from tasks.bench.pipeline import clone
from tasks.errors import InputError

_DVC = [sys.executable, "-m", "dvc"]
_TWO = 2


def noop_repro(repository: Path, folder: Path, repeats: int) -> dict[str, float]:
    """Time `dvc repro` of this project's graph when nothing has to run.

    The graph is that of a clone at HEAD. Its outputs are small files that stand for models and results: DVC looks at the hashes
    that it keeps, not at the content.

    Args:
        repository: The project.
        folder: For the clone; it must not exist.
        repeats: Timed runs, after one that is not.

    Raises:
        InputError: a stage was not up to date.
    """
    clone(repository, "HEAD", folder)
    variables = environment(folder.parent / "home")
    for path in _outputs(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("output\n", encoding="utf-8")
    run([*_DVC, "commit", "--force", "--quiet"], folder, variables)
    said = run([*_DVC, "repro"], folder, variables)
    if "Running stage" in said:
        raise InputError(f"dvc runs a stage again that has just been committed: {said.strip()[-1500:]}")
    found = [seconds([*_DVC, "repro", "--quiet"], folder, variables) for _ in range(repeats)]
    return {"noop_repro_s": round(statistics.median(found), 2)}


def _outputs(folder: Path) -> list[Path]:
    """Return a file for each output of the graph that lies in no other: a folder has the files that stages read of it."""
    from dvc.repo import Repo

    with Repo(str(folder)) as repo:
        outs = {Path(out.fs_path) for out in repo.index.outs}
        read = {Path(dep.fs_path) for dep in repo.index.deps}
    inside = {path for path in read if any(out in path.parents for out in outs)}
    alone = {out for out in outs if not any(out in path.parents for path in inside)}
    return sorted(inside | {out if out.suffix else out / "file" for out in alone})


def chain(length: int) -> dict[str, Any]:
    """Return stages that copy a file from one to the next."""
    names = ["raw.txt", *(f"copy-{number}.txt" for number in range(length))]
    return {
        f"copy-{number}": {
            "cmd": f"cp {names[number]} {names[number + 1]}",
            "deps": [names[number]],
            "outs": [names[number + 1]],
        }
        for number in range(length)
    }


def stage_costs(folder: Path, variables: Mapping[str, str], longer: int) -> dict[str, float]:
    """Return what a stage costs in a flow run, and what of that is the `dvc` that runs it.

    The cost is the slope between flow runs of chains with one stage and with more, so that neither the start of the flow nor
    that of its server is in it. The stages themselves copy a few bytes.

    Args:
        folder: An empty folder.
        variables: The environment, in which a Prefect server is found.
        longer: Further stages of the longer chain.
    """
    flow = [sys.executable, "-m", "flows.pipeline", "--workers", "1", "--retries", "0"]
    short, long = (
        seconds(flow, make_repository(folder / f"chain-{length}", chain(length)), variables) for length in (1, 1 + longer)
    )
    by_hand = make_repository(folder / "by-hand", chain(longer))
    single = [seconds([*_DVC, "repro", "--quiet", "--single-item", name], by_hand, variables) for name in chain(longer)]
    return {
        "prefect_s_per_stage": round((long - short) / longer, 2),
        "dvc_s_per_stage": round(statistics.fmean(single), 2),
        "flow_of_one_stage_s": round(short, 1),
    }


def flow_fan_out(folder: Path, variables: Mapping[str, str], wait: float) -> dict[str, float]:
    """Compare two stages that wait in `flows.pipeline --workers 2` with `dvc repro`, which runs one after the other.

    Stages that wait need no processor: what is lost is what the flow itself costs, whatever else the machine does.

    Args:
        folder: An empty folder.
        variables: See `stage_costs`.
        wait: Seconds that each stage waits.
    """
    stages = {
        name: {"cmd": f"sleep {wait}; cp raw.txt {name}", "deps": ["raw.txt"], "outs": [name]} for name in ("left", "right")
    }
    serial = seconds([*_DVC, "repro", "--quiet"], make_repository(folder / "serial", stages), variables)
    flow = [sys.executable, "-m", "flows.pipeline", "--workers", str(_TWO), "--retries", "0"]
    together = seconds(flow, make_repository(folder / "together", stages), variables)
    return {
        "flow_fanout_efficiency": round(serial / (_TWO * together), 3),
        "flow_dvc_repro_s": round(serial, 1),
        "flow_two_workers_s": round(together, 1),
    }
