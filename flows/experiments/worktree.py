"""A git worktree in which an experiment runs. It shares DVC's cache with the repository, and is removed afterwards.

The worktree lies in a folder of its own as the repository lies on the machine: that of `/home/me/project` in
`FOLDER/home/me/project`. So what the settings name beside the repository, such as `../corpus`, is found through a link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from flows.experiments.git import forget_worktree, git
from flows.graph import Stage, read_graph
from tasks import config
from tasks.files import atomic_write, remove

_READY = "ready"
"""A file beside the worktree that says that it is complete: a killed start is made again, a killed run is continued."""


def open_worktree(root: Path, folder: Path, head: str, tree: str) -> Path:
    """Return a worktree with the files of `tree`, with DVC's outputs in it as far as the cache has them.

    A worktree that a killed run has left is returned as it is.

    Args:
        root: the repository.
        folder: the worktree's own folder; nothing else is in it.
        head: the commit that is checked out there.
        tree: the files; they differ from `head` like changes that are not committed.
    """
    place = worktree_in(folder, root)
    if not (folder / _READY).exists():
        remove_worktree(root, folder)
        place.parent.mkdir(parents=True)
        git(root, "worktree", "add", "--quiet", "--detach", "--no-checkout", str(place), head)
        git(place, "read-tree", "--reset", "-u", tree)
        _share_cache(root, place, folder / "site")
        _check_out(place)
        _link_others(root, place, read_graph(place))
        atomic_write(folder / _READY, "")
    return place


def remove_worktree(root: Path, folder: Path) -> None:
    """Remove a worktree with its folder, also one that was never completed."""
    remove(folder)
    forget_worktree(root, worktree_in(folder, root))


def worktree_in(folder: Path, root: Path) -> Path:
    """Return the place of a worktree in its folder."""
    return folder / root.resolve().relative_to("/")


def _share_cache(root: Path, place: Path, site: Path) -> None:
    """Let DVC use the cache of the repository, and keep its own index of the worktree's files where it is removed with it."""
    from dvc.config import Config
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        cache = {**repo.config["cache"], "dir": repo.cache.local_cache_dir}
    with Config(str(place / ".dvc"), validate=False).edit("local") as local:
        local["cache"] = cache
        local["core"] = {"site_cache_dir": str(site)}


def _check_out(place: Path) -> None:
    """Restore the outputs that dvc.lock names. DVC would run a stage again whose outputs persist, if they were missing."""
    from dvc.repo import Repo

    with Repo(str(place)) as repo:
        for out in repo.index.outs:
            if out.hash_info:
                out.checkout(force=True, allow_missing=True)


def _link_others(root: Path, place: Path, stages: Sequence[Stage]) -> None:
    """Link what neither git nor DVC holds but a stage reads: data beside the repository, or in it where git ignores it."""
    read = [path for stage in stages for path in stage.deps]
    named = [Path(os.path.relpath(path, place)) for path in read]
    made = [out.relative_to(place) for stage in stages for out in stage.outs if out.is_relative_to(place)]
    for path in [*named, *_paths_in(place / config.DEFAULT)]:
        original, link = root / path, Path(os.path.normpath(place / path))
        overlaps = any(path == out or path in out.parents or out in path.parents for out in made)
        if not overlaps and os.path.exists(original) and not os.path.lexists(link):  # noqa: PTH110 (a text may be too long for a path)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(original.resolve())


def _paths_in(params: Path) -> Iterator[Path]:
    """Yield the texts of a parameter file that could be relative paths, such as the folder of a pre-trained model."""
    waiting: list[Any] = [yaml.safe_load(params.read_text(encoding="utf-8"))] if params.exists() else []
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
        elif isinstance(value, str) and value and "\n" not in value and not Path(value).is_absolute():
            yield Path(value)
