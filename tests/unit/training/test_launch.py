"""How many processes, where, and with which command; a hostfile is read whole before any work."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from tasks.errors import InputError
from tasks.machine import MachineSettings
from tasks.training import hosts, launch, workers
from tasks.training.hosts import Host, reach, read_hostfile
from tasks.training.workers import Command

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", workers.LAUNCHED)


@pytest.fixture(autouse=True)
def _not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """The commands that would have been run, which end well."""
    found: list[Command] = []

    def run(commands: list[Command]) -> int:
        found.extend(commands)
        return 0

    monkeypatch.setattr(workers, "run", run)
    return found


def no_work() -> None:
    raise AssertionError("the launcher works")


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    launch.add_arguments(parser)
    return parser.parse_args(given)


def hostfile(folder: Path, text: str) -> Path:
    path = folder / "hosts.txt"
    path.write_text(text, encoding="utf-8")
    return path


def ssh_that(folder: Path, does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for ssh, which is given its options, a host and a line for that host's shell."""
    stand_in = folder / "bin" / "ssh"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\nwhile [ "$#" -gt 2 ]; do shift; done\nhost=$1; line=$2\n{does}\n', encoding="utf-8")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}")


def test_the_command_line_overrides_the_settings() -> None:
    machine = MachineSettings(hostfile="hosts.txt")
    assert launch.overridden(machine, options()) == machine
    assert launch.overridden(machine, options("--nproc", "3")) == MachineSettings(processes=3)
    assert launch.overridden(MachineSettings(processes=3), options("--hostfile", "h")) == MachineSettings(hostfile="h")
    with pytest.raises(InputError, match=r"--nproc: processes is -1; it must be at least 0"):
        launch.overridden(machine, options("--nproc", "-1"))


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"processes is 2, but the slots in hostfile hosts\.txt already give the number"):
        MachineSettings(processes=2, hostfile="hosts.txt")


def test_one_process_works_itself(started: list[Command]) -> None:
    done: list[int] = []
    launch.in_processes(MachineSettings(device="cpu"), lambda: done.append(1))
    launch.in_processes(MachineSettings(processes=1), lambda: done.append(2))
    assert done == [1, 2]
    assert not started


