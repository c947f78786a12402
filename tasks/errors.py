"""Bad input ends the process with exit status 2 and one line that names the thing, the place and the fix."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from tasks.files import remove
from tasks.supervisor import die_with_parent

STATUS_BAD_INPUT = 2
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_WORDS = ("No space left on device", "database or disk is full", "Disk quota exceeded")
_CUT_SHORT = ("PytorchStreamWriter failed", "unexpected pos", "iostream error")
_BARELY_FREE = 1 << 20
"""Bytes: a disk with less room is full to whoever writes weights."""


class InputError(Exception):
    """A wrong setting, file or model pair; its message is the one line that the user reads."""


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns an `InputError`, and a disk that is full, into one line on standard error and exit status 2."""
    try:
        yield
    except InputError as error:
        _end(str(error))
    except Exception as error:
        place = Path(getattr(error, "filename", None) or ".")
        if not disk_full(error, place):
            raise
        _end(f"no space left on the disk of {place.absolute()}, {free_space(place)} are free; make room and run again")


@contextlib.contextmanager
def writing(what: str, partial: Path, then: Callable[[], str]) -> Iterator[None]:
    """Removes what was written to `partial`, a file or a folder, where writing it fails.

    Args:
        what: What is written, in words.
        partial: Where.
        then: What the same command does when it is run again, in words.

    Raises:
        InputError: no space is left.
    """
    try:
        yield
    except Exception as error:
        full = disk_full(error, partial)
        remove(partial)
        if not full:
            raise
        raise InputError(
            f"no space left for {what} in {partial.parent}: it needs more than the {free_space(partial)} that are free there; "
            f"make room and run again, which {then()}"
        ) from None


def disk_full(error: BaseException, place: Path) -> bool:
    """Whether writing to `place` failed because there is no space left.

    Libraries that write by themselves say so in words; torch says only that a file came out too short.
    """
    for cause in _causes(error):
        words = str(cause)
        if getattr(cause, "errno", None) in _FULL or any(known in words for known in _FULL_WORDS):
            return True
        if any(known in words for known in _CUT_SHORT) and _free_bytes(place) < _BARELY_FREE:
            return True
    return False


def free_space(place: Path) -> str:
    """What is free on the disk of a file or folder, which need not exist yet, in words."""
    return f"{_free_bytes(place) / 1e6:.1f} MB"


def _free_bytes(place: Path) -> int:
    there = place.absolute()
    return shutil.disk_usage(next(folder for folder in (there, *there.parents) if folder.exists())).free


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _end(line: str) -> NoReturn:
    print(f"error: {' '.join(line.split())}", file=sys.stderr)
    raise SystemExit(STATUS_BAD_INPUT) from None


@contextlib.contextmanager
def stage() -> Iterator[None]:
    """What every stage's `main` runs inside: one-line errors, and no orphan when DVC started it."""
    if os.environ.get("DVC_STAGE"):
        die_with_parent()
    with one_line_errors():
        yield
