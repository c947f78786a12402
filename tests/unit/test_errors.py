"""Bad input ends in one line and exit status 2; a stage does not outlive what started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from tasks.errors import InputError, one_line_errors


def test_bad_input_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught, one_line_errors():
        raise InputError("no file\nhere")
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: no file here\n"


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(KeyError), one_line_errors():
        raise KeyError("bug")


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c",
    "import time; from tasks.errors import stage\\nwith stage(): print('up', flush=True); time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_stage_under_dvc_ends_with_its_parent() -> None:
    environment = os.environ | {"DVC_STAGE": "prepare"}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            assert parent.stdout.readline() == "up\n"
            parent.kill()
            deadline = time.monotonic() + 20
            while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        finally:
            if child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                child.kill()
