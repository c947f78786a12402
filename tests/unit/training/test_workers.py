"""Workers end together, whoever ends first, and say why once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tasks.training.workers import LAUNCHED, Command, run

ROOT = Path(__file__).parents[3]
WAITS = "time.sleep(60)"
IN_WORKER = """
import os, signal, sys, time
from tasks.errors import InputError, stage
from tasks.training.workers import as_worker
with stage(), as_worker():
    {work}
"""


def command(work: str, host: str | None = None) -> Command:
    return Command([sys.executable, "-c", IN_WORKER.format(work=work)], {**os.environ, LAUNCHED: "1"}, host)


def test_all_that_succeed_give_0_and_only_the_first_is_heard(capfd: pytest.CaptureFixture[str]) -> None:
    told = "print('out', flush=True); print('err', file=sys.stderr)"
    assert run([command(told), command(told)]) == 0
    assert capfd.readouterr() == ("out\n", "err\n")


def test_bad_input_of_all_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    bad = "raise InputError('no such file')"
    assert run([command(bad), command(bad), command(bad)]) == 2
    assert capfd.readouterr() == ("", "error: no such file\n")


def test_bad_input_of_one_ends_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    assert run([command(WAITS), command("raise InputError('not here')")]) == 2
    assert time.monotonic() - begun < 20
    assert capfd.readouterr().err == "error: not here\n"


def test_bad_input_is_named_even_where_another_fails_of_it_first(capfd: pytest.CaptureFixture[str]) -> None:
    lost = "raise ConnectionError('peer is gone')"
    assert run([command(lost), command("time.sleep(0.3); raise InputError('the cause')")]) == 2
    assert capfd.readouterr().err == "error: the cause\n"


def test_a_killed_worker_ends_the_others_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    bar = "sys.stderr.write('50 %'); sys.stderr.flush()"
    killed = "time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)"
    assert run([command(f"{bar}; {WAITS}"), command(killed)]) == 1
    first, second = capfd.readouterr().err.splitlines()
    assert first == "50 %"
    assert second.startswith("error: process 2 of 2 was ended by SIGKILL")


def test_a_lost_host_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    lost = Command(["sh", "-c", "exit 255"], os.environ, "node2")
    assert run([command(WAITS), lost]) == 1
    assert "process 2 of 2 on node2 was ended, or the connection was" in capfd.readouterr().err


def test_a_mistake_of_the_program_keeps_its_traceback_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([command("raise KeyError('bug')"), command("raise KeyError('bug')")]) == 1
    error = capfd.readouterr().err
    assert error.count("KeyError: 'bug'") == 1
    assert "Traceback" in error


def test_what_ends_without_last_words_is_shown_as_it_spoke(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([command(WAITS), Command(["sh", "-c", "echo unable >&2; exit 3"], os.environ)]) == 1
    assert capfd.readouterr().err == "unable\nprocess 2 of 2 ended with status 3\n"


LAUNCHER = """
import sys
from tasks.training.workers import Command, run
import os
arguments = [sys.executable, "-c", sys.argv[1]]
print(run([Command(arguments, os.environ)] * 2))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_launcher(number: signal.Signals) -> None:
    work = IN_WORKER.format(work=f"print('up', flush=True); {WAITS}")
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, work], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "up\n"
        workers = psutil.Process(launcher.pid).children(recursive=True)
        assert len(workers) == 2
        launcher.send_signal(number)
        _, alive = psutil.wait_procs(workers, timeout=20)
        for worker in alive:
            worker.kill()
        assert not alive
        _, error = launcher.communicate(timeout=20)
    assert error == ""
    assert launcher.returncode == (-number if number == signal.SIGKILL else 128 + number)


def test_signals_are_as_before_afterwards() -> None:
    before: list[Callable[..., object] | int | None] = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    run([command("pass")])
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
