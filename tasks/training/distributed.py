"""The processes that train one model together: how they start, how they talk, and what each takes of the machine.

torchrun, deepspeed or srun starts one process for each rank and names its place in environment variables. A process that none
of them started trains alone, or starts its own command once for each of `machine.processes`. One process alone is a group of
one.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import math
import os
import re
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from tasks import console, machine, supervisor
from tasks.errors import STATUS_BAD_INPUT, InputError
from tasks.locks import Share
from tasks.machine import MachineSettings, processes_for, require_cores
from tasks.models import spread
from tasks.models.settings import TextSettings
from tasks.training.memory import text_cost
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Value = TypeVar("Value")

_GRACE_SECONDS = 10.0
"""Seconds that a rank waits before it reports a failure that another may report as well: its launcher ends it in that time."""
_LOADED = 600_000_000
"""Bytes of a process that has imported torch, transformers and DeepSpeed, and of the examples."""
_USABLE = 0.9
"""The part of a machine's memory that trainings may fill."""
_KEPT = 1.5
"""Factor for a process on a CPU: with glibc's malloc, the peaks of steps were 1.39 to 1.58 times what they hold at once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option that overrides `machine.processes` of params.yaml."""
    parser.add_argument("--nproc", type=int, metavar="N", help="processes here (default: one per GPU, or one on a CPU)")


@contextlib.contextmanager
def as_rank() -> Iterator[None]:
    """Run the whole command of a process, as one rank of a group if a launcher started it.

    Every launcher ends the other ranks once one has failed (srun with --kill-on-bad-exit). So that the group shows its first
    failure once, a rank gives the launcher time to end it before it reports what another rank may report as well: ranks other
    than 0 do so with every failure, and all ranks with an unexpected one, which may be a connection to a rank that has ended.
    """
    adopt_launcher()
    if world_size() == 1:
        yield
        return
    supervisor.die_with_parent()
    # torch's launcher passes an interrupt on to every rank, each of which would show where it was interrupted.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Otherwise messages about a store whose host has ended hide the message about what ended it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if not is_main():
        console.set_up(logging.WARNING)
    try:
        yield
        destroy()
    except Exception as error:
        refused = isinstance(error, InputError)
        time.sleep(_GRACE_SECONDS * ((not is_main()) + (not refused)))
        if refused:
            raise InputError(f"{description()}: {error}") from None
        error.add_note(f"in {description()}")
        raise


def adopt_launcher(environment: MutableMapping[str, str] = os.environ) -> None:
    """Complete torch's variables from those of the launcher that started this process.

    torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT; deepspeed has another name for
    the fourth. For srun the first four are those of the job step, and the address is the user's.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" not in environment and tasks != "1":
        environment.update(RANK=environment["SLURM_PROCID"], WORLD_SIZE=tasks, LOCAL_RANK=environment["SLURM_LOCALID"])
        # Slurm writes the tasks of each node as 2(x3),1; nodes are taken to be alike.
        per_node = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
        environment.setdefault("LOCAL_WORLD_SIZE", per_node[0] if per_node else "1")
    if "RANK" in environment:
        environment.setdefault("LOCAL_WORLD_SIZE", environment.get("LOCAL_SIZE", "1"))


def run(machine: MachineSettings, nproc: int | None, work: Callable[[], None]) -> None:
    """Do `work` in as many processes as asked for: here, or in ranks that run this process's own command.

    Args:
        machine: The settings, whose `processes` hold where the command line says nothing.
        nproc: The number of the command line, or None.
        work: What each process does.

    Raises:
        InputError: the number of the command line is negative.
        SystemExit: a rank that was started here failed.
    """
    if nproc is not None and nproc < 0:
        raise InputError(f"--nproc is {nproc}; it must be at least 0")
    processes = (machine.processes if nproc is None else nproc) or processes_for(machine.device)
    # A rank that a launcher started never starts others.
    if "RANK" in os.environ or processes == 1:
        work()
    else:
        require_cores("machine.processes" if nproc is None else "--nproc", processes)
        _run_ranks(processes)


def _run_ranks(processes: int) -> None:
    """Run this command in several processes on this machine, as `torchrun --standalone` would, by the same launcher.

    Raises:
        SystemExit: a rank failed, with its status (the rank itself has reported why), or a signal ended this process.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Ranks inherit it: otherwise one that briefly outlives its store prints many messages.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logging.disable(logging.CRITICAL)  # the launcher reports at length what the ranks report in a line
    with tempfile.TemporaryDirectory(prefix="draftline-launch-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, sys.executable)(*sys.orig_argv[1:])
        except ChildFailedError as error:
            logging.disable(logging.NOTSET)
            exits = {rank: failure.exitcode for rank, failure in error.failures.items()}
            raise SystemExit(_status_of(exits, processes)) from None
        except SignalException as error:
            raise SystemExit(128 + error.sigval) from None


def _status_of(exits: dict[int, int], processes: int) -> int:
    """Return the status of the run, and report a rank that was killed, which could not report it itself."""
    if STATUS_BAD_INPUT in exits.values():
        return STATUS_BAD_INPUT
    for rank, status in exits.items():
        if status < 0 and -status != signal.SIGTERM:
            console.log.error(
                "rank %d of %d was killed by %s; check for lack of memory, and run the same command again to resume from the "
                "last checkpoint",
                rank,
                processes,
                signal.Signals(-status).name,
            )
    return 1


def rank() -> int:
    """Return the rank of this process, counted from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this is rank 0, which shows progress, records and saves."""
    return rank() == 0


def description() -> str:
    """Return rank and host of this process, for messages."""
    return f"rank {rank()} on {socket.gethostname()}"


_ALONE_SECONDS = 120
"""What the group of one process takes at most; it takes milliseconds."""


def init(backend: str) -> None:
    """Open the process group; further calls of a process do nothing.

    Raises:
        InputError: the other processes did not start, or their common address is missing, taken or wrong.
    """
    if torch.distributed.is_initialized():
        return
    if world_size() == 1:
        # One process alone needs no port: even one just found free can be taken by the time it is opened.
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]  # documented by torch
        # Without memory for its threads gloo may wait for ever, where no Python runs: a watchdog ends the process.
        faulthandler.dump_traceback_later(_ALONE_SECONDS, exit=True)
        try:
            torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        finally:
            faulthandler.cancel_dump_traceback_later()
        return
    try:
        torch.distributed.init_process_group(backend)
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise InputError(
            f"found no group of {world_size()} processes at {address} ({str(error).splitlines()[0]}); start all of them with "
            "torchrun or deepspeed, or with srun, MASTER_ADDR (the first host) and a free MASTER_PORT"
        ) from None


