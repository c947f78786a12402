"""The machine that a stage runs on: device, number format, threads, and the lock around whatever is timed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import InputError
from tasks.settings import knob, settings

if TYPE_CHECKING:
    import torch


@settings
class MachineSettings:
    """Where the stages compute."""

    device: str = knob(
        "Where models run: a GPU if there is one (auto), or by name.", default="auto", choices=("auto", "cpu", "cuda")
    )
    runtime: str = knob(
        "What decodes: compiled code on a CPU (native), fused PyTorch, with CUDA graphs on a GPU (fused), transformers "
        "(reference), or the fastest of them that takes the model (auto).",
        default="auto",
        choices=("auto", "reference", "native", "fused"),
    )
    dtype: str = knob(
        "Number format of decoding; int8 keeps matrices in 8 bits (native runtime).",
        default="float32",
        choices=("float32", "bfloat16", "int8"),
    )
    threads: int = knob("CPU threads of one stage; 0: as many as torch finds.", default=0, unit="threads", ge=0)


def set_up(machine: MachineSettings) -> tuple[torch.device, torch.dtype]:
    """Sets the thread count and gives the device and dtype to load models with.

    Raises:
        InputError: a GPU is asked for and there is none.
    """
    import torch

    if machine.threads:
        torch.set_num_threads(machine.threads)
    found = torch.cuda.is_available()
    if machine.device == "cuda" and not found:
        raise InputError("machine.device is cuda in params.yaml, but torch finds no GPU here; set it to auto or cpu")
    device = torch.device("cuda" if found and machine.device != "cpu" else "cpu")
    return device, torch.bfloat16 if machine.dtype == "bfloat16" else torch.float32


def _lock_file(device: str) -> Path:
    return Path(tempfile.gettempdir()) / f"draftline-{os.getuid()}-{device.replace(':', '')}.lock"


@contextlib.contextmanager
def _locked(device: str, kind: int) -> Iterator[None]:
    with _lock_file(device).open("a") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting: another Draftline stage uses the {device} of this machine", file=sys.stderr, flush=True)
            fcntl.flock(file, kind)
        yield


def timing_lock(device: str) -> contextlib.AbstractContextManager[None]:
    """Held while something is timed: no other stage computes on the device of this machine meanwhile."""
    return _locked(device, fcntl.LOCK_EX)


def working_lock(device: str) -> contextlib.AbstractContextManager[None]:
    """Held while something computes untimed: any number of such stages run side by side, but never beside a timing."""
    return _locked(device, fcntl.LOCK_SH)
