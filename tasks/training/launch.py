"""Trains in one process or in many: as a rank that a launcher started, or through a launcher that is started here.

A process that torchrun, deepspeed or srun started is one rank and trains as such. Any other process starts its own command once
for every rank that `machine.processes` or `machine.hostfile` asks for.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from tasks import supervisor
from tasks.errors import InputError
from tasks.machine import MachineSettings
from tasks.training import environment, launchers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that override `machine.processes` and `machine.hostfile` of params.yaml."""
    many = parser.add_mutually_exclusive_group()
    many.add_argument(
        "--nproc", type=int, metavar="N", help="processes on this machine (default: one per GPU, or one on a CPU)"
    )
    many.add_argument("--hostfile", metavar="FILE", help="hosts to train on, a line `host slots=N` each, reached with pdsh")


def with_overrides(machine: MachineSettings, arguments: argparse.Namespace) -> MachineSettings:
    """Return the settings, overridden by the command line.

    Raises:
        InputError: the number of processes is out of bounds.
    """
    try:
        if arguments.nproc is not None:
            return dataclasses.replace(machine, processes=arguments.nproc, hostfile=None)
        if arguments.hostfile is not None:
            return dataclasses.replace(machine, processes=0, hostfile=arguments.hostfile)
    except ValueError as error:
        raise InputError(f"--nproc: {error}") from None
    return machine


@contextlib.contextmanager
def as_rank() -> Iterator[None]:
    """Run the whole command of a process, as one rank of a group if a launcher started it."""
    if not environment.adopt() or os.environ["WORLD_SIZE"] == "1":
        yield
        return
    supervisor.die_with_parent()
    # torch's launcher passes an interrupt on to every rank, each of which would show where it was interrupted.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Otherwise messages about a store whose host has ended hide the message about what ended it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if os.environ["RANK"] != "0":
        os.environ["TQDM_DISABLE"] = "1"
    # Imported here: torch takes seconds, which a process that only launches others need not spend.
    from tasks.training import distributed, failures

    with failures.shown_once():
        yield
        distributed.destroy()


def run(machine: MachineSettings, work: Callable[[], None]) -> None:
    """Do `work` in as many processes as the settings ask for.

    Raises:
        InputError: the hostfile or one of its hosts cannot be used.
        SystemExit: a rank that was started here failed.
    """
    if "RANK" in os.environ:
        work()
    elif machine.hostfile is not None:
        launchers.run_with_deepspeed(Path(machine.hostfile))
    elif (processes := machine.processes or _one_per_gpu(machine.device)) > 1:
        launchers.run_with_torch(processes)
    else:
        work()


def _one_per_gpu(device: str) -> int:
    if device == "cpu":
        return 1
    import torch

    return max(1, torch.cuda.device_count())
