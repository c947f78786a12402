"""Runs git on refs, trees and commits. The index and HEAD of the user's working tree stay as they are, and no hook runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

_OWN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")
"""Variables that a git hook sets; they would lead to another repository."""


class GitError(Exception):
    """A git command failed; the message is what it printed."""


def git(root: Path, *arguments: str, given: str | None = None, index: Path | None = None) -> str:
    """Return the output of a git command in `root`, without the newline at its end.

    Args:
        root: the working folder.
        arguments: the command and its arguments; paths are taken literally.
        given: the standard input.
        index: the index file to use in place of the working tree's own.

    Raises:
        GitError: the command failed.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _OWN}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1", "LC_ALL": "C"}
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", *arguments]
    done = subprocess.run(  # noqa: S603 (fixed commands)
        command, cwd=root, env=environment, input=given or "", capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise GitError(f"git {arguments[0]} failed: {' '.join(done.stderr.split()) or f'exit status {done.returncode}'}")
    return done.stdout.removesuffix("\n")


@contextlib.contextmanager
def scratch_index(root: Path) -> Iterator[Path]:
    """Yield a copy of the working tree's index, in which a tree can be put together."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "index")
        shutil.copy2(root / git(root, "rev-parse", "--git-path", "index"), copy)
        yield copy


def write_blob(root: Path, text: str) -> str:
    """Store a text and return its hash."""
    return git(root, "hash-object", "-w", "--stdin", given=text)


def write_commit(root: Path, tree: str, parent: str, message: str) -> str:
    """Store a commit, which no ref names yet, and return its hash; it has an author even if git's settings name none."""
    try:
        git(root, "var", "GIT_COMMITTER_IDENT")
        identity = []
    except GitError:
        identity = ["-c", "user.name=draftline", "-c", "user.email=draftline@localhost"]
    return git(root, *identity, "commit-tree", tree, "-p", parent, given=message)


def update_refs(root: Path, changes: Iterable[str]) -> None:
    """Change refs together or not at all; `changes` are lines for `git update-ref --stdin`.

    Raises:
        GitError: one of the changes is not possible, such as creating a ref that exists.
    """
    git(root, "update-ref", "--stdin", given="".join(f"{line}\n" for line in ["start", *changes, "prepare", "commit"]))


def forget_worktree(root: Path, place: Path) -> None:
    """Remove what git keeps of a worktree; the folder itself may be gone already, or may never have been made."""
    common = root / git(root, "rev-parse", "--git-common-dir")
    for kept in common.glob("worktrees/*/gitdir"):
        if Path(kept.read_text(encoding="utf-8").strip()) == place / ".git":
            shutil.rmtree(kept.parent, ignore_errors=True)