def destroy() -> None:
    """Close the group when all processes have finished, so that none mistakes another's exit for a failure.

    A process alone keeps its group: DeepSpeed remembers the first group of a process and could not train in a second one.
    """
    if world_size() > 1 and torch.distributed.is_initialized():
        barrier()
        torch.distributed.destroy_process_group()


def all_reduce(numbers: Tensor) -> Tensor:
    """Sum a tensor over all processes, in place."""
    if world_size() > 1:
        torch.distributed.all_reduce(numbers)
    return numbers


def broadcast(value: Value) -> Value:
    """Return rank 0's value in every process."""
    if world_size() == 1:
        return value
    values = [value]
    torch.distributed.broadcast_object_list(values, src=0)
    return values[0]


def barrier() -> None:
    """Wait until all processes have reached this point."""
    if world_size() > 1:
        torch.distributed.barrier()


def training_share(
    model: PreTrainedModel, training: TrainingSettings, text: TextSettings, teachers: tuple[Path, ...], *, half: bool = False
) -> Share:
    """Return the threads of a training and an estimate of its memory (`tasks.training.memory`), teachers with their files.

    Args:
        model: The model, on the device that it trains on.
        training: Batch size, micro-batches and optimiser.
        text: The longest source and target.
        teachers: Folders of the models that it is trained with.
        half: Whether activations are bfloat16.
    """
    parameters, on_cpu = list(model.parameters()), model.device.type == "cpu"
    if training.steps:
        texts = training.batch_size
        cost = text_cost(model.config, text.max_source_tokens, text.max_target_tokens)
        trained = sum(one.numel() for one in parameters if one.requires_grad)
        needed = cost.step_bytes(training, math.ceil(texts / training.accumulation), trained, half=half)
    else:
        needed = sum(one.nbytes for one in parameters)
    if on_cpu:  # malloc keeps more than it gives
        needed = _LOADED + int(_KEPT * needed)
    return Share(min(torch.get_num_threads(), _cores()) if on_cpu else 1, needed + _bytes_of(teachers))


def room_of(device: torch.device) -> Share:
    """Return the cores of this process's machine, and the memory of the device that trainings may fill."""
    if device.type == "cuda":
        return Share(_cores(), int(_USABLE * torch.cuda.get_device_properties(device).total_memory))
    return Share(_cores(), int(_USABLE * machine.memory()))


def room_of_step(device: torch.device, teachers: tuple[Path, ...]) -> float:
    """Return the bytes that a step can have, equal in all processes of a machine; what `training_share` asks for then fits."""
    beside = _bytes_of(teachers)
    if device.type == "cpu":
        # The processes of a machine divide its memory.
        own = room_of(device).memory / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return (own - _LOADED - beside) / _KEPT
    cards = [device] if world_size() == 1 else [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    smallest = min(torch.cuda.get_device_properties(card).total_memory for card in cards)
    # A teacher that is larger is spread.
    return _USABLE * smallest - min(beside, spread.USABLE * smallest)


def _bytes_of(folders: tuple[Path, ...]) -> int:
    return sum(file.stat().st_size for folder in folders for file in Path(folder).glob("*.safetensors"))


def _cores() -> int:
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(own, machine.core_limit() or own)))
