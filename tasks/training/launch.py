"""One command, many processes: a stage that trains starts its own command once for each process, here or on several hosts.

A process that another launcher started (torchrun, deepspeed: `RANK` is set) works as what that launcher made it. Nothing here
imports torch unless GPUs are to be counted: the launcher only waits.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from tasks.errors import InputError
from tasks.machine import MachineSettings
from tasks.training import hosts, workers
from tasks.training.hosts import Host
from tasks.training.workers import Command

_LISTENING = 256
_TOLD = ("NCCL_", "GLOO_", "UCX_", "OMP_", "TORCH_", "PYTHON", "HF_HUB_OFFLINE", "HF_HOME", "MLFLOW_TRACKING_URI")
"""Variables, by how they begin, that processes on other hosts are given: none that holds a secret, since `ps` shows them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what overrides `machine.processes` and `machine.hostfile` of params.yaml."""
    many = parser.add_mutually_exclusive_group()
    many.add_argument(
        "--nproc", type=int, metavar="N", help="processes on this machine (default: one per GPU, or one on a CPU)"
    )
    many.add_argument("--hostfile", metavar="FILE", help="hosts to train on, a line `host slots=N` each")


def overridden(machine: MachineSettings, arguments: argparse.Namespace) -> MachineSettings:
    """The settings with what the command line says in their place.

    Raises:
        InputError: a number of processes that is out of bounds.
    """
    try:
        if arguments.nproc is not None:
            return dataclasses.replace(machine, processes=arguments.nproc, hostfile=None)
        if arguments.hostfile is not None:
            return dataclasses.replace(machine, processes=0, hostfile=arguments.hostfile)
    except ValueError as error:
        raise InputError(f"--nproc: {error}") from None
    return machine


def in_processes(machine: MachineSettings, work: Callable[[], None]) -> None:
    """Does `work` in as many processes as the settings ask for, which each run this process's own command.

    Raises:
        InputError: a hostfile that cannot be read, or a host that cannot be reached.
        SystemExit: in the process that started them, with their exit status, unless that is 0.
    """
    if workers.LAUNCHED in os.environ:
        with workers.as_worker():
            _work_together(work)
    elif "RANK" in os.environ:
        _work_together(work)
    else:
        wanted = _wanted(machine)
        if sum(host.slots for host in wanted) == 1 and wanted[0].here:
            work()
        elif status := _launched(wanted):
            raise SystemExit(status)


def _work_together(work: Callable[[], None]) -> None:
    work()
    from tasks.training import distributed

    distributed.destroy()


def _wanted(machine: MachineSettings) -> list[Host]:
    if machine.hostfile is not None:
        return hosts.read_hostfile(Path(machine.hostfile))
    return [Host("localhost", machine.processes or _one_per_gpu(machine.device))]


def _one_per_gpu(device: str) -> int:
    if device == "cpu":
        return 1
    import torch

    return max(1, torch.cuda.device_count())


def _launched(wanted: list[Host]) -> int:
    """Starts a process for every slot, and gives their exit status when all have ended."""
    first, arguments = wanted[0], [sys.executable, *sys.orig_argv[1:]]
    if all(host.here for host in wanted):
        # A port that is only found free can be taken before the first process opens it: hand on the open socket.
        with socket.create_server(("127.0.0.1", 0), backlog=_LISTENING) as listener:
            group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
            return workers.run(_commands(wanted, arguments, group, listener.fileno()))
    port = hosts.reach(wanted, Path.cwd(), sys.executable)
    return workers.run(_commands(wanted, arguments, {"MASTER_ADDR": first.address, "MASTER_PORT": str(port)}))


def _commands(wanted: list[Host], arguments: list[str], group: dict[str, str], listener: int | None = None) -> list[Command]:
    """One command for each process, in the order of ranks."""
    shared = {**group, workers.LAUNCHED: "1", "WORLD_SIZE": str(sum(host.slots for host in wanted))}
    commands: list[Command] = []
    for host in wanted:
        for local in range(host.slots):
            own = {**shared, "RANK": str(len(commands)), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(host.slots)}
            if not host.here:
                told = {name: value for name, value in os.environ.items() if name.startswith(_TOLD) and "@" not in value}
                line = hosts.remote(Path.cwd(), {**told, **own}, arguments)
                commands.append(Command([*hosts.SSH, host.name, line], os.environ, host.name))
            elif listener is not None and not commands:
                commands.append(Command(arguments, {**os.environ, **own, workers.LISTENER: str(listener)}, files=(listener,)))
            else:
                commands.append(Command(arguments, {**os.environ, **own}))
    return commands
