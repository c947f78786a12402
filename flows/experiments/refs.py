"""The experiments of a repository as git's refs. The refs are the record: there is no other file that could say otherwise.

    refs/worktree/draftline/waiting/NAME    a commit whose tree is what to run, settings applied
    refs/worktree/draftline/failed/NAME     the same with what had been finished, and the reason
    refs/exps/BASELINE/NAME                 done: an experiment of DVC

The parent of each commit is the commit that was checked out when the experiment was added; its message holds the settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from flows.experiments.changes import Changes, as_text, name_of
from flows.experiments.git import GitError, git, update_refs, write_commit
from tasks.errors import InputError

State = Literal["waiting", "running", "failed", "done"]
_OWN = "refs/worktree/draftline"
"""Refs below refs/worktree belong to one working folder, and so does a queue."""
_DVC = "refs/exps"
_EXPERIMENT = re.compile(rf"{_DVC}/[0-9a-f]{{2}}/[0-9a-f]{{38,}}/[^/]+")
"""DVC has others there, such as refs/exps/exec/EXEC_APPLY, which stays after `dvc exp apply`."""
_FIELDS = "%(refname)%00%(objectname)%00%(parent)%00%(contents:body)%01"
SHORT = 12
"""Letters of an identity that tell experiments apart."""


@dataclass(frozen=True)
class Description:
    """What the message of an experiment's commit says of it."""

    identity: str
    """A hash of the commit that was checked out, of files and settings, and of the targets: equal work has the same."""
    number: int
    """Nanoseconds since the epoch when it was added; experiments run in this order."""
    settings: Changes
    targets: list[str] = field(default_factory=list)
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class Experiment:
    """An experiment in one of its states."""

    name: str
    state: State
    commit: str
    baseline: str
    """The commit that was checked out when it was added."""
    about: Description


class ExperimentRefs:
    """Reads and changes the refs of a repository."""

    def __init__(self, root: Path) -> None:
        """Store the folder of the repository."""
        self._root = root

    def read(self) -> list[Experiment]:
        """Return the experiments in the order in which they were added; those that `dvc exp run` made are not among them.

        Those that wait may be running; the refs do not tell.
        """
        # Later states come last, and replace what a kill in the middle of a move has left.
        found = {one.about.identity: one for one in self._all()}
        return sorted(found.values(), key=lambda one: one.about.number)

    def tidy(self) -> None:
        """Remove refs that a kill in the middle of a move has left."""
        kept = {one.commit for one in self.read()}
        with contextlib.suppress(GitError):  # one of them is being moved now
            self.remove([one for one in self._all() if one.state != "done" and one.commit not in kept])

    def names(self) -> set[str]:
        """Return all names that are taken, also by experiments that `dvc exp run` made."""
        return {Path(ref).name for ref, *_ in self._listed(_DVC, _OWN)}

    def new(self, name: str, tree: str, baseline: str, about: Description) -> Experiment:
        """Return an experiment that waits for being added."""
        return Experiment(name, "waiting", self._commit(tree, baseline, about), baseline, about)

    def add(self, new: Sequence[Experiment]) -> None:
        """Add experiments, all or none."""
        update_refs(self._root, [f"create {_ref(one)} {one.commit}" for one in new])

    def remove(self, doomed: Sequence[Experiment]) -> None:
        """Remove experiments that wait or have failed, all or none."""
        update_refs(self._root, [f"delete {_ref(one)} {one.commit}" for one in doomed])

    def waits(self, one: Experiment) -> bool:
        """Whether an experiment waits still."""
        return any(commit == one.commit for _, commit, *_ in self._listed(f"{_OWN}/waiting/{one.name}"))

    def move(self, one: Experiment, state: State, about: Description, tree: str = "") -> None:
        """Move an experiment to another state; `tree` are its files from then on, empty: the same.

        Raises:
            GitError: there is an experiment of that name in that state.
        """
        commit = self._commit(tree or f"{one.commit}^{{tree}}", one.baseline, about)
        moved = Experiment(one.name, state, commit, one.baseline, about)
        update_refs(self._root, [f"create {_ref(moved)} {commit}", f"delete {_ref(one)} {one.commit}"])

    def _all(self) -> Iterator[Experiment]:
        states: list[tuple[State, str]] = [("waiting", f"{_OWN}/waiting"), ("failed", f"{_OWN}/failed"), ("done", _DVC)]
        for state, prefix in states:
            for ref, commit, baseline, body in self._listed(prefix):
                about = _read(body)
                if about is not None:
                    yield Experiment(Path(ref).name, state, commit, baseline, about)

    def _listed(self, *prefixes: str) -> list[list[str]]:
        """Return name, commit, parent and message of each ref."""
        text = git(self._root, "for-each-ref", f"--format={_FIELDS}", *prefixes)
        listed = [line.strip("\n").split("\0") for line in text.split("\1")[:-1]]
        return [one for one in listed if one[0].startswith(_OWN) or _EXPERIMENT.fullmatch(one[0])]

    def _commit(self, tree: str, baseline: str, about: Description) -> str:
        description = json.dumps(asdict(about), default=str)
        return write_commit(self._root, tree, baseline, f"{as_text(about.settings)}\n\n{description}\n")


def free_name(root: Path, wanted: str, changes: Changes, identity: str, taken: set[str]) -> str:
    """Return the name that is asked for, or else one of the settings, with a part of the identity if that one is taken.

    Raises:
        InputError: git cannot name a ref so, or the name is taken.
    """
    if not wanted:
        name = name_of(changes)
        return name if name not in taken else f"{name}-{identity[:SHORT]}"
    try:
        git(root, "check-ref-format", f"{_DVC}/0/0/{wanted}")
        wrong = "/" in wanted
    except GitError:
        wrong = True
    if wrong:
        raise InputError(f"--name {wanted} cannot name a ref of git; give letters, digits, '-', '_', '=' and '.'")
    if wanted in taken:
        raise InputError(f"--name {wanted} is the name of another experiment; choose another name, or remove that one")
    return wanted


def identity_of(*parts: str) -> str:
    """Return a hash of texts, in hexadecimal."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _ref(one: Experiment) -> str:
    if one.state == "done":
        from dvc.repo.experiments.refs import ExpRefInfo

        return str(ExpRefInfo(one.baseline, one.name))
    return f"{_OWN}/{one.state}/{one.name}"


def _read(body: str) -> Description | None:
    """Return what the message of a commit says; None if the commit is not one of ours."""
    try:
        return Description(**json.loads(body))
    except (ValueError, TypeError):
        return None
