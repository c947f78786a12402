"""Ranks started by each launcher: a failure is shown once, and no process outlives the run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.commands import write_scripts

ROOT = Path(__file__).parents[2]
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = 900


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    return kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def ranks(scenario: str, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "tests.ranks", scenario, *options, **more)


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment(**more), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def srun(scenario: str, tasks: int = 2) -> list[tuple[int, str, str]]:
    """Status, output and errors of the tasks that srun would start, with its variables."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.ranks", scenario],
            cwd=ROOT,
            env=environment(
                SLURM_PROCID=str(rank),
                SLURM_NTASKS=str(tasks),
                SLURM_LOCALID=str(rank),
                SLURM_NODELIST="localhost",
                SLURM_TASKS_PER_NODE=str(tasks),
                MASTER_PORT=port,
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(tasks)
    ]
    said = [process.communicate(timeout=TIMEOUT) for process in started]
    return [(process.returncode, *texts) for process, texts in zip(started, said, strict=True)]


def test_a_refusal_of_one_rank_under_srun_is_one_line_in_all() -> None:
    """Nothing but the ranks themselves ends the others here: rank 0 waits for the one that refuses."""
    found = srun("refuse_in_last_rank")
    assert [status for status, _, _ in found] == [2, 2]
    assert "".join(errors for _, _, errors in found) == f"error: rank 1 on {socket.gethostname()}: no such file\n"


def test_a_killed_rank_ends_the_others_in_one_line() -> None:
    done = ranks("killed", "--nproc", "2")
    assert done.returncode == 1
    assert done.stderr.startswith("error: rank 1 of 2 was killed by SIGKILL")
    assert done.stderr.count("\n") == 1


def wait_for_end(launcher: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to a launcher whose ranks are up; nothing that it started may be left."""
    assert launcher.stdout is not None
    while line := launcher.stdout.readline():
        if line == "up\n":
            break
    assert line, "the ranks did not start"
    started = psutil.Process(launcher.pid).children(recursive=True)
    assert len([one for one in started if "tests.ranks" in one.cmdline()]) >= 2
    launcher.send_signal(number)
    _, alive = psutil.wait_procs(started, timeout=120)
    for process in alive:
        process.kill()
    assert not alive


def launcher_of(*options: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.ranks", "wait", *options],
        cwd=ROOT,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGINT))]
)
def test_no_rank_outlives_its_launcher(number: signal.Signals) -> None:
    with launcher_of("--nproc", "2") as launcher:
        wait_for_end(launcher, number)
        _, errors = launcher.communicate(timeout=TIMEOUT)
    assert errors == ""
    assert launcher.returncode == (-number if number == signal.SIGKILL else 128 + number)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["nproc", "srun"])
def test_a_refusal_of_all_ranks_is_one_line(launcher: str) -> None:
    if launcher == "srun":
        found = srun("refuse")
        statuses, errors = [status for status, _, _ in found], "".join(text for _, _, text in found)
    else:
        done = ranks("refuse", "--nproc", "2")
        statuses, errors = [done.returncode], done.stderr
    assert set(statuses) == {2}, errors
    assert errors.startswith("error: rank ")
    assert errors.endswith(": no such file\n")
    assert errors.count("\n") == 1


@pytest.mark.slow
def test_an_unexpected_error_has_one_traceback() -> None:
    done = ranks("crash", "--nproc", "2")
    assert done.returncode == 1
    assert done.stderr.count("KeyError: 'bug'") == 1
    assert done.stderr.count("Traceback") == 1


@pytest.mark.slow
def test_torchrun_starts_ranks() -> None:
    done = run("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "tests.ranks", "add_ranks")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["3 0 2 0 2", "3 1 2 1 2"]


PDSH = """
while [ "$1" != -w ]; do shift; done
hosts=$2; shift 2
[ "$1" = -N ] && shift
case "$*" in pkill*) exit 0;; esac
node=0; started=
for host in $(echo "$hosts" | tr , ' '); do
  line=$(echo "$*" | sed "s/%n/$node/")
  (cd / && exec env -i PATH=/usr/bin:/bin HOME="$HOME" sh -c "$line") &
  started="$started $!"; node=$((node + 1))
done
status=0
for one in $started; do wait "$one" || { code=$?; [ "$code" -gt "$status" ] && status=$code; }; done
exit "$status"
"""
"""Runs the line of each host in a shell here, with the bare environment of a login, and gives the largest status as -S does."""
SSH = """
while [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done
shift
[ "$*" = "hostname -I" ] && { echo 127.0.0.1; exit 0; }
exec sh -c "$*"
"""


@pytest.fixture
def hosts(tmp_path: Path) -> dict[str, str]:
    """Two hosts that are loopback addresses: options and PATH."""
    (tmp_path / "hosts.txt").write_text("127.0.0.2 slots=1\n127.0.0.3 slots=1\n", encoding="utf-8")
    return {"hostfile": str(tmp_path / "hosts.txt"), "PATH": write_scripts(tmp_path, pdsh=PDSH, ssh=SSH)}


def sums(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the ranks printed, without DeepSpeed's own remarks."""
    return [line for line in done.stdout.splitlines() if line.startswith("3 ")]


@pytest.mark.slow
def test_deepspeed_starts_ranks_on_two_hosts(hosts: dict[str, str]) -> None:
    done = ranks("add_ranks", "--hostfile", hosts["hostfile"], PATH=hosts["PATH"])
    assert done.returncode == 0, done.stderr
    assert sums(done) == ["3 0 2 0 1", "3 1 2 0 1"]


@pytest.mark.slow
def test_a_refusal_on_another_host_is_one_line(hosts: dict[str, str]) -> None:
    done = ranks("refuse_in_last_rank", "--hostfile", hosts["hostfile"], PATH=hosts["PATH"])
    assert done.returncode == 2
    assert done.stderr == f"error: rank 1 on {socket.gethostname()}: no such file\n"


@pytest.mark.slow
def test_deepspeed_starts_ranks_on_this_host(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("localhost slots=2\n", encoding="utf-8")
    done = ranks("add_ranks", "--hostfile", str(tmp_path / "hosts.txt"))
    assert done.returncode == 0, done.stderr
    assert sums(done) == ["3 0 2 0 2", "3 1 2 1 2"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_rank_outlives_the_deepspeed_launcher(hosts: dict[str, str], number: signal.Signals) -> None:
    with launcher_of("--hostfile", hosts["hostfile"], PATH=hosts["PATH"]) as launcher:
        wait_for_end(launcher, number)
        launcher.communicate(timeout=TIMEOUT)
    assert launcher.returncode != 0


@pytest.mark.slow
def test_the_deepspeed_command_starts_ranks(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("localhost slots=2\n", encoding="utf-8")
    options = (f"--hostfile={tmp_path / 'hosts.txt'}", "--no_ssh_check", "--master_addr=127.0.0.1", "--log_level=error")
    done = run("-m", "deepspeed.launcher.runner", *options, "--no_local_rank", "--module", "tests.ranks", "add_ranks")
    assert done.returncode == 0, done.stderr
    assert sums(done) == ["3 0 2 0 2", "3 1 2 1 2"]
