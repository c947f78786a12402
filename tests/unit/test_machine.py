"""The device, the number format and the threads of a stage, and the limits of control groups in both versions."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.errors import InputError
from tasks.machine import MachineSettings, core_limit, memory_limit, on_threads, return_freed_memory, set_up


def test_auto_chooses_an_available_device(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(InputError, match="process 3 of this machine has no GPU, because the machine has 2"):
        set_up(MachineSettings())


@pytest.mark.parametrize(
    ("threads", "processes", "shared_out", "own"),
    [
        (6, "2", None, 3),
        (6, "2", "1", 3),  # what is set in params.yaml comes first
        (1, "2", None, 1),
        (0, "2", None, 4),
        (0, "2", "8", 8),
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


def test_more_threads_or_processes_than_some_for_each_core_are_refused() -> None:
    most = max(16, 4 * (os.cpu_count() or 1))
    for name in ("threads", "processes", "workers"):
        settings: dict[str, Any] = {name: most + 1}
        with pytest.raises(InputError, match=rf"machine\.{name} is {most + 1}, which is too many .* at most {most}$"):
            set_up(MachineSettings(device="cpu", **settings))
    with pytest.raises(InputError, match="latency_threads is 1000, which is too many"), on_threads(1000):
        pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"runtime": "native", "device": "cuda"}, "runtime is native, which runs on a CPU, but device is cuda"),
        ({"dtype": "int8", "runtime": "fused"}, "^dtype is int8, which takes the native runtime, but runtime is fused"),
        ({"drafter_dtype": "int8", "runtime": "reference"}, "^drafter_dtype is int8, which takes the native runtime"),
    ],
)
def test_a_runtime_that_the_device_or_the_format_rules_out_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MachineSettings(**settings)


def test_how_many_processes_work_is_no_part_of_what_a_stage_depends_on() -> None:
    assert MachineSettings(processes=2, workers=4, threads=3).alone() == MachineSettings(threads=3)


def test_limits_of_control_groups(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    group = root / "a" / "b"
    group.mkdir(parents=True)
    own.write_text("0::/a/b\n")
    assert core_limit(root, own) is memory_limit(root, own) is None
    (group / "cpu.max").write_text("max 100000\n")
    (root / "a" / "cpu.max").write_text("150000 100000\n")
    (group / "memory.max").write_text("max\n")
    (root / "a" / "memory.max").write_text("1000\n")
    assert (core_limit(root, own), memory_limit(root, own)) == (1.5, 1000)
    for controller, files in {
        "cpu": {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"},
        "memory": {"memory.limit_in_bytes": "2000"},
    }.items():
        (root / controller).mkdir()
        for name, text in files.items():
            (root / controller / name).write_text(text)
    own.write_text("3:cpu,cpuacct:/of/the/host\n2:memory:/of/the/host\n")
    assert (core_limit(root, own), memory_limit(root, own)) == (3.0, 2000)
    (root / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    (root / "memory" / "memory.limit_in_bytes").write_text(str((1 << 63) - 4096))
    assert core_limit(root, own) is memory_limit(root, own) is None


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_freed_memory_between_what_is_kept_goes_back() -> None:
    """Blocks under glibc's 128 KiB for memory of their own, each behind a small one that stays."""
    kept, freed = list[bytearray](), list[bytearray]()
    for _ in range(1000):
        freed.append(bytearray(b"\1" * 100_000))
        kept.append(bytearray(1000))
    full = resident()
    freed.clear()
    return_freed_memory()
    assert full - resident() > 80_000_000 and len(kept) == 1000
