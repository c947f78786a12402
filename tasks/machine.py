"""The machine that a stage runs on: device, number format, threads, and the limits of a container."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import InputError
from tasks.settings import setting, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


@settings
class MachineSettings:
    """The device, the number format and the processes of the stages."""

    device: str = setting("Device of the models; auto: a GPU if there is one.", default="auto", choices=("auto", "cpu", "cuda"))
    runtime: str = setting(
        "Runtime for decoding: compiled code on a CPU (native), fused PyTorch with CUDA graphs on a GPU (fused), transformers "
        "(reference), or the fastest one that supports the model (auto).",
        default="auto",
        choices=("auto", "reference", "native", "fused"),
    )
    dtype: str = setting(
        "Number format of matrices and of the activations they multiply, in decoding; sums, norms and attention are float32 in "
        "the native runtime, which alone takes int8.",
        default="float32",
        choices=("float32", "bfloat16", "int8"),
    )
    drafter_dtype: str = setting(
        "Number format of the small model, in decoding; int8 (native runtime) drafts faster, lossless methods lose nothing.",
        default="same",
        choices=("same", "int8"),
    )
    threads: int = setting("CPU threads of a stage; 0: torch's default.", default=0, unit="threads", ge=0, le=1024)
    processes: int = setting(
        "Processes that train one model on this machine; 0: one per GPU, or one on a CPU.",
        default=0,
        unit="processes",
        ge=0,
        le=1024,
    )
    workers: int = setting(
        "Processes that share calibration and the untimed part of a sweep on a CPU, each with a copy of the models; 0: one. "
        "On GPUs there is one for each. One process alone does the timing.",
        default=0,
        unit="processes",
        ge=0,
        le=256,
    )

    def alone(self) -> MachineSettings:
        """Return these settings without those that say how many processes work, which changes no result of a stage."""
        return dataclasses.replace(self, processes=0, workers=0)

    def of_models(self) -> dict[str, Any]:
        """Return the arguments of `tasks.decoding.load_pair` that are among these settings."""
        return {name: getattr(self, name) for name in ("device", "dtype", "drafter_dtype", "runtime", "threads")}

    def int8(self, model: str) -> bool:
        """Return whether the matrices of a model, `small` or `large`, are kept in 8 bits."""
        return self.dtype == "int8" or (model == "small" and self.drafter_dtype == "int8")

    def validate(self) -> None:
        if self.runtime == "native" and self.device == "cuda":
            raise ValueError("runtime is native, which runs on a CPU, but device is cuda; set runtime to auto")
        for name in ("dtype", "drafter_dtype"):
            if getattr(self, name) == "int8" and self.runtime not in ("auto", "native"):
                fix = "set it to auto"
                raise ValueError(f"{name} is int8, which takes the native runtime, but runtime is {self.runtime}; {fix}")


def set_up(machine: MachineSettings) -> tuple[torch.device, torch.dtype]:
    """Set the thread count and return the device and dtype for models; the processes of a machine divide threads and GPUs.

    Raises:
        InputError: `device` is cuda and there are no GPUs, or fewer GPUs than processes.
    """
    import torch

    for name in ("threads", "processes", "workers"):
        require_cores(f"machine.{name}", getattr(machine, name))
    # The share of this process, of `threads` or of torch's default, which OMP_NUM_THREADS replaces.
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if machine.threads or (processes > 1 and "OMP_NUM_THREADS" not in os.environ):
        torch.set_num_threads(max(1, (machine.threads or torch.get_num_threads()) // processes))
    found = torch.cuda.is_available()
    if machine.device == "cuda" and not found:
        raise InputError("machine.device is cuda in params.yaml, but torch finds no GPU here; set it to auto or cpu")
    device = torch.device("cuda" if found and machine.device != "cpu" else "cpu")
    if device.type == "cuda" and "LOCAL_RANK" in os.environ:
        # The GPU with the number of this process on this machine.
        local, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= count:
            fix = "start at most that many (--nproc, machine.processes), or set machine.device to cpu"
            raise InputError(f"process {local + 1} of this machine has no GPU, because the machine has {count}; {fix}")
        torch.cuda.set_device(local)
        device = torch.device("cuda", local)
    return device, torch.bfloat16 if machine.dtype == "bfloat16" else torch.float32


def processes_for(device: str) -> int:
    """Return the processes that use all of this machine: one per GPU; one without a GPU, or where `device` is cpu."""
    import torch

    return 1 if device == "cpu" else max(1, torch.cuda.device_count())


def worker_count(machine: MachineSettings) -> int:
    """Return how many processes share a stage's untimed work, this one among them: on GPUs one for each.

    Raises:
        InputError: `machine.workers` is too many for the cores here.
    """
    return max(processes_of_a_device(machine), processes_for(machine.device))


def processes_of_a_device(machine: MachineSettings) -> int:
    """Return how many of those processes have models in one memory, a GPU's or that of a CPU."""
    import torch

    require_cores("machine.workers", machine.workers)
    on_cpu = machine.device == "cpu" or not torch.cuda.device_count()
    return max(1, machine.workers) if on_cpu else 1


