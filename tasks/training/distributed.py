"""The processes that train one model together, in `torch.distributed`'s words; one process alone is a group of one."""

from __future__ import annotations

import datetime
import functools
import os
import socket
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from tasks.errors import InputError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch documents it without listing it

_TIMEOUT = datetime.timedelta(minutes=10)
"""How long a process waits for the others to start."""

Value = TypeVar("Value")


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


@functools.cache
def connect() -> Store:
    """Connect to the key-value store of this group, at MASTER_ADDR and MASTER_PORT, and wait until every process has done so.

    Raises:
        InputError: the other processes did not start, or the address is taken or wrong.
    """
    try:
        rendezvous = torch.distributed.rendezvous("env://", timeout=_TIMEOUT)  # type: ignore[attr-defined]  # as above
        store: Store = next(rendezvous)[0]
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise InputError(
            f"{description()} found no group of {world_size()} processes at {address} ({str(error).splitlines()[0]}); "
            "start all of them with torchrun, deepspeed or srun, with one free MASTER_PORT"
        ) from None
    return store


def init(backend: str) -> None:
    """Open the process group; further calls of a process do nothing."""
    if torch.distributed.is_initialized():
        return
    # One process alone needs no port: even one just found free can be taken by the time it is opened.
    store = connect() if world_size() > 1 else torch.distributed.HashStore()  # type: ignore[attr-defined]  # documented by torch
    torch.distributed.init_process_group(backend, store=store, rank=rank(), world_size=world_size())


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