def test_one_process_per_gpu(started: list[Command], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    launch.in_processes(MachineSettings(), no_work)
    assert [command.environment["LOCAL_RANK"] for command in started] == ["0", "1", "2"]
    started.clear()
    launch.in_processes(MachineSettings(device="cpu"), lambda: None)
    assert not started


def test_processes_here_run_the_same_command_and_meet_at_an_open_socket(started: list[Command]) -> None:
    launch.in_processes(MachineSettings(processes=2), no_work)
    first, second = started
    assert first.arguments == second.arguments == [sys.executable, *sys.orig_argv[1:]]
    assert first.environment["MASTER_PORT"] == second.environment["MASTER_PORT"]
    assert [first.environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == list("0202")
    assert [second.environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == list("1212")
    assert first.files == (int(first.environment[workers.LISTENER]),)
    assert not second.files


def test_the_status_of_the_processes_is_this_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "run", lambda _: 2)
    with pytest.raises(SystemExit) as caught:
        launch.in_processes(MachineSettings(processes=2), no_work)
    assert caught.value.code == 2


def test_what_another_launcher_started_starts_nothing(started: list[Command], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    done: list[int] = []
    launch.in_processes(MachineSettings(processes=2), lambda: done.append(1))
    assert done == [1]
    assert not started


def test_a_hostfile_that_names_this_machine_alone_needs_no_ssh(
    tmp_path: Path, started: list[Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "reach", no_work)
    launch.in_processes(MachineSettings(hostfile=str(hostfile(tmp_path, "localhost slots=2\n"))), no_work)
    assert len(started) == 2
    assert all("ssh" not in command.arguments for command in started)


def test_processes_of_other_hosts_are_started_through_ssh(
    tmp_path: Path, started: list[Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ssh_that(tmp_path, 'exec sh -c "$line"', monkeypatch)
    monkeypatch.setenv("NCCL_DEBUG", "WARN 1")
    monkeypatch.setenv("HF_TOKEN", "a secret")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:word@there")
    launch.in_processes(MachineSettings(hostfile=str(hostfile(tmp_path, "me@one slots=1\ntwo slots=2\n"))), no_work)
    assert [command.host for command in started] == ["me@one", "two", "two"]
    line = started[2].arguments[-1]
    assert line.startswith(f"cd {tmp_path} && exec env ")
    for told in ("RANK=2", "WORLD_SIZE=3", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=one", "'NCCL_DEBUG=WARN 1'"):
        assert told in line
    assert "secret" not in line
    assert "word" not in line


def test_a_hostfile_is_read_past_comments(tmp_path: Path) -> None:
    path = hostfile(tmp_path, "# ours\n\nnode1 slots=2  # the big one\nme@10.0.0.2   slots = 4\n")
    assert read_hostfile(path) == [Host("node1", 2), Host("me@10.0.0.2", 4)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"hosts\.txt names no host"),
        ("# none\n", r"hosts\.txt names no host"),
        ("node1 slots=2\nnode2\n", r"hosts\.txt, line 2: 'node2' is not `host slots=N`"),
        ("node1 slots=0\n", r"hosts\.txt, line 1: 'node1 slots=0' is not"),
        ("\nnode1 slot=2\n", r"hosts\.txt, line 2: 'node1 slot=2' is not"),
        ("-oProxyCommand=x slots=1\n", r"hosts\.txt, line 1: '-oProxyCommand=x slots=1' is not"),
        ("node1 slots=2\nnode1 slots=2\n", r"hosts\.txt, line 2: node1 stands on line 1 already"),
        ("me@node1 slots=2\nnode1 slots=2\n", r"hosts\.txt, line 2: node1 stands on line 1 already"),
        ("localhost slots=1\n127.0.0.1 slots=1\n", r"hosts\.txt, line 2: 127.0.0.1 stands on line 1 already"),
        (f"node1 slots={'9' * 5000}\n", r"hosts\.txt, line 1: 'node1 slots=9+' is not"),
        ("localhost slots=1\nnode2 slots=1\n", r"hosts\.txt begins with localhost, where each of the other hosts would look"),
    ],
)
def test_a_hostfile_of_another_form_is_refused_by_its_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_hostfile(hostfile(tmp_path, text))


def test_a_missing_hostfile_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt cannot be read: No such file or directory; it has a line"):
        read_hostfile(tmp_path / "nowhere.txt")


def test_hosts_that_answer_give_a_port_and_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh_that(tmp_path, 'exec sh -c "$line"', monkeypatch)
    assert 1024 <= reach([Host("one", 1), Host("two", 1)], tmp_path, sys.executable) < 65536
    assert not list((tmp_path / ".cache").iterdir())


@pytest.mark.parametrize(
    ("does", "told"),
    [
        (
            '[ "$host" = one ] && exec sh -c "$line"; echo "ssh: no route" >&2; exit 255',
            r"two cannot be reached \(ssh: no route\)",
        ),
        ("exit 255", r"one cannot be reached \(ssh gives no reason\).*must share the folder"),
        ("exit 1", r"one is reached, but does not share the folder"),
    ],
)
def test_a_host_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, told: str) -> None:
    ssh_that(tmp_path, does, monkeypatch)
    with pytest.raises(InputError, match=f"the host {told}"):
        reach([Host("one", 1), Host("two", 1)], tmp_path, sys.executable)
    assert not list((tmp_path / ".cache").iterdir())


def test_without_ssh_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="needs ssh, which is not on PATH"):
        reach([Host("one", 1)], tmp_path, sys.executable)
