"""Bad input ends in one line and exit status 2; a stage does not outlive what started it."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tasks import errors
from tasks.errors import InputError, disk_full, one_line_errors
from tests.served import until

CLOSED = "Read-only file system"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InputError("no file\nhere"), "no file here"),
        (OSError(errno.EROFS, CLOSED, "/x"), f"no access to /x ({CLOSED}); make it and its folder writable and run again"),
        # A library that reports a closed folder in words.
        (
            RuntimeError(f"{CLOSED} (os error 30)"),
            f"a file cannot be written: {CLOSED} (os error 30); make its folder writable and run again",
        ),
    ],
    ids=repr,
)
def test_what_users_can_correct_is_a_line_and_status_2(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, one_line_errors():
        raise error
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_an_interrupted_command_says_what_comes_next(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, one_line_errors():
        raise KeyboardInterrupt
    assert caught.value.code == 130
    assert capsys.readouterr().err == "interrupted; the same command goes on from what is finished\n"


@pytest.mark.parametrize("printed", ["print('x' * 99999, flush=True)", "print('x')", "print('x'); sys.exit(0)"])
def test_a_reader_that_went_away_ends_the_process_as_its_signal_would(printed: str) -> None:
    opened = "import sys\nfrom tasks.errors import one_line_errors\nwith one_line_errors():\n    sys.stdin.read()"
    code = f"{opened}\n    {printed}"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE


OTHERS = [BrokenPipeError(), KeyError("bug"), OSError(errno.EACCES, "Permission denied"), RuntimeError("bug")]


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_errors_keep_their_traceback(error: Exception) -> None:
    """Also a broken pipe to another process than the reader of the output."""
    with pytest.raises(type(error)), one_line_errors():
        raise error


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        OSError(errno.ENOSPC, "No space left on device", "/not/there.jsonl"),
        OSError(errno.EDQUOT, "over quota"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
        RuntimeError("(sqlite3.OperationalError) database or disk is full"),
        raised_from(ValueError("could not save"), FULL),
    ],
    ids=repr,
)
def test_a_full_disk_is_one_line_with_the_file(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, one_line_errors():
        raise error
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    full = getattr(error, "filename", None) or Path.cwd()
    assert line.startswith(f"error: no space left on the disk of {full}, ")
    assert line.endswith(" MB are free; make room and run again")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
def test_a_device_that_is_full_is_known_by_what_writing_to_it_raises() -> None:
    with pytest.raises(OSError, match="No space") as caught:
        Path("/dev/full").write_text("x")
    assert disk_full(caught.value, Path("/dev"))


@pytest.mark.parametrize("words", ["inline_container.cc:672 . unexpected pos 576 vs 534", "PytorchStreamWriter failed"])
def test_a_short_torch_file_is_a_full_disk_without_space(words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(errors, "_free_bytes", lambda _: 0)
    assert disk_full(RuntimeError(words), tmp_path)
    assert not disk_full(RuntimeError("bug"), tmp_path)
    monkeypatch.setattr(errors, "_free_bytes", lambda _: 1 << 30)
    assert not disk_full(RuntimeError(words), tmp_path)


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c",
    "import time; from tasks.errors import stage\\nwith stage(): print('up', flush=True); time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_stage_under_dvc_ends_with_its_parent() -> None:
    environment = os.environ | {"DVC_STAGE": "prepare"}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            assert parent.stdout.readline() == "up\n"
            parent.kill()
            until("its end", lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
        finally:
            if child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                child.kill()


BEGINNING = """
import threading
from tasks.errors import stage
def fail(thread): raise MemoryError
threading.Thread._set_ident = fail  # the first that a new thread does
with stage():
    threading.Thread(target=print).start()
"""
WAITING = """
import threading, time
from tasks.errors import stage
def run(): raise ERROR
with stage():
    threading.Thread(target=run).start()
    time.sleep(DELAY)
"""


@pytest.mark.parametrize(
    ("error", "status"),
    [('RuntimeError("can\'t start new thread")', 1), ("MemoryError()", 1), ('ValueError("of a library")', 0)],
)
def test_a_stage_does_not_wait_for_a_thread_that_memory_has_ended(error: str, status: int) -> None:
    # The first two would wait for ever; the third one, whose thread nobody waits for, ends by itself.
    code = WAITING.replace("ERROR", error).replace("DELAY", "0.2" if status == 0 else "600")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == status, ended.stderr
    assert ("error: no memory is left for a further thread" in ended.stderr) == bool(status)


def test_a_stage_does_not_wait_for_a_thread_that_never_began() -> None:
    """Python waits for ever until the new thread says that it runs."""
    ended = subprocess.run([sys.executable, "-c", BEGINNING], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1 and "error: no memory is left for a further thread" in ended.stderr
