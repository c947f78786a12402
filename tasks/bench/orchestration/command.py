"""What DVC, Prefect, MLflow, the queue and the fan-out cost beside the work itself.

Why it exists: nobody keeps a schedule, a record and a queue that cost more than they save. Each number is time that a user
waits for, measured through the documented commands, in repositories that are made for it and removed.

The last line is JSON: `noop_repro_s`, `prefect_s_per_stage` (of which `dvc_s_per_stage`), `mlflow_s_per_300_points`,
`fanout_efficiency` (serial seconds over twice the seconds of two processes, each of one thread), `fanout_over_threads` (seconds
of one process of two threads over those of the two processes), `flow_fanout_efficiency` and `experiments_lost`.
`--only` chooses among the parts, `--quick` makes all of them small, for tests: its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tasks.bench.orchestration.fan_out import fan_out_costs
from tasks.bench.orchestration.queue import queue_costs
from tasks.bench.orchestration.record import record_costs
from tasks.bench.orchestration.stages import flow_fan_out, noop_repro, stage_costs
from tasks.bench.orchestration.toy import REPOSITORY, prefect_server
from tasks.lineage import lineage

Numbers = dict[str, float]
TARGETS: dict[str, Callable[[float], bool]] = {
    "mlflow_s_per_300_points": lambda found: found <= 5,
    "fanout_efficiency": lambda found: found >= 0.8,
    "flow_fanout_efficiency": lambda found: found >= 0.8,
    "experiments_lost": lambda found: found == 0,
    "experiments_doubled": lambda found: found == 0,
}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    repeats: int = 3
    points: int = 300
    by_client: int = 30
    stages: int = 8
    wait: float = 30.0
    fan_out_seconds: float = 60.0
    experiments: int = 100
    kills: int = 6


QUICK = Size(repeats=1, points=20, by_client=2, stages=2, wait=1.0, fan_out_seconds=2.0, experiments=4, kills=1)
PARTS = ("repro", "record", "sweep", "stages", "flow", "experiments")
_WITH_SERVER = {"stages", "flow", "experiments"}


def measure(chosen: Sequence[str], size: Size, say: Callable[[str], object]) -> Numbers:
    """Measure the chosen parts, in the order of `PARTS`, and return their numbers."""
    found: Numbers = {}
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as running:
        folder = Path(scratch).resolve()
        parts: dict[str, Callable[[], Numbers]] = {
            "repro": lambda: noop_repro(REPOSITORY, folder / "clone", size.repeats),
            "record": partial(record_costs, _new(folder / "record"), size.points, size.by_client),
            "sweep": partial(fan_out_costs, _new(folder / "sweep"), size.fan_out_seconds),
        }
        if _WITH_SERVER & set(chosen):
            variables = running.enter_context(prefect_server(_new(folder / "prefect")))
            parts |= {
                "stages": partial(stage_costs, _new(folder / "stages"), variables, size.stages),
                "flow": partial(flow_fan_out, _new(folder / "flow"), variables, size.wait),
                "experiments": partial(queue_costs, _new(folder / "experiments"), variables, size.experiments, size.kills),
            }
        for name in PARTS:
            if name in chosen:
                begun = time.monotonic()
                numbers = parts[name]()
                found |= numbers
                shown = ", ".join(f"{key} {value:g}" for key, value in numbers.items())
                say(f"{name:12} {shown}  ({time.monotonic() - begun:.0f} s)")
    return found


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main(given: Sequence[str]) -> None:
    """Print each part as it is done, the targets, and JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench orchestration", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="make all parts small, for tests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    arguments = parser.parse_args(given)
    busy = psutil.cpu_percent(interval=3) / 100
    found = measure(arguments.only, QUICK if arguments.quick else Size(), partial(print, flush=True))
    for name, reached in TARGETS.items():
        if name in found:
            print(f"{'reached' if reached(found[name]) else 'missed':8} {name} {found[name]:g}")
    about = {"host_cpu": lineage().get("host_cpu"), "cores": psutil.cpu_count(), "busy_before": round(busy, 2)}
    text = json.dumps({**found, **about, "quick": arguments.quick})
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)
