"""No process outlives a supervised command or whoever asked for it."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks import supervisor
from tests.served import below, gone, until

ROOT = Path(__file__).parents[2]
FAMILY = "(sleep 300 & echo $! >> pids; wait) & echo $! >> pids; echo $$ >> pids; wait"
"""A shell, a shell below it, and a sleep below that; they write down their process ids."""


def start(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    return supervisor.start(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def family(folder: Path) -> list[psutil.Process]:
    """The processes of `FAMILY`, once there are three."""
    file = folder / "pids"
    until("three processes", lambda: file.exists() and len(file.read_text().split()) == 3)
    return [psutil.Process(int(pid)) for pid in file.read_text().split()]


@pytest.mark.parametrize(("command", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_status_is_the_commands(tmp_path: Path, command: str, status: int) -> None:
    with start(tmp_path, "sh", "-c", command) as process:
        assert process.wait(300) == status


def test_a_missing_command_is_named(tmp_path: Path) -> None:
    with start(tmp_path, "no-such-command") as process:
        assert b"no-such-command does not start" in process.communicate(timeout=300)[0]
        assert process.returncode == 127


def test_repeated_signals_of_a_killed_parent_end_the_descendants_once(tmp_path: Path) -> None:
    with start(tmp_path, "sh", "-c", FAMILY) as process:
        processes = family(tmp_path)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        assert gone(processes)


def test_a_command_that_ignores_a_signal_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, pathlib, time; signal.signal(15, signal.SIG_IGN); pathlib.Path('ready').touch(); time.sleep(300)"
    with supervisor.start([sys.executable, "-c", deaf], cwd=tmp_path, grace=0.5) as process:
        until("the command", (tmp_path / "ready").exists)
        (child,) = psutil.Process(process.pid).children()
        process.terminate()
        assert gone([child])


def test_a_killed_supervisor_takes_its_command_along(tmp_path: Path) -> None:
    with start(tmp_path, "sleep", "300") as process:
        found = until("the command", lambda: [one for one in below(process) if one.name() == "sleep"])
        process.kill()
        assert gone(found)


def test_a_finished_command_leaves_no_background_process(tmp_path: Path) -> None:
    # The background process holds the output open, so that reading it waits for its end: at once, or by itself.
    with start(tmp_path, "sh", "-c", "(sleep 10 && touch outlived) & exit 0") as process:
        process.communicate(timeout=300)
        assert process.returncode == 0
    assert not (tmp_path / "outlived").exists()


def test_a_command_gets_the_streams_the_folder_and_the_environment_that_it_is_given(tmp_path: Path) -> None:
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = ["sh", "-c", 'pwd; cat; echo "$OMP_WAIT_POLICY $WORD" >&2; exit 3']
    with supervisor.running(command, cwd=tmp_path, env={"WORD": "given"}, **streams) as process:
        assert process.communicate("ä".encode()) == (f"{tmp_path}\nä".encode(), b" given\n")
    assert process.returncode == 3


def test_an_error_in_the_block_ends_the_command(tmp_path: Path) -> None:
    processes: list[psutil.Process] = []
    with pytest.raises(KeyError), supervisor.running(["sh", "-c", FAMILY], cwd=tmp_path):
        processes = family(tmp_path)
        raise KeyError
    assert len(processes) == 3
    assert gone(processes)


def test_a_killed_parent_ends_all_descendants(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tasks import supervisor;"
        "supervisor.start(['sh', '-c', sys.argv[2]], cwd=Path(sys.argv[1])).wait()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), FAMILY], cwd=ROOT)
    try:
        processes = family(tmp_path)
    finally:
        parent.kill()
        parent.wait()
    assert gone(processes)


@contextlib.contextmanager
def worker_of(folder: Path, code: str, **given: Any) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """A script in a process of its own, and its worker, which writes its process id into `pid`."""
    script, written = folder / "parent.py", folder / "pid"
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    given["env"] = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, script], cwd=folder, **given) as parent:
        until("a worker", lambda: written.exists() and written.read_text().endswith("\n"))
        yield parent, psutil.Process(int(written.read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent_and_ctrl_c_shows_one_traceback(tmp_path: Path, number: int) -> None:
    code = r"""
        import os, pathlib, signal, time
        from tasks import supervisor

        def work():
            pathlib.Path("pid").write_text(f"{os.getpid()}\n")
            time.sleep(300)

        if __name__ == "__main__":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests ignore it, in a background
            with supervisor.workers(1) as executor:
                executor.submit(work).result()
    """
    with worker_of(tmp_path, code, stderr=subprocess.PIPE, start_new_session=True) as (parent, worker):
        # A terminal sends Ctrl-C to all processes of the group.
        (os.killpg if number == signal.SIGINT else os.kill)(parent.pid, number)
        said = parent.communicate()[1].decode()
    assert gone([worker])
    assert said.count("KeyboardInterrupt") == (number == signal.SIGINT)
    assert said.count("Traceback") == said.count("KeyboardInterrupt")


def test_a_worker_whose_parent_ended_while_it_was_starting_ends(tmp_path: Path) -> None:
    code = r"""
        import os, pathlib, time
        from tasks import supervisor

        if __name__ == "__main__":
            with supervisor.workers(1) as executor:
                executor.submit(int).result()
        else:  # the worker imports this file before its first work
            pathlib.Path("pid").write_text(f"{os.getpid()}\n")
            parent = os.getppid()
            while os.getppid() == parent:
                time.sleep(0.01)
    """
    with worker_of(tmp_path, code) as (parent, worker):
        parent.kill()
    assert gone([worker])
