"""Names unfinished work such that the name changes with its settings, its data and its code.

Unfinished work is stored under its fingerprint, so that a run never continues work that was begun under other conditions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from tasks.files import remove

_CODE = Path(__file__).parent


def fingerprint(settings: Mapping[str, object], files: list[Path], code: list[str]) -> str:
    """Return sixteen hexadecimal digits of a SHA-256 digest.

    Args:
        settings: Plain values or settings dataclasses.
        files: Files and folders whose content is part of the digest.
        code: Modules and packages below `tasks`, such as `training`, whose source is part of the digest.
    """
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=_plain).encode())
    digest.update(f"{version('torch')} {version('transformers')}".encode())
    for path in [*files, *(_source(name) for name in code)]:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.suffix != ".pyc":
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def discard_others(folder: Path) -> None:
    """Remove unfinished work next to `folder` that has another fingerprint and can therefore not be continued."""
    if folder.parent.is_dir():
        for other in folder.parent.iterdir():
            if other != folder and not other.name.startswith("."):
                remove(other)


def _source(name: str) -> Path:
    package = _CODE / name
    return package if package.is_dir() else package.with_suffix(".py")


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} has no fingerprint")
