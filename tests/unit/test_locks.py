"""Locks between processes: what waits, what runs side by side, and what a dead holder leaves."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tasks import locks
from tasks.locks import timing_lock, working_lock

HOLDER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[2]
from tasks import locks
with getattr(locks, sys.argv[1])(sys.argv[4]):
    print("held", flush=True)
    time.sleep(float(sys.argv[3]))
"""


@pytest.fixture(autouse=True)
def _own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def seconds_to_get(lock: str, held_by: str, folder: Path, hold: float = 1.0, device: str = "cpu") -> float:
    """How long this process waits for a lock while another process holds one."""
    command = [sys.executable, "-c", HOLDER, held_by, str(folder), str(hold), device]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        begun = time.monotonic()
        with locks.host_lock() if lock == "host_lock" else getattr(locks, lock)("cpu"):
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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_work_without_a_device_waits_for_every_timing(device: str, tmp_path: Path) -> None:
    assert seconds_to_get("host_lock", "timing_lock", tmp_path, device=device) > 0.5
    seconds_to_get("host_lock", "working_lock", tmp_path, hold=0.1, device=device)


def test_a_killed_holder_blocks_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, "timing_lock", str(tmp_path), "300", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
    with timing_lock("cpu"):
        pass


def test_a_second_run_of_a_stage_waits_for_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []

    def second() -> None:
        with locks.folder_lock(tmp_path / "work"):
            done.append("second")

    with locks.folder_lock(tmp_path / "work"), locks.folder_lock(tmp_path / "other"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(timeout=0.3)
        done.append("first")
    thread.join(timeout=30)
    assert done == ["first", "second"]
    assert "waiting: another run of the same stage works in" in capsys.readouterr().err


def test_devices_have_locks_of_their_own() -> None:
    with timing_lock("cuda:0"), timing_lock("cpu"), working_lock("cuda:1"):
        pass
