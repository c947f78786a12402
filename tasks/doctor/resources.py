"""Checks the processor, the cores and the memory that this process may use, and the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tasks import cgroups
from tasks.doctor.facts import READY, Facts
from tasks.doctor.finding import MISSING, OK, WARNING, Check, Finding

_LEAST_MEMORY = 2e9
"""Bytes, estimated: the packages of a stage take 0.4 GB, and the models and batches of the embedded data are small."""
_LEAST_DISK, _SCARCE_DISK = 0.5e9, 5e9
"""Bytes, estimated: for a run on the embedded data, whose models have 2 million weights at most, and for one on larger data."""
_ENVIRONMENT = 3e9
"""Bytes: 2.5 GB with a build of torch for the CPU alone, and more with one for a GPU."""
_BLOCK = b"\0" * 65536


def processor(_: Facts) -> Finding:
    """The name of the processor."""
    from tasks.lineage import hardware

    uname = os.uname()
    return Finding(OK, f"{hardware()['host_cpu']}, {uname.machine}, {uname.sysname} {uname.release}")


def cores(facts: Facts) -> Finding:
    """Cores of this process, the limit of its control group, and how busy the machine is."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit, threads = cgroups.core_limit(), facts.machine.get("threads", 0)
    said = f"{own} of {os.cpu_count()} for this process, load {os.getloadavg()[0]:.1f}"
    said += f", OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}" if "OMP_NUM_THREADS" in os.environ else ""
    if limit is not None and limit < own and not 0 < threads <= limit:
        fix = f"set machine.threads in params.yaml to at most {max(1, int(limit))}"
        return Finding(WARNING, f"{said}; the container's limit is {limit:g} cores, fewer than torch starts threads for", fix)
    if threads > own:
        return Finding(WARNING, f"{said}; machine.threads is {threads}", f"set machine.threads in params.yaml to at most {own}")
    return Finding(OK, said + (f"; the container's limit is {limit:g} cores" if limit is not None else ""))


def memory(_: Facts) -> Finding:
    """Memory that is available, and the limit of the control group."""
    free, limit = _available(), cgroups.memory_limit()
    said = f"{free / 1e9:.1f} GB available"
    if limit is not None:
        said += f"; the container's limit is {limit / 1e9:.1f} GB"
    if min(free, limit or free) < _LEAST_MEMORY:
        return Finding(WARNING, said, f"end other programs or raise the limit, to at least {_LEAST_MEMORY / 1e9:g} GB")
    return Finding(OK, said)


def _available(meminfo: Path = Path("/proc/meminfo")) -> float:
    """Bytes that processes can still take, caches included."""
    if meminfo.exists():
        lines = (line.split() for line in meminfo.read_text(encoding="ascii").splitlines())
        return 1024.0 * next(int(words[1]) for words in lines if words[0] == "MemAvailable:")
    import psutil

    return float(psutil.virtual_memory().available)


def disk(_: Facts) -> Finding:
    """Write and flush a file here, then compare the free space of this disk with what is still to be written."""
    try:
        with tempfile.TemporaryFile(dir=Path.cwd()) as file:
            file.write(_BLOCK)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return Finding(MISSING, f"a file cannot be written here: {error.strerror}", "make room, or make the folder writable")
    free, temporary = shutil.disk_usage(Path.cwd()).free, shutil.disk_usage(tempfile.gettempdir()).free
    said = f"{free / 1e9:.1f} GB free here, {temporary / 1e9:.1f} GB in {tempfile.gettempdir()}"
    still = 0.0 if READY.exists() else _ENVIRONMENT
    if free < _LEAST_DISK + still:
        return Finding(MISSING, said, f"make room: at least {(_LEAST_DISK + still) / 1e9:.1f} GB")
    if free < _SCARCE_DISK + still or temporary < _LEAST_DISK:
        return Finding(WARNING, said, f"make room: {(_SCARCE_DISK + still) / 1e9:.0f} GB here for models and data of your own")
    return Finding(OK, said)


CHECKS = (
    Check("processor", "the name under which results are reported", processor),
    Check("cores", "speeds: threads that wait for cores are slow", cores),
    Check("memory", "a stage: the system ends one that finds too little", memory),
    Check("disk", "data, models, results, and DVC's copies of them", disk, required=True),
)
