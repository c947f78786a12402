"""The queue of experiments: adds, takes, finishes, fails, retries and removes them.

No kill loses or doubles one. `refs` says what waits. Who works on an experiment holds a file lock, which the kernel frees when
that process dies: what waits and is not locked can be taken by anyone, who then continues in the worktree that is there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from flows.experiments.changes import Changes, ParameterFile
from flows.experiments.git import GitError, git, write_blob
from flows.experiments.refs import SHORT, Description, Experiment, ExperimentRefs, State, free_name, identity_of
from flows.experiments.snapshot import take_snapshot, with_file, without_runs
from flows.experiments.worktree import open_worktree, remove_worktree, worktree_in
from flows.graph import read_graph
from flows.lockfile import AlreadyLockedError, LockFile, lock_file
from tasks import config
from tasks.errors import InputError
from tasks.paths import CACHE

_FIXES: dict[State, str] = {
    "waiting": "--run runs it",
    "running": "stop its run first",
    "failed": "--retry runs it again",
    "done": "dvc exp apply, rename and remove work on it",
}


@dataclass(frozen=True)
class Claim:
    """An experiment that this process works on, and no other one."""

    experiment: Experiment
    lock: LockFile
    place: Path
    """Its worktree."""


class ExperimentQueue:
    """The experiments that were added in a working folder."""

    def __init__(self, root: Path) -> None:
        """Open the queue.

        Args:
            root: the folder of both the git and the DVC repository.

        Raises:
            InputError: there is no commit yet, or the root of the git repository is another folder.
        """
        self.root = root.resolve()
        self._folder = self.root / CACHE / "experiments"
        self._refs = ExperimentRefs(self.root)
        try:
            self._head = git(self.root, "rev-parse", "--verify", "HEAD^{commit}")
            top = git(self.root, "rev-parse", "--show-toplevel")
        except (GitError, OSError):
            raise InputError(f"{root} has no commit of git, on which experiments are built; run git init, git commit") from None
        if Path(top).resolve() != self.root:
            raise InputError(f"experiments run from the root of the git repository, which must hold .dvc as well; go to {top}")

    def all(self) -> list[Experiment]:
        """Return the experiments in the order in which they were added; those that `dvc exp run` made are not among them."""
        with self._changing():
            return self._all()

    def named(self, names: Sequence[str]) -> list[Experiment]:
        """Return the experiments of these names.

        Raises:
            InputError: there is no experiment of one of the names.
        """
        with self._changing():
            return self._named(names)

    def add(self, wanted: Sequence[Changes], targets: Sequence[str] = (), name: str = "") -> list[tuple[Experiment, bool]]:
        """Add experiments on the working folder as it is now: all of them or, after an error, none.

        Args:
            wanted: the settings of each.
            targets: stages or groups of stages, run with those that they need; empty: all.
            name: the name, if there is but one; empty: it is made of the settings.

        Returns:
            Each experiment, and whether it is new: where the same one is there already, that one is returned.

        Raises:
            InputError: a setting, a target or the name is wrong.
        """
        read_graph(self.root, targets)
        stages = read_graph(self.root)
        try:
            file = ParameterFile((self.root / config.DEFAULT).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"no {config.DEFAULT} in {self.root}; experiments are changes of it") from None
        blobs = [write_blob(self.root, file.changed(changes)) for changes in wanted]
        tree = take_snapshot(self.root, stages)
        inputs = without_runs(self.root, tree, stages)
        with self._changing():
            known, taken = {one.about.identity: one for one in self._all()}, self._refs.names()
            answer, added = list[tuple[Experiment, bool]](), list[Experiment]()
            for changes, blob in zip(wanted, blobs, strict=True):
                identity = identity_of(self._head, with_file(self.root, inputs, str(config.DEFAULT), blob), *targets)
                new = identity not in known
                if new:
                    chosen = free_name(self.root, name, changes, identity, taken)
                    about = Description(identity, time.time_ns(), changes, list(targets))
                    files = with_file(self.root, tree, str(config.DEFAULT), blob)
                    known[identity] = self._refs.new(chosen, files, self._head, about)
                    added.append(known[identity])
                    taken.add(chosen)
                answer.append((known[identity], new))
            self._refs.add(added)
        return answer

    @contextlib.contextmanager
    def claim(self, names: Sequence[str] = ()) -> Iterator[Claim | None]:
        """Own the oldest experiment that waits, of those with the given names if any are given; None if there is none.

        After the block it waits again, unless `finish` or `fail` was called.
        """
        with contextlib.ExitStack() as held:
            with self._changing():
                claim = self._claim(names, held)
            yield claim

    def prepare(self, claim: Claim) -> None:
        """Make the worktree, or take it as a killed run has left it."""
        open_worktree(self.root, self._folder_of(claim.experiment), claim.experiment.baseline, claim.experiment.commit)

    def finish(self, claim: Claim) -> None:
        """Keep the worktree's files as an experiment of DVC, and remove the worktree.

        Raises:
            InputError: DVC has got another experiment of that name meanwhile.
        """
        one = claim.experiment
        try:
            self._refs.move(one, "done", one.about, _result(claim))
        except GitError as error:
            reason = f"DVC has got another experiment {one.name} meanwhile; rename that one, then run --retry {one.name}"
            self.fail(claim, reason)
            raise InputError(f"{reason} ({error})") from None
        remove_worktree(self.root, self._folder_of(one))

    def fail(self, claim: Claim, reason: str) -> None:
        """Keep the reason, and what had been finished in the worktree; remove the worktree."""
        one = claim.experiment
        self._refs.move(one, "failed", replace(one.about, reason=reason), _result(claim))
        remove_worktree(self.root, self._folder_of(one))

    def retry(self, names: Sequence[str] = ()) -> list[str]:
        """Let failed experiments wait again, and return their names; what they had finished is not done again.

        Raises:
            InputError: one of the names is not that of a failed experiment.
        """
        with self._changing():
            failed = [one for one in (self._named(names, "failed") if names else self._all()) if one.state == "failed"]
            for one in failed:
                self._refs.move(one, "waiting", replace(one.about, reason="", number=time.time_ns()))
        return [one.name for one in failed]

    def remove(self, names: Sequence[str]) -> None:
        """Remove experiments that wait or have failed.

        Raises:
            InputError: there is no such experiment, or it is running or done; none was removed.
        """
        with self._changing():
            self._refs.remove(self._named(names, "waiting", "failed"))
            self._sweep()

    def sweep(self) -> None:
        """Remove what killed runs have left of experiments that no longer wait."""
        with self._changing():
            self._sweep()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold while experiments are listed, added, taken or removed; never while one runs."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / ".gitignore").write_text("*\n", encoding="utf-8")
        with FileLock(self._folder / "lock"):
            yield

    def _all(self) -> list[Experiment]:
        return [replace(one, state="running") if self._is_running(one) else one for one in self._refs.read()]

    def _is_running(self, one: Experiment) -> bool:
        probe = FileLock(self._lock_of(one))
        if one.state != "waiting" or not Path(probe.lock_file).exists():
            return False
        try:
            probe.acquire(blocking=False)
        except Timeout:
            return True
        probe.release()
        return False

    def _named(self, names: Sequence[str], *states: State) -> list[Experiment]:
        """Return the experiments of these names, each of which must be in one of the states, if any are given."""
        known = {one.name: one for one in self._all()}
        for name in names:
            if name not in known:
                raise InputError(f"there is no experiment {name!r}; python -m flows.experiment --list shows them")
            state = known[name].state
            if states and state not in states:
                raise InputError(f"experiment {name!r} is {state}, not {' or '.join(states)}; {_FIXES[state]}")
        return [known[name] for name in dict.fromkeys(names)]

    def _claim(self, names: Sequence[str], held: contextlib.ExitStack) -> Claim | None:
        self._sweep()
        for one in self._refs.read():
            if one.state != "waiting" or (names and one.name not in names):
                continue
            try:
                lock = held.enter_context(lock_file(self._lock_of(one)))
            except AlreadyLockedError:
                continue
            # Between the listing and the lock, who worked on it may have finished it.
            if self._refs.waits(one):
                return Claim(one, lock, worktree_in(self._folder_of(one), self.root))
            held.close()
        return None

    def _sweep(self) -> None:
        self._refs.tidy()
        waiting = {self._folder_of(one) for one in self._refs.read() if one.state == "waiting"}
        for lock in self._folder.glob("*.lock"):
            folder = lock.with_suffix("")
            if folder not in waiting:
                with contextlib.suppress(AlreadyLockedError):
                    with lock_file(lock):
                        remove_worktree(self.root, folder)
                    lock.unlink()  # nobody takes it meanwhile: for that, one must hold what `_changing` holds

    def _folder_of(self, one: Experiment) -> Path:
        return self._folder / one.about.identity[:SHORT]

    def _lock_of(self, one: Experiment) -> Path:
        return self._folder_of(one).with_suffix(".lock")


def _result(claim: Claim) -> str:
    """Return the tree of what a run has left in its worktree."""
    try:
        stages = read_graph(claim.place)
    except InputError:  # the settings broke dvc.yaml, which is why it failed
        stages = []
    return take_snapshot(claim.place, stages)
