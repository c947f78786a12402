"""Device, and the locks around what is timed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from tasks import machine
from tasks.errors import InputError
from tasks.machine import MachineSettings, set_up, timing_lock, working_lock

HOLDER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[2]
from tasks import machine
with getattr(machine, sys.argv[1])("cpu"):
    print("held", flush=True)
    time.sleep(float(sys.argv[3]))
"""


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def seconds_to_get(lock: str, held_by: str, folder: Path, hold: float = 1.0) -> float:
    """How long this process waits for a lock while another process holds one."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, held_by, str(folder), str(hold)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        begun = time.monotonic()
        with getattr(machine, lock)("cpu"):
            waited = time.monotonic() - begun
        holder.wait(timeout=30)
    return waited


def test_nothing_works_beside_a_timing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert seconds_to_get("working_lock", "timing_lock", tmp_path) > 0.5
    assert "waiting: another Draftline stage" in capfd.readouterr().err
    assert seconds_to_get("timing_lock", "working_lock", tmp_path) > 0.5
    assert seconds_to_get("timing_lock", "timing_lock", tmp_path) > 0.5


def test_untimed_work_runs_side_by_side(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seconds_to_get("working_lock", "working_lock", tmp_path, hold=0.1)
    assert "waiting" not in capfd.readouterr().err


def test_devices_have_locks_of_their_own() -> None:
    with timing_lock("cuda:0"), timing_lock("cpu"), working_lock("cuda:1"):
        pass


def test_auto_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert set_up(MachineSettings(dtype="bfloat16")) == (torch.device("cuda"), torch.bfloat16)
    assert set_up(MachineSettings(device="cpu"))[0] == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert set_up(MachineSettings()) == (torch.device("cpu"), torch.float32)
    with pytest.raises(InputError, match=r"machine\.device is cuda in params\.yaml"):
        set_up(MachineSettings(device="cuda"))
