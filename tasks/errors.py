"""Bad input ends the process with exit status 2 and one line that names the thing, where it is, and the fix."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from tasks import console
from tasks.files import damage, remove
from tasks.supervisor import die_with_parent

STATUS_BAD_INPUT = 2
STATUS_NOT_PROMOTED = 3
"""The exit status of a comparison after which the champion stays."""
_STATUS_BROKEN_PIPE = 128 + signal.SIGPIPE
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
_CLOSED_WORDS = ("Read-only file system", "Permission denied")
_FULL_WORDS = ("No space left on device", "database or disk is full", "Disk quota exceeded")
_CUT_SHORT = ("PytorchStreamWriter failed", "unexpected pos", "iostream error")
_BARELY_FREE = 1 << 20
"""Bytes; with less free space, a file of weights that came out too short means a full disk."""

_LONGEST = 2000
"""Characters of a message."""


class InputError(Exception):
    """A wrong setting, file or model pair. The message is the line that the user reads: the thing, where it is, and the fix."""


def require_whole(path: Path, fix: str = "run the stage that makes it again (dvc repro)") -> None:
    """Check that a sealed folder, or a file of one, is as it was written.

    Raises:
        InputError: it is not; names what changed.
    """
    if changed := damage(path):
        raise InputError(f"{path if path.is_dir() else path.parent}: {changed}; {fix}")


def check_picture(option: str, file: Path | None) -> None:
    """Check, before any work, that a figure can be written to a file; None is no figure.

    Raises:
        InputError: the name has another ending than `.svg` or `.png`, or the folder is missing or not writable.
    """
    if file is not None and file.suffix not in (".svg", ".png"):
        raise InputError(f"{option} is {file}; name a file that ends in .svg or .png")
    if file is not None and not ((folder := file.absolute().parent).is_dir() and os.access(folder, os.W_OK)):
        raise InputError(f"{option} is {file}, but {folder} is no folder to write in; make it, or name another")


def read_text_file(path: Path) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        InputError: the file cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name a text file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start + 1}); save it as UTF-8") from None


def read_lines(path: Path) -> list[str]:
    """Return the texts of a UTF-8 file, one a line.

    Raises:
        InputError: there is none, one is empty, or the file cannot be read.
    """
    return list(checked_lines(str(path), read_text_file(path).splitlines()))


def checked_lines(where: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield texts, one a line; raise `InputError` where there is none or one is empty."""
    number = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise InputError(f"{where}, line {number}: it is empty; write one text a line")
        yield line.rstrip("\n")
    if not number:
        raise InputError(f"{where} holds no text; write one a line")


def hub_answers() -> bool:
    """Whether the hub answers at all: its client tries this once, and a download for half a minute."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception as error:
        if not is_connection_error(error):
            raise
        return False
    return True


def is_connection_error(error: BaseException) -> bool:
    """Whether a request to the hub broke off: its client passes on errors of httpx or, by version, httpx2."""
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.partition(".")[0] in ("httpx", "httpx2")


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Run the `main` of a command: show its messages, and turn an `InputError`, a full disk or a folder that is not writable
    into one line and status 2.

    Where the reader of standard output went away, as `head` does, the process ends as one that SIGPIPE ended. Ctrl-C is one
    line too, and status 130.
    """
    console.set_up()
    try:
        with _flushed():
            yield
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        raise SystemExit(_STATUS_BROKEN_PIPE) from None
    except KeyboardInterrupt:
        console.log.info("interrupted; the same command goes on from what is finished")
        raise SystemExit(128 + signal.SIGINT) from None
    except InputError as error:
        _end(str(error))
    except Exception as error:
        path = Path(getattr(error, "filename", None) or ".")
        if disk_full(error, path):
            _end(f"no space left on the disk of {path.absolute()}, {free_space(path)} are free; make room and run again")
        if isinstance(error, OSError) and error.errno in _CLOSED and error.filename:
            _end(f"no access to {path.absolute()} ({error.strerror}); make it and its folder writable and run again")
        # Libraries that are no Python report it in words only.
        if not isinstance(error, OSError) and any(words in str(error) for words in _CLOSED_WORDS):
            _end(f"a file cannot be written: {error}; make its folder writable and run again")
        raise


