"""The limits that a control group of Linux, such as a container's, sets on this process; version 1 and 2.

See https://docs.kernel.org/admin-guide/cgroup-v2.html.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_NO_QUOTA = ("max", "-1")
_UNLIMITED = 1 << 60
"""Bytes; version 1 writes the largest number where there is no limit."""


def core_limit(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return the cores' worth of processor time that this process may use; none where nothing limits it."""
    pairs = [_words(folder, "cpu.max") for folder in _folders("", root, own)]
    pairs += [_words(folder, "cpu.cfs_quota_us", "cpu.cfs_period_us") for folder in _folders("cpu", root, own)]
    return min((int(pair[0]) / int(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] not in _NO_QUOTA), default=None)


def memory_limit(root: Path = ROOT, own: Path = OWN) -> int | None:
    """Return the bytes of memory that the processes of this group may use together; none where nothing limits them."""
    found = [word for folder in _folders("", root, own) for word in _words(folder, "memory.max")]
    found += [word for folder in _folders("memory", root, own) for word in _words(folder, "memory.limit_in_bytes")]
    return min((int(word) for word in found if word != "max" and int(word) < _UNLIMITED), default=None)


def _words(folder: Path, *files: str) -> list[str]:
    """Return the words of those files of a group that are there: not every group has each."""
    paths = (folder / file for file in files)
    return [word for path in paths if path.is_file() for word in path.read_text(encoding="ascii").split()]


def _folders(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Yield the folder of this process's group and of all above it; version 2 is the controller without a name."""
    top = root / controller
    lines = own.read_text(encoding="utf-8").splitlines() if own.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            folder = top / path.lstrip("/")
            # In a container, the path may be that of the host, of which only the root is visible.
            yield from (one for one in (folder, *folder.parents) if one == top or top in one.parents)
            return
