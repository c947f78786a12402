"""What the doctor says of devices, disk, cores and memory."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from tasks import cgroups
from tasks.doctor import devices, resources
from tasks.doctor.finding import MISSING, OK, WARNING, run
from tasks.doctor.probing import Answer
from tests.machine_facts import check, facts

Usage = namedtuple("Usage", "total used free")


GPU = {"name": "a GPU", "bytes": 80e9, "failure": ""}


@pytest.mark.parametrize(
    ("device", "torch", "nvidia", "state", "words"),
    [
        ("auto", {}, False, OK, "the models run on the CPU"),
        ("cuda", {}, False, MISSING, "machine.device is cuda"),
        ("auto", {}, True, WARNING, "torch is built for the CPU alone"),
        ("cuda", {}, True, MISSING, "torch is built for the CPU alone"),
        ("auto", {"cuda": "12.9", "driver": "no driver"}, False, WARNING, "built for CUDA 12.9, but finds no GPU (no driver)"),
        ("cuda", {"cuda": "12.9", "driver": "no driver"}, True, MISSING, "built for CUDA 12.9, but finds no GPU (no driver)"),
        ("auto", {"cuda": "12.9", "gpus": [GPU]}, True, OK, "a GPU (80 GB)"),
        ("cpu", {"cuda": "12.9", "gpus": [GPU]}, True, OK, "not used"),
        ("auto", {"cuda": "12.9", "gpus": [GPU | {"failure": "no kernel image"}]}, True, MISSING, "a GPU: no kernel image"),
        ("cpu", {"cuda": "12.9", "gpus": [GPU | {"failure": "no kernel image"}]}, True, OK, "not used"),
    ],
)
def test_gpu_and_build_of_torch(
    device: str, torch: dict[str, Any], nvidia: bool, state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "nvidia_devices", lambda: nvidia)
    found = devices.gpu(facts({"device": device}, **torch))
    assert found.state == state
    assert words in found.found
    assert bool(found.fix) == (state != OK)


def test_nvidia_devices_without_a_driver(tmp_path: Path) -> None:
    (tmp_path / "0000:00:01.0").mkdir()
    (tmp_path / "0000:00:01.0" / "vendor").write_text("0x1af4\n")
    assert not devices.nvidia_devices(tmp_path, tmp_path)
    (tmp_path / "0000:00:02.0").mkdir()
    (tmp_path / "0000:00:02.0" / "vendor").write_text("0x10de\n")
    assert devices.nvidia_devices(tmp_path, tmp_path)


def test_torch_that_does_not_start() -> None:
    given = facts()
    given.__dict__["torch"] = Answer([], "the process was ended by SIGILL")
    assert run(check("torch"), given).state == MISSING
    assert run(check("GPU"), given).state == WARNING


def test_hosts_need_their_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert devices.hosts(facts()).state == OK
    hostfile = tmp_path / "hosts"
    given = facts({"hostfile": str(hostfile)})
    assert "no hostfile" in devices.hosts(given).found
    hostfile.touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (devices.hosts(given).state, devices.hosts(given).found) == (MISSING, "ssh and pdsh not on PATH")


@pytest.mark.parametrize(
    ("ready", "free", "state"),
    [(True, 50e9, OK), (True, 3e9, WARNING), (True, 0.1e9, MISSING), (False, 3e9, MISSING), (False, 7e9, WARNING)],
)
def test_a_disk_that_is_nearly_full(
    ready: bool, free: float, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    if ready:
        Path(".venv").mkdir()
        Path(".venv/.ready").touch()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100e9, 100e9 - free, free))
    assert resources.disk(facts()).state == state
    assert [path.name for path in tmp_path.iterdir()] == ([".venv"] if ready else [])


def test_a_disk_that_takes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = run(check("disk"), facts())
    assert (result.state, result.found) == (MISSING, "a file cannot be written here: No space left on device")


@pytest.mark.parametrize(
    ("limit", "threads", "state"), [(None, 0, OK), (None, 9, WARNING), (2.0, 0, WARNING), (2.0, 2, OK), (8.0, 0, OK)]
)
def test_cores_beyond_the_limit_of_a_container(
    limit: float | None, threads: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    monkeypatch.setattr(cgroups, "core_limit", lambda: limit)
    assert resources.cores(facts({"threads": threads})).state == state


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_available", lambda: 8e9)
    monkeypatch.setattr(cgroups, "memory_limit", lambda: None)
    assert resources.memory(facts()).state == OK
    monkeypatch.setattr(cgroups, "memory_limit", lambda: 1 << 30)
    assert "limit is 1.1 GB" in resources.memory(facts()).found
    assert resources.memory(facts()).state == WARNING
