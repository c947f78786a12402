"""A Dask scheduler and its workers on loopback, started as docs/deploy/README.md says."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from tasks import supervisor
from tests.served import PATIENCE, ROOT
from tests.services import HOST, free_port

DASK = [str(Path(sys.executable).with_name("dask"))]


@contextlib.contextmanager
def dask_scheduler(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Run a scheduler in the block; yield its address and the process above it."""
    port = free_port()
    with _started("scheduler", "--host", HOST, "--port", str(port), "--no-dashboard", logs=folder) as process:
        yield f"tcp://{HOST}:{port}", process


@contextlib.contextmanager
def dask_workers(address: str, number: int, folder: Path) -> Iterator[None]:
    """Run so many worker processes, each with one thread, in the block, which begins when the scheduler has them."""
    usual = ("--nworkers", str(number), "--nthreads", "1", "--memory-limit", "0", "--no-dashboard")
    from distributed import Client

    with _started("worker", address, *usual, logs=folder):
        with Client(address, timeout=PATIENCE, set_as_default=False) as client:
            client.wait_for_workers(number, timeout=PATIENCE)
        yield


@contextlib.contextmanager
def _started(*words: str, logs: Path) -> Iterator[psutil.Process]:
    # Not by `python -m dask`, which would find the repository by itself.
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (
        (logs / f"{words[0]}.log").open("ab") as output,
        supervisor.running([*DASK, *words], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        yield psutil.Process(process.pid)
