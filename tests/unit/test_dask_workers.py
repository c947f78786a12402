"""What a Dask worker does with the lock of its machine."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.evaluation.sweep import fan_out
from tasks.evaluation.sweep.fan_out import Work
from tasks.locks import MachineBusyError

HOLDER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from tasks.locks import timing_lock
with timing_lock("cpu"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def timing(folder: Path) -> Iterator[None]:
    """Something is timed by another process during the block."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield
        finally:
            holder.stdin.close()


def double(unit: int) -> int:
    return 2 * unit


def doubling() -> Work[int, int]:
    return double


def test_a_worker_stays_out_while_something_is_timed_on_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = fan_out._DaskWork(pickle.dumps(doubling), "another machine", "cpu")
    assert opened(pickle.dumps(4)) == 8
    with timing(tmp_path):
        with pytest.raises(MachineBusyError, match="uses the cpu"):
            opened(pickle.dumps(4))
        with pytest.raises(MachineBusyError):
            fan_out._DaskWork(pickle.dumps(doubling), "another machine", "cpu")
        # The sweep itself holds the lock of its own machine.
        own = fan_out._DaskWork(pickle.dumps(doubling), fan_out.machine(), "cpu")
        assert own(pickle.dumps(4)) == 8
    assert opened(pickle.dumps(4)) == 8
