"""What has changed since the stages ran: DVC's status of the graph, and newer commits of data sets on the hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import config
from tasks.corpora.hub.data_sets import DataSet
from tasks.corpora.hub.lock import newer_commit

if TYPE_CHECKING:
    from dvc.dependency import Dependency
    from dvc.repo import Repo

_NAMED = 5
_PARAMS = "params.yaml"


@dataclass(frozen=True)
class Sources:
    """The inputs of the graph that no stage makes: files, folders, code and parameters."""

    changes: tuple[str, ...]
    """What `dvc status` finds out of date: the sources that changed, or else the stages that have not ended. Empty: nothing."""
    fingerprint: str
    """A checksum over the names and DVC hashes of all sources."""

    def summary(self) -> str:
        """Return the changes as one line, which names the first five."""
        more = len(self.changes) - _NAMED
        return ", ".join(self.changes[:_NAMED]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Moved:
    """A data set whose revision names another commit on the hub than the lock file does."""

    data_set: DataSet
    lock: Path
    commit: str
    """The commit on the hub, 40 hexadecimal digits."""


def read_sources(root: Path, stages: Sequence[str]) -> Sources:
    """Compare the sources of stages, named as `dvc repro` takes them in `root`, with what these stages last ran on.

    It hashes what it reads, apart from files that DVC has hashed before and that have their size and time unchanged.
    """
    from dvc.repo import Repo

    with Repo(str(root), _wait_for_lock=True) as repo:
        status = repo.status(targets=list(stages))
        sources = dict(_sources(repo, set(stages)))
    hashes = {name: _current(dependency) for name, dependency in sorted(sources.items())}
    fingerprint = hashlib.sha256(json.dumps(hashes, sort_keys=True, default=str).encode()).hexdigest()
    return Sources(tuple(_changes(status, sources)), fingerprint)


def moved_on_hub(root: Path) -> Iterator[Moved]:
    """Yield the data sets of active tasks that have a newer commit on the hub than the lock file names.

    Raises:
        InputError: params.yaml or a lock file is wrong, or the hub does not answer.
    """
    if not (root / _PARAMS).is_file():
        return
    params = config.load(root / _PARAMS)
    seen = set()
    for task, source in params.active.items():
        corpus, lock = params.tasks[task].corpus, root / source
        if corpus.source != "hub" or corpus.hub is None or lock.is_dir():
            continue
        data_set = corpus.hub.data_set
        name = (data_set.name, data_set.revision, lock)
        if name not in seen and (commit := newer_commit(data_set, lock)) is not None:
            yield Moved(data_set, lock, commit)
        seen.add(name)


def _sources(repo: Repo, stages: set[str]) -> Iterator[tuple[str, Dependency]]:
    """Yield a name and DVC's object for each dependency that is not an output of a stage."""
    made = [Path(out.fs_path) for stage in repo.index.stages if stage.cmd is not None for out in stage.outs]
    for stage in repo.index.stages:
        if stage.addressing not in stages:
            continue
        for dependency in stage.deps:
            path = Path(dependency.fs_path)
            if not any(path.is_relative_to(out) or out.is_relative_to(path) for out in made):
                parameters = ":".join(sorted(getattr(dependency, "params", ())))
                yield f"{dependency}:{parameters}" if parameters else str(dependency), dependency


def _current(dependency: Dependency) -> Any:
    """Return the hash of a file or folder as it is now, or the values of parameters."""
    if hasattr(dependency, "read_params"):
        return dependency.read_params()
    return str(dependency.get_hash().value) if dependency.exists else None


def _changes(status: dict[str, list[Any]], sources: Iterable[str]) -> Iterator[str]:
    """Yield the changed sources of a `dvc status`, each once; if there are none, the stages that it names."""
    names = {name.partition(":")[0] for name in sources}
    found: dict[str, None] = {}
    for stage, entries in status.items():
        for entry in entries:
            if entry == "changed command":
                found[f"the command of {stage}"] = None
            for path, how in entry.get("changed deps", {}).items() if isinstance(entry, dict) else ():
                if isinstance(how, dict):
                    found |= dict.fromkeys(f"{path} {name} ({was})" for name, was in how.items())
                elif path in names:
                    found[f"{path} ({how})"] = None
    yield from found or (f"{stage} is not up to date" for stage in status)
