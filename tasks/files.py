"""Writes files and folders that appear whole or not at all, and notices whether they are still as they were written.

Files and folders are written under a temporary name in the same folder and renamed at the end. A killed run leaves at most that
temporary name, which the next run overwrites. One process at a time may write a path; the locks of `tasks.locks` ensure it.

What is kept, resumed or read again carries checksums: a folder in its file `SHA256SUMS`, which `sha256sum --check` reads too, a
JSON object in its first field. Whoever reads it asks for them, so that a damaged disk, a broken copy or an edit is named.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from tasks.console import log


def partial_path(path: Path) -> Path:
    """Return the temporary name for `path`; it keeps the suffix, since libraries choose a file's format by it."""
    return path.with_name(f".partial.{path.name}")


@contextlib.contextmanager
def atomic_path(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Yield a temporary name to write a file to, and rename it to `path` at the end of the block.

    Args:
        path: The file; its folder must exist. An older file of that name is replaced.
        sync: Whether the file must survive a power failure: flush it and its folder to the disk.
    """
    partial = partial_path(path)
    try:
        yield partial
        if sync:
            _flush(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if sync:
        _flush(path.parent)


def atomic_write(path: Path, content: str | bytes, *, sync: bool = False) -> Path:
    """Write a whole file, text as UTF-8, and return its path; see `atomic_path`."""
    with atomic_path(path, sync=sync) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def append_line(path: Path, line: str) -> None:
    """Append a line, which ends with a newline, to a file of UTF-8 text and return when it is on the disk."""
    with _named(path), path.open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a new, empty folder; seal it and rename it to `folder` at the end of the block.

    An older folder of that name is removed only when the new one is in its place.
    """
    partial, old = partial_path(folder), folder.with_name(f".old.{folder.name}")
    remove(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        seal(partial)
        if folder.exists():
            remove(old)
            folder.rename(old)
        partial.rename(folder)
    except BaseException:
        remove(partial)
        raise
    remove(old)


def link_folder(folder: Path, new: Path) -> None:
    """Give a folder the files of another one, as hard links where the file system allows it, else as copies.

    A link takes no space, and keeps its content when the other name is removed or replaced. Only for files that nobody
    rewrites in place.

    Args:
        folder: The folder whose files are wanted.
        new: The folder that gets them, made if only it is missing; files of these names are replaced.
    """
    new.mkdir(exist_ok=True)
    for path in sorted(folder.rglob("*")):
        target = new / path.relative_to(folder)
        if path.is_dir():
            target.mkdir(exist_ok=True)
        else:
            link_file(path, target)


def link_file(file: Path, new: Path) -> None:
    """Give a file another name, as `link_folder` does; a file that has it already is replaced."""
    partial = partial_path(new)
    partial.unlink(missing_ok=True)
    try:
        os.link(file, partial)
    except OSError:  # on another file system
        shutil.copy2(file, partial)
    partial.replace(new)
    partial.unlink(missing_ok=True)  # still there where both names were links to one file


def user_cache() -> Path:
    """The folder in which this user's caches of this project are.

    Raises:
        RuntimeError: the user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftline"


def private_folder(*places: Path) -> Path | None:
    """The first of these folders that is this user's own or can be made, closed to all others; None where there is none.

    A folder that someone else made, that others may write to, or that is a link, is not this user's own.
    """
    for folder in places:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
                folder.chmod(0o700)
                return folder
    return None


def remove(path: Path) -> None:
    """Remove a file, or a folder with everything in it; do nothing if there is none."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def checksum(file: Path) -> str:
    """Return the SHA-256 digest of a file's bytes, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def folder_checksum(folder: Path) -> str:
    """Return a SHA-256 digest, in hexadecimal, of the names and contents of all files under a folder, or of a file."""
    digest = hashlib.sha256()
    for file in sorted(file for file in (folder, *folder.rglob("*")) if file.is_file()):
        digest.update(f"{file.relative_to(folder).as_posix()}\0{checksum(file)}\n".encode())
    return digest.hexdigest()


SUMS = "SHA256SUMS"
"""In a sealed folder: the checksums of all other files, those of inner folders too."""


def seal(folder: Path) -> None:
    """Write the checksums of a folder's files, last of all: a folder without them was not finished, or is a user's own."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != folder / SUMS)
    lines = [f"{checksum(file)}  {file.relative_to(folder).as_posix()}\n" for file in files]
    atomic_write(folder / SUMS, "".join([*lines, _last_line(lines)]))


def is_sealed(folder: Path) -> bool:
    """Whether a folder was finished and nothing in it has changed since; a change is named, since the folder is made again."""
    if changed := damage(folder):
        warn_of_damage(folder, changed)
    return (folder / SUMS).is_file() and not changed


def warn_of_damage(path: Path, reason: object) -> None:
    """Name what was kept and cannot be used again, before it is made again."""
    log.warning("%s is damaged (%s); it is made again", path, reason)


def damage(path: Path) -> str:
    """What has changed since a folder, or the folder of this file, was sealed; empty if nothing is known to have."""
    folder = path if path.is_dir() else path.parent
    if not (folder / SUMS).is_file():
        return ""
    *lines, last = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) or [""]
    # Lists of an earlier release end with the number of files alone.
    if not lines or last not in (_last_line(lines), f"# {len(lines)} files\n"):
        return f"{SUMS} is not as it was written"
    for line in lines:
        known, _, name = line.rstrip("\n").partition("  ")
        file = folder / name
        if path not in (folder, file):
            continue
        if not file.is_file():
            return f"{name} is missing"
        status = file.stat()
        if _known_sum(file, status.st_size, status.st_mtime_ns, status.st_ino) != known:
            return f"{name} is not as it was written"
    return ""


def _last_line(lines: Sequence[str]) -> str:
    """What tells a whole list from one that was cut or changed; `sha256sum` takes it for a comment."""
    return f"# {len(lines)} files {hashlib.sha256(''.join(lines).encode()).hexdigest()}\n"


@functools.lru_cache(maxsize=4096)
def _known_sum(file: Path, *_status: int) -> str:
    """The checksum of a file of this size, time and number: one process opens a folder several times."""
    return checksum(file)


_FIELD = '{"sha256": "'


def sealed(body: str) -> str:
    """Return a JSON object of at least one field with the checksum of the others in a field before them."""
    return f'{_FIELD}{_body_sum(body)}", {body[1:]}'


def unsealed(text: str) -> str:
    """Return the JSON object that was sealed; one without a checksum, of a user's own, as it is.

    Raises:
        ValueError: it is not as it was written.
    """
    if not text.startswith(_FIELD):
        return text
    known, _, rest = text.removeprefix(_FIELD).partition('", ')
    if _body_sum("{" + rest) != known:
        raise ValueError("it is not as it was written")
    return "{" + rest


def _body_sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _flush(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to the disk."""
    with _named(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in errors of calls that know its descriptor alone."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
