"""Reads a text file that the user names on a command line."""

from __future__ import annotations

from pathlib import Path

from tasks.errors import InputError


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
