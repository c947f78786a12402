"""How many processes, where, and by which launcher."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks import supervisor
from tasks.errors import InputError
from tasks.machine import MachineSettings
from tasks.training import launch, launchers

GROUP = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS")


@pytest.fixture(autouse=True)
def _not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GROUP:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the launchers would have been asked for."""
    found: list[object] = []
    monkeypatch.setattr(launchers, "run_with_torch", found.append)
    monkeypatch.setattr(launchers, "run_with_deepspeed", found.append)
    return found


def no_work() -> None:
    raise AssertionError("the launcher works")


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    launch.add_arguments(parser)
    return parser.parse_args(given)


def test_the_command_line_overrides_the_settings() -> None:
    machine = MachineSettings(hostfile="hosts.txt")
    assert launch.with_overrides(machine, options()) == machine
    assert launch.with_overrides(machine, options("--nproc", "3")) == MachineSettings(processes=3)
    assert launch.with_overrides(MachineSettings(processes=3), options("--hostfile", "h")) == MachineSettings(hostfile="h")
    with pytest.raises(InputError, match=r"--nproc: processes is -1; it must be at least 0"):
        launch.with_overrides(machine, options("--nproc", "-1"))


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"processes is 2, but .*hosts\.txt"):
        MachineSettings(processes=2, hostfile="hosts.txt")


def test_one_process_works_itself(launched: list[object]) -> None:
    done: list[int] = []
    launch.run(MachineSettings(device="cpu"), lambda: done.append(1))
    launch.run(MachineSettings(processes=1), lambda: done.append(2))
    assert done == [1, 2]
    assert not launched


def test_the_settings_choose_the_launcher(launched: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    for machine in (MachineSettings(processes=2), MachineSettings(hostfile="hosts.txt"), MachineSettings()):
        launch.run(machine, no_work)
    assert launched == [2, Path("hosts.txt"), 3]


def test_a_rank_starts_nothing(launched: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    done: list[int] = []
    launch.run(MachineSettings(processes=2), lambda: done.append(1))
    assert done == [1]
    assert not launched


def test_a_command_that_no_launcher_started_is_left_alone() -> None:
    with pytest.raises(KeyError, match="bug"), launch.as_rank():
        raise KeyError("bug")
    assert not set(GROUP) & os.environ.keys()


class Started:
    """What DeepSpeed's launcher would have been started with, and how it would have ended."""

    command: list[str]
    environment: dict[str, str]
    status = 0

    @contextlib.contextmanager
    def running(self, command: list[str], env: dict[str, str]) -> Iterator[Any]:
        self.command, self.environment = command, env
        yield SimpleNamespace(wait=lambda: self.status)


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    started = Started()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervisor, "running", started.running)
    monkeypatch.setattr(launchers, "reach", lambda hosts, folder: 4567)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "tasks.finetune", "--task", "toy", "--hostfile", "hosts.txt"])
    return started


def hostfile(text: str) -> Path:
    path = Path("hosts.txt")
    path.write_text(text, encoding="utf-8")
    return path


def test_several_hosts_run_the_same_module_through_pdsh(deepspeed: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:word@there")
    launchers.run_with_deepspeed(hostfile("node1 slots=1\nnode2 slots=2\n"))
    assert deepspeed.command[1:3] == ["-m", "deepspeed.launcher.runner"]
    assert {"--hostfile=hosts.txt", "--master_port=4567", "--force_multi", "--no_local_rank"} <= set(deepspeed.command)
    assert deepspeed.command[-6:] == ["--module", "tasks.finetune", "--task", "toy", "--hostfile", "hosts.txt"]
    assert deepspeed.environment["NCCL_DEBUG"] == "WARN"
    # pdsh's command line, which all users of a host can read, has the variables that DeepSpeed passes on.
    assert not any("secret" in value or "word" in value for value in deepspeed.environment.values())


def test_this_machine_alone_needs_no_other_program(deepspeed: Started) -> None:
    launchers.run_with_deepspeed(hostfile("localhost slots=2\n"))
    assert "--master_addr=127.0.0.1" in deepspeed.command
    assert "--force_multi" not in deepspeed.command


@pytest.mark.parametrize(("status", "code", "lines"), [(2, 2, 0), (1, 1, 1), (247, 1, 1)])
def test_a_failed_rank_is_the_status_of_the_run(
    deepspeed: Started, status: int, code: int, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    deepspeed.status = status
    with pytest.raises(SystemExit) as caught:
        launchers.run_with_deepspeed(hostfile("localhost slots=2\n"))
    assert caught.value.code == code
    # What a rank refuses, it has said itself.
    assert capsys.readouterr().err.count("\n") == lines


def test_the_status_of_ranks_started_here_is_that_of_a_refusal_or_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert launchers._status_of({0: -signal.SIGTERM, 1: 2}, 2) == 2
    assert launchers._status_of({0: 1, 1: -signal.SIGTERM}, 2) == 1
    assert capsys.readouterr().err == ""
    assert launchers._status_of({1: -signal.SIGKILL}, 2) == 1
    assert "rank 1 of 2 was killed by SIGKILL" in capsys.readouterr().err


def test_a_script_is_not_started_on_other_hosts(deepspeed: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "finetune.py"])
    with pytest.raises(InputError, match="python -m"):
        launchers.run_with_deepspeed(hostfile("localhost slots=2\n"))
