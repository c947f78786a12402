"""The names and the content of files: globs, gzip, and text with the line of every mistake."""

from __future__ import annotations

import glob
import gzip
import zlib
from pathlib import Path

from tasks.errors import InputError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"


def paths_of(folder: Path, name: str) -> list[Path]:
    """The file of that name, or the files that a glob matches, in sorted order.

    Raises:
        InputError: a glob matches nothing.
    """
    path = folder / name
    if path.exists() or not glob.has_magic(name):
        return [path]
    # Path.glob takes no absolute names.
    matches = sorted(glob.glob(name, root_dir=folder, recursive=True))  # noqa: PTH207
    found = [folder / one for one in matches if (folder / one).is_file()]
    if not found:
        raise InputError(f"{path} matches no file; check the folder under active and the names under files in params.yaml")
    return found


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if it is gzip.

    Raises:
        InputError: the file is missing, unreadable, empty or damaged.
    """
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; check the folder under active and the names under files in params.yaml"
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}); compress it again with gzip") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); it must be a readable file") from None
    if not content.removeprefix(_BYTE_ORDER_MARK):
        raise InputError(f"{path} is empty; a split needs at least one example")
    return content


def read_text(path: Path) -> bytes:
    """The content of a text file without its byte order mark.

    Raises:
        InputError: see `read_bytes`; or the file holds a NUL byte, which is no text.
    """
    content = read_bytes(path).removeprefix(_BYTE_ORDER_MARK)
    if (position := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, position) + 1
        raise InputError(f"{path}, line {line}: holds a NUL byte, which is no text; save the file as UTF-8 text")
    return content


def read_lines(path: Path) -> list[bytes]:
    """The raw lines of a file, without line ends and carriage returns.

    Lines end at line feeds only. `str.splitlines` also splits at Unicode separators, which occur inside real sentences;
    splitting there would misalign the two files of a pair.

    Raises:
        InputError: see `read_text`.
    """
    lines = read_text(path).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def read_running_text(path: Path) -> str:
    """The text of a whole file, in which empty lines are allowed.

    Raises:
        InputError: see `read_text`; or it is not UTF-8.
    """
    content = read_text(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8; save the file as UTF-8") from None


def decode(raw: bytes, path: Path, number: int) -> str:
    """The text of a line.

    Raises:
        InputError: the line is not UTF-8, or empty.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        position = f"byte {error.start + 1} of the line"
        raise InputError(f"{path}, line {number}: not UTF-8 ({position}); save the file as UTF-8") from None
    if not text.strip():
        raise InputError(f"{path}, line {number}: the line is empty; fill it, or remove the example")
    return text
