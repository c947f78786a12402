"""The processes that train one model together: who this one is, how they meet, and what all of them agree on."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from tasks.training.workers import LAUNCHED, LISTENER


def rank() -> int:
    """This process's number, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this one speaks for all: it shows, records and saves."""
    return rank() == 0


def init(backend: str) -> None:
    """Meets the others, once in the life of a process: where `tasks.training.launch` says, or another launcher."""
    if torch.distributed.is_initialized():
        return
    store: Any = None
    if world_size() == 1:
        # A store in memory: a port, even one just found free, can be taken by the time it is opened.
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]  # torch does not list it, though it documents it
    elif LAUNCHED in os.environ:
        listener = os.environ.get(LISTENER)
        store = torch.distributed.TCPStore(  # type: ignore[attr-defined]  # as above
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            world_size(),
            is_master=is_main(),
            master_listen_fd=None if listener is None else int(listener),
        )
    torch.distributed.init_process_group(backend, store=store, rank=rank(), world_size=world_size())


def destroy() -> None:
    """Ends the group, so that no process takes another's leaving for a failure.

    A process by itself keeps it: DeepSpeed goes on naming the first group of a process, and could not train in a second.
    """
    if world_size() > 1 and torch.distributed.is_initialized():
        barrier()
        torch.distributed.destroy_process_group()


def all_reduce(numbers: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if world_size() > 1:
        torch.distributed.all_reduce(numbers)
    return numbers


def broadcast(value: Any) -> Any:
    """What the first process says, told to all: a number, a string, or none of either."""
    if world_size() == 1:
        return value
    told = [value]
    torch.distributed.broadcast_object_list(told, src=0)
    return told[0]


def barrier() -> None:
    """Until all processes are here."""
    if world_size() > 1:
        torch.distributed.barrier()
