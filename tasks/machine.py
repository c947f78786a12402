"""The machine that a stage runs on: device, number format, threads, and the lock around whatever is timed."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import InputError
from tasks.settings import setting, settings

if TYPE_CHECKING:
    import torch


@settings
class MachineSettings:
    """Where the stages compute."""

    device: str = setting(
        "Where models run: a GPU if there is one (auto), or by name.", default="auto", choices=("auto", "cpu", "cuda")
    )
    runtime: str = setting(
        "What decodes: compiled code on a CPU (native), fused PyTorch, with CUDA graphs on a GPU (fused), transformers "
        "(reference), or the fastest of them that takes the model (auto).",
        default="auto",
        choices=("auto", "reference", "native", "fused"),
    )
    dtype: str = setting(
        "Number format of decoding; int8 keeps matrices in 8 bits (native runtime).",
        default="float32",
        choices=("float32", "bfloat16", "int8"),
    )
    threads: int = setting("CPU threads of one stage; 0: as many as torch finds.", default=0, unit="threads", ge=0)
    processes: int = setting(
        "Processes that train one model together on this machine; 0: one per GPU, or one on a CPU.",
        default=0,
        unit="processes",
        ge=0,
        le=1024,
    )
    hostfile: str | None = setting(
        "Train on the hosts of this file, a line `host slots=N` each, which share this folder and are reached by ssh.",
        default=None,
    )

    def alone(self) -> MachineSettings:
        """What of it concerns a stage that is one process, as all are but those that train."""
        return dataclasses.replace(self, processes=0, hostfile=None)

    def validate(self) -> None:
        if self.processes and self.hostfile is not None:
            raise ValueError(
                f"processes is {self.processes}, but the slots of hostfile, {self.hostfile}, say how many; set one"
            )


def set_up(machine: MachineSettings) -> tuple[torch.device, torch.dtype]:
    """Sets the thread count and gives the device and dtype to load models with; processes of a machine share both out.

    Raises:
        InputError: a GPU is asked for and there is none, or fewer than processes.
    """
    import torch

    _share_threads(machine.threads, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    found = torch.cuda.is_available()
    if machine.device == "cuda" and not found:
        raise InputError("machine.device is cuda in params.yaml, but torch finds no GPU here; set it to auto or cpu")
    device = torch.device("cpu")
    if found and machine.device != "cpu":
        device = _own_gpu() if "LOCAL_RANK" in os.environ else torch.device("cuda")
    return device, torch.bfloat16 if machine.dtype == "bfloat16" else torch.float32


def _share_threads(threads: int, processes: int) -> None:
    """Gives this process its share of `threads`; where none are set, and nobody else shared them out, of what torch finds."""
    import torch

    if threads or (processes > 1 and "OMP_NUM_THREADS" not in os.environ):
        torch.set_num_threads(max(1, (threads or torch.get_num_threads()) // processes))


def _own_gpu() -> torch.device:
    """The GPU of this process's number among those of this machine."""
    import torch

    local, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= count:
        raise InputError(
            f"process {local + 1} of this machine has no GPU, of which it has {count}; set --nproc, machine.processes or the "
            "slots in the hostfile to at most that, or machine.device to cpu"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _lock_file(device: str) -> Path:
    return Path(tempfile.gettempdir()) / f"draftline-{os.getuid()}-{device.replace(':', '')}.lock"


def _locked(device: str, kind: int) -> contextlib.AbstractContextManager[None]:
    return _held(_lock_file(device), kind, f"another Draftline stage uses the {device} of this machine")


@contextlib.contextmanager
def _held(lock: Path, kind: int, otherwise: str) -> Iterator[None]:
    with lock.open("a") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting: {otherwise}", file=sys.stderr, flush=True)
            fcntl.flock(file, kind)
        yield


def folder_lock(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Held while a stage works in a folder of its own: a second run of it would remove what the first one needs."""
    folder.mkdir(parents=True, exist_ok=True)
    return _held(folder / ".lock", fcntl.LOCK_EX, f"another run of the same stage works in {folder}")


def timing_lock(device: str) -> contextlib.AbstractContextManager[None]:
    """Held while something is timed: no other stage computes on the device of this machine meanwhile."""
    return _locked(device, fcntl.LOCK_EX)


def working_lock(device: str) -> contextlib.AbstractContextManager[None]:
    """Held while something computes untimed: any number of such stages run side by side, but never beside a timing."""
    return _locked(device, fcntl.LOCK_SH)
