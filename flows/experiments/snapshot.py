"""What an experiment starts from and leaves behind, as trees of git: a working folder as DVC's stages see it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.experiments.git import git, scratch_index
from flows.graph import Stage
from tasks.errors import InputError

_OF_DVC = ("dvc.yaml", "dvc.lock", ".gitignore", ".dvcignore", "params.yaml")
_WRITTEN_BY_RUNS = ("dvc.lock", ".gitignore")


def take_snapshot(root: Path, stages: Sequence[Stage]) -> str:
    """Return the tree of a working folder: what git tracks as it is now, and of what git does not know yet what DVC needs.

    That is the files of DVC itself, files that stages depend on, and outputs that are left to git. Files that git ignores and
    other new files are not in it.

    Raises:
        InputError: git's index holds a merge that is not finished.
    """
    if git(root, "ls-files", "--unmerged"):
        raise InputError(f"{root} is in the middle of a merge; finish it (git status shows it) and run again")
    dependencies = [_relative(path, root) for stage in stages for path in stage.deps]
    left_to_git = {_relative(path, root) for stage in stages for path in stage.in_git if path.exists()}
    with scratch_index(root) as index:
        git(root, "add", "--update", index=index)
        unknown = map(
            Path, filter(None, git(root, "ls-files", "--others", "--exclude-standard", "-z", index=index).split("\0"))
        )
        new = [path for path in unknown if _is_needed(path, dependencies) and not _is_link_outside(root / path, root)]
        for paths, force in ((new, ()), (sorted(left_to_git), ("--force",))):
            names = "\0".join(map(str, paths))
            git(root, "add", *force, "--pathspec-from-file=-", "--pathspec-file-nul", given=names, index=index)
        return git(root, "write-tree", index=index)


def without_runs(root: Path, tree: str, stages: Sequence[Stage]) -> str:
    """Return a tree without what running stages writes: two trees with the same code, data and settings are then the same."""
    made = [f"{_relative(path, root)}/" for stage in stages for path in stage.in_git]
    with scratch_index(root) as index:
        git(root, "read-tree", tree, index=index)
        names = git(root, "ls-files", "-z", index=index).split("\0")
        dropped = [name for name in names if Path(name).name in _WRITTEN_BY_RUNS or f"{name}/".startswith(tuple(made))]
        git(root, "update-index", "--force-remove", "-z", "--stdin", given="\0".join(dropped), index=index)
        return git(root, "write-tree", index=index)


def with_file(root: Path, tree: str, name: str, blob: str) -> str:
    """Return a tree in which the file `name` is `blob`."""
    with scratch_index(root) as index:
        git(root, "read-tree", tree, index=index)
        git(root, "update-index", "--add", "--cacheinfo", f"100644,{blob},{name}", index=index)
        return git(root, "write-tree", index=index)


def _is_needed(path: Path, dependencies: Sequence[Path]) -> bool:
    return path.name in _OF_DVC or path.suffix == ".dvc" or any(path == one or one in path.parents for one in dependencies)


def _is_link_outside(path: Path, root: Path) -> bool:
    return path.is_symlink() and not path.resolve().is_relative_to(root.resolve())


def _relative(path: Path, root: Path) -> Path:
    """Return a path below `root` relative to it; any other path as it is."""
    return path.relative_to(root) if path.is_relative_to(root) else path
