"""Bad input ends in one line that names the thing, the place and the mend, with exit status 2."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator

STATUS_BAD_INPUT = 2
_PR_SET_PDEATHSIG = 1


class InputError(Exception):
    """A wrong setting, file or model pair; its message is the one line that the user reads."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns an `InputError` into one line on standard error and exit status 2."""
    try:
        yield
    except InputError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(STATUS_BAD_INPUT) from None


def die_with_parent() -> None:
    """Asks the kernel (Linux) to end this process when its parent ends.

    A killed `dvc` otherwise orphans the command that it started, which then writes beside its own re-run.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def stage() -> Iterator[None]:
    """What every stage's `main` runs inside: one-line errors, and no orphan when DVC started it."""
    if os.environ.get("DVC_STAGE"):
        die_with_parent()
    with one_line_errors():
        yield
