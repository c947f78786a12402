"""Ranks that succeed, refuse or break, without training: `python -m tests.ranks SCENARIO --nproc N`."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from tasks.errors import InputError, stage
from tasks.machine import MachineSettings
from tasks.training import distributed

ROOT = Path(__file__).parents[1]
TIMEOUT = 900
"""Seconds; the machine may be busy."""
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a command that no launcher has started."""
    kept = {name: value for name, value in os.environ.items() if name not in _LAUNCHERS}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def run(*words: str, folder: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a module in a folder, as no launcher has started it."""
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=TIMEOUT)


def refuse() -> None:
    raise InputError("no such file")


def refuse_in_last_rank() -> None:
    if distributed.rank() == distributed.world_size() - 1:
        refuse()
    distributed.init("gloo")


def crash() -> None:
    raise KeyError("bug")


def add_ranks() -> None:
    """Print the sum of all ranks, counted from 1, and the variables of each rank in turn."""
    distributed.init("gloo")
    total = int(distributed.all_reduce(torch.tensor(distributed.rank() + 1)))
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    for rank in range(distributed.world_size()):
        distributed.barrier()
        if rank == distributed.rank():
            print(total, *(os.environ.get(name, "-") for name in names), flush=True)


def wait() -> None:
    """Print that all ranks are up, and continue for ten minutes."""
    distributed.init("gloo")
    distributed.barrier()
    if distributed.is_main():
        print("up", flush=True)
    time.sleep(600)


SCENARIOS = {work.__name__: work for work in (refuse, refuse_in_last_rank, crash, add_ranks, wait)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=SCENARIOS)
    distributed.add_arguments(parser)
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    distributed.run(MachineSettings(device="cpu"), arguments.nproc, SCENARIOS[arguments.scenario])


if __name__ == "__main__":
    with stage(), distributed.as_rank():
        main()
