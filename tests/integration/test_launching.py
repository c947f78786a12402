"""Ranks started by each launcher: a failure is shown once, and no process outlives the run."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ranks import ROOT, TIMEOUT, environment, run
from tests.services import free_port


def ranks(scenario: str, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return run("tests.ranks", scenario, *options, **more)


@pytest.mark.slow
def test_srun_starts_ranks_which_meet_at_the_user_s_address() -> None:
    """As srun would start them, with its variables; the first rank that refuses is one line of its own."""
    port = str(free_port())
    same = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [begun("add_ranks", SLURM_PROCID=rank, SLURM_LOCALID=rank, **same) for rank in ("0", "1")]
    said = [process.communicate(timeout=TIMEOUT)[0] for process in started]
    assert said == ["3 0 2 0 2\n", "3 1 2 1 2\n"]
    assert [process.returncode for process in started] == [0, 0]


def begun(scenario: str, *options: str, **more: str) -> subprocess.Popen[str]:
    """Start a scenario of `tests.ranks`, with these variables."""
    command, pipe = [sys.executable, "-m", "tests.ranks", scenario, *options], subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment(**more), stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGINT))]
)
def test_no_rank_outlives_its_launcher(number: signal.Signals) -> None:
    with begun("wait", "--nproc", "2") as launcher:
        assert launcher.stdout is not None and "up\n" in launcher.stdout, "the ranks did not start"
        started = psutil.Process(launcher.pid).children(recursive=True)
        assert len([one for one in started if "tests.ranks" in one.cmdline()]) >= 2
        launcher.send_signal(number)
        _, alive = psutil.wait_procs(started, timeout=120)
        for process in alive:
            process.kill()
        assert not alive
        _, errors = launcher.communicate(timeout=TIMEOUT)
    assert errors == ""
    assert launcher.returncode == (-number if number == signal.SIGKILL else 128 + number)


@pytest.mark.parametrize("scenario", ["refuse_in_last_rank", pytest.param("refuse", marks=pytest.mark.slow)])
def test_a_refusal_of_one_rank_or_of_all_is_one_line(scenario: str) -> None:
    done = ranks(scenario, "--nproc", "2")
    assert done.returncode == 2, done.stderr
    rank = 1 if scenario == "refuse_in_last_rank" else 0
    assert done.stderr == f"error: rank {rank} on {socket.gethostname()}: no such file\n"


@pytest.mark.slow
def test_an_unexpected_error_has_one_traceback() -> None:
    done = ranks("crash", "--nproc", "2")
    assert done.returncode == 1
    assert done.stderr.count("KeyError: 'bug'") == 1
    assert done.stderr.count("Traceback") == 1


@pytest.mark.slow
def test_the_deepspeed_command_starts_ranks(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("localhost slots=2\n", encoding="utf-8")
    given = (f"--hostfile={tmp_path / 'hosts.txt'}", "--no_ssh_check", "--master_addr=127.0.0.1", "--log_level=error")
    done = run("deepspeed.launcher.runner", *given, "--no_local_rank", "--module", "tests.ranks", "add_ranks")
    assert done.returncode == 0, done.stderr
    sums = [line for line in done.stdout.splitlines() if line.startswith("3 ")]  # without DeepSpeed's own remarks
    assert sums == ["3 0 2 0 2", "3 1 2 1 2"]
