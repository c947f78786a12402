"""Locks that another process holds."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HOLDER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from tasks.locks import Share, share_lock, timing_lock, working_lock
with eval(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def holding(lock: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a lock, of `tempfile.tempdir`, until its standard input is closed or the block ends."""
    command = [sys.executable, "-c", HOLDER, str(folder), lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield holder
