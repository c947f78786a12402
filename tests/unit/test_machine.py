"""Device, and the locks around what is timed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
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


def test_a_second_run_of_a_stage_waits_for_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []

    def second() -> None:
        with machine.folder_lock(tmp_path / "work"):
            done.append("second")

    with machine.folder_lock(tmp_path / "work"), machine.folder_lock(tmp_path / "other"):
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


def test_auto_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert set_up(MachineSettings(dtype="bfloat16")) == (torch.device("cuda"), torch.bfloat16)
    assert set_up(MachineSettings(device="cpu"))[0] == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert set_up(MachineSettings()) == (torch.device("cpu"), torch.float32)
    with pytest.raises(InputError, match=r"machine\.device is cuda in params\.yaml"):
        set_up(MachineSettings(device="cuda"))


def test_each_process_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert set_up(MachineSettings())[0] == torch.device("cuda:1")
    assert taken == [1]
    assert set_up(MachineSettings(device="cpu"))[0] == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match="process 3 of this machine has no GPU, of which it has 2"):
        set_up(MachineSettings())


@pytest.mark.parametrize(
    ("threads", "processes", "shared_out", "own"),
    [
        (6, "1", None, 6),
        (6, "2", None, 3),
        (6, "2", "1", 3),  # what is set in params.yaml comes first
        (1, "2", None, 1),
        (0, "2", None, 4),
        (0, "2", "8", 8),
        (0, "1", None, 8),
    ],
)
def test_processes_share_out_the_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int, processes: str, shared_out: str | None, own: int
) -> None:
    now = [8]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: now.__setitem__(0, count))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if shared_out is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", shared_out)
    set_up(MachineSettings(device="cpu", threads=threads))
    assert now == [own]