def require_cores(name: str, count: int) -> None:
    """Raise `InputError` where a setting asks for more threads or processes than a small multiple of the cores here."""
    most = max(16, 4 * (os.cpu_count() or 1))
    if count > most:
        raise InputError(f"{name} is {count}, which is too many for the cores here; set it to at most {most}")


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Limit torch to `count` CPU threads inside the block; 0 leaves the number unchanged.

    Raises:
        InputError: they are too many for the cores of this machine.
    """
    import torch

    require_cores("sweep.latency_threads", count)
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_NO_QUOTA = ("max", "-1")
_UNLIMITED = 1 << 60
"""Bytes; version 1 writes the largest number where there is no limit."""


def core_limit(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return the cores' worth of processor time that this process may use; none where nothing limits it."""
    pairs = [_words(folder, "cpu.max") for folder in _folders("", root, own)]
    pairs += [_words(folder, "cpu.cfs_quota_us", "cpu.cfs_period_us") for folder in _folders("cpu", root, own)]
    return min((int(pair[0]) / int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] not in _NO_QUOTA), default=None)


def memory_limit(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Return the bytes of memory that the processes of this group may use together; none where nothing limits them."""
    found = [word for folder in _folders("", root, own) for word in _words(folder, "memory.max")]
    found += [word for folder in _folders("memory", root, own) for word in _words(folder, "memory.limit_in_bytes")]
    return min((int(word) for word in found if word != "max" and int(word) < _UNLIMITED), default=None)


def memory() -> int:
    """Return the bytes of memory that a process here can have at most."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, memory_limit() or whole)


def return_freed_memory() -> None:
    """Give freed memory back to the system, where the C library can: glibc's `malloc_trim`.

    By itself glibc returns the end of its heap alone. Where batches of ever new shapes leave holes in it, a long training
    grows to several times what it uses.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def require_memory(needed: float, what: str, fix: str) -> None:
    """Refuse what no process of this machine can hold, before it is asked for.

    Args:
        needed: Bytes.
        what: What needs them, in the plural.
        fix: What to change.

    Raises:
        InputError: it is more than the machine has.
    """
    if needed > (there := memory()):
        raise InputError(f"{what} take {needed / 1e9:.0f} GB, and this machine has {there / 1e9:.0f} GB of memory; {fix}")


def _words(folder: Path, *files: str) -> list[str]:
    """Return the words of those files of a group that are there: not every group has each."""
    paths = (folder / file for file in files)
    return [word for path in paths if path.is_file() for word in path.read_text(encoding="ascii").split()]


def _folders(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Yield the folder of this process's group and of all above it; version 2 is the controller without a name."""
    top = root / controller
    for line in own.read_text(encoding="utf-8").splitlines() if own.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            folder = top / path.lstrip("/")
            # In a container, the path may be that of the host, of which only the root is visible.
            yield from (one for one in (folder, *folder.parents) if one == top or top in one.parents)
            return
