"""Names unfinished work such that the name changes with its settings, its data and its code.

Unfinished work is stored under its fingerprint, so that a run never continues work that was begun under other conditions.
`code_of` finds the code that a stage runs by its imports; `dvc.yaml` names the same code by folders, and a test compares them.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from tasks.errors import require_whole
from tasks.files import remove

_TASKS = Path(__file__).parent
WITHOUT_EFFECT = frozenset(
    {
        # Their values are parameters.
        *("tasks.config", "tasks.settings"),
        *("tasks.errors", "tasks.console"),  # messages
        *("tasks.paths", "tasks.files", "tasks.fingerprint"),  # where and how files are written
        *("tasks.locks", "tasks.supervisor", "tasks.workers", "tasks.presets"),  # whether and when a stage can run
        *("tasks.lineage", "tasks.tracking"),  # the record
        "tasks.evaluation.results",  # how results are written and read
    }
)
"""Modules and packages that cannot change a result."""


def fingerprint(settings: Mapping[str, object], files: list[Path], code: list[str]) -> str:
    """Return sixteen hexadecimal digits of a SHA-256 digest.

    Args:
        settings: Plain values or settings dataclasses.
        files: Files and folders whose content is part of the digest.
        code: Modules and packages below `tasks`, such as `training`, whose source is part of the digest.

    Raises:
        InputError: a file, or something in a folder, is not as it was written.
    """
    for path in files:
        require_whole(path)
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


@functools.cache
def code_of(module: str, without: frozenset[str] = WITHOUT_EFFECT) -> tuple[Path, ...]:
    """Return the files of `tasks` that importing a module runs, without those of certain modules and packages.

    Imports inside functions count, imports for the type checker do not. An `__init__.py` with a docstring alone is left out,
    and files beside a module that are no Python, such as the source of a kernel, are added.
    """
    found = set[Path]()
    waiting = [module]
    while waiting:
        for name in _with_packages(waiting.pop()):
            file = _file_of(name)
            if file is None or file in found or not without.isdisjoint(_with_packages(name)):
                continue
            found.add(file)
            waiting.extend(imports_of(file))
    code = {file for file in found if file.name != "__init__.py" or _does_something(file)}
    beside = (other for folder in {file.parent for file in code} - {_TASKS} for other in folder.iterdir())
    data = [other for other in beside if other.suffix != ".py" and not any(other.rglob("*.py"))]
    files = (file for one in data for file in (one, *one.rglob("*")) if file.is_file())
    return tuple(sorted(code.union(file for file in files if "__pycache__" not in file.parts)))


def imports_of(file: Path) -> Iterator[str]:
    """Yield what a file imports, at its start or in a function; imports for the type checker alone never run."""
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            # No expression imports anything.
            waiting.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))


def _with_packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _file_of(module: str) -> Path | None:
    package, *rest = module.split(".")
    place = _TASKS.joinpath(*rest)
    candidates = (place / "__init__.py", place.with_suffix(".py")) if package == "tasks" and rest else ()
    return next((one for one in candidates if one.is_file()), None)


def _does_something(package: Path) -> bool:
    return not all(isinstance(node, ast.Expr) for node in ast.parse(package.read_text(encoding="utf-8")).body)


def _source(name: str) -> Path:
    package = _TASKS / name
    return package if package.is_dir() else package.with_suffix(".py")


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} has no fingerprint")