@contextlib.contextmanager
def writing(what: str, partial: Path, then: Callable[[], str]) -> Iterator[None]:
    """Remove the file or folder `partial` if writing it fails, and turn a full disk into an `InputError`.

    Args:
        what: Describes what is written, for the message.
        partial: The file or folder that is written.
        then: Returns what the same command does when it is run again, for the message.

    Raises:
        InputError: no space is left on the disk.
    """
    try:
        yield
    except Exception as error:
        full = disk_full(error, partial)
        remove(partial)
        if not full:
            raise
        said = f"no space left for {what} in {partial.parent}: it needs more than the {free_space(partial)} that are free there"
        raise InputError(f"{said}; make room and run the command again: it {then()}") from None


def disk_full(error: BaseException, path: Path) -> bool:
    """Whether writing to `path` failed because no space is left on the disk.

    Some libraries report a full disk in words only, and torch reports only that a file came out too short.
    """
    for cause in causes(error):
        words = str(cause)
        if getattr(cause, "errno", None) in _FULL or any(known in words for known in _FULL_WORDS):
            return True
        if any(known in words for known in _CUT_SHORT) and _free_bytes(path) < _BARELY_FREE:
            return True
    return False


def free_space(path: Path) -> str:
    """Describe the free space on the disk of a file or folder, which need not exist yet."""
    return f"{_free_bytes(path) / 1e6:.1f} MB"


def _free_bytes(path: Path) -> int:
    there = path.absolute()
    return shutil.disk_usage(next(folder for folder in (there, *there.parents) if folder.exists())).free


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Write what `print` kept back, also where the block ends by `SystemExit`: at the end of the process it is too late."""
    try:
        yield
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _reader_is_gone() -> bool:
    """Whether nobody reads standard output any more; if so, what is still to be written to it is dropped."""
    output = sys.stdout.fileno()
    watched = select.poll()
    watched.register(output, 0)
    gone = any(state & select.POLLERR for _, state in watched.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return gone


def _end(line: str) -> NoReturn:
    line = " ".join(line.split())
    # A message may quote what it found, such as a line of a megabyte.
    console.log.error("%s", line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}")
    raise SystemExit(STATUS_BAD_INPUT) from None


@contextlib.contextmanager
def stage() -> Iterator[None]:
    """Run the `main` of a stage inside this: one-line errors, and the stage ends when the `dvc` that started it does, or when a
    thread of it has no memory left."""
    if os.environ.get("DVC_STAGE"):
        die_with_parent()
    before = threading.excepthook, sys.unraisablehook
    threading.excepthook = lambda failed: _end_without_memory(failed, threading.__excepthook__)
    sys.unraisablehook = lambda failed: _end_without_memory(failed, sys.__unraisablehook__)
    try:
        with one_line_errors():
            yield
    finally:
        threading.excepthook, sys.unraisablehook = before


def _end_without_memory(failed: threading.ExceptHookArgs | sys.UnraisableHookArgs, show: Callable[[Any], object]) -> None:
    """Show what ended a thread; where that was memory, end the process, which would wait for the thread for ever.

    A thread of `concurrent.futures` that cannot start another one leaves its futures open. One that fails before it runs is
    never reported as started to whoever started it; that error is an unraisable one.
    """
    if not any(isinstance(one, MemoryError) or "can't start new thread" in str(one) for one in causes(failed.exc_value)):
        show(failed)
        return
    try:
        show(failed)
        # Not by logging, which has an object for the thread made.
        os.write(2, b"error: no memory is left for a further thread; end other programs and run again\n")
    finally:
        os._exit(1)
