"""One fault: harm to a stage or to what it reads, the stage run again, and the judgment of what came of it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from flows.pipeline import RUN_LOCK
from flows.stage import repair
from tasks.files import SUMS
from tests.services import free_port
from tests.torture.children import Forks, Run
from tests.torture.project import TOYS, UNRECORDED, Place, Point, State, Undisturbed, words_of

COLUMNS = ("lost", "doubled", "wrong", "hung", "accepted")
HARMS = {
    "kill": "`kill -9`",
    "torn": "`kill -9` in the middle of a write",
    "end": "SIGTERM",
    "interrupt": "Ctrl-C",
    "full": "disk full from there on",
    "small": "a small disk (tmpfs) that gets full",
    "readonly": "folder read-only from there on",
    "memory": "no memory left from there on",
    "clock": "clock set back by a day",
    "locked": "the database of MLflow, or of Prefect, locked for 8 s",
    "deleted": "the database deleted",
    "second": "a second process on the same work",
    "away": "MLflow away, or Prefect's server killed",
    "input": "a file that the stage reads is damaged",
    "rest": "`kill -9`, then what it left is damaged",
}
"""Each kind of fault in words."""
_OF_TOYS = ("kill", "torn", "end", "interrupt", "full", "small", "clock", "second")
KINDS = {
    "prepare": [kind for kind in HARMS if kind not in ("locked", "deleted", "away", "input")],
    "calibrate": [kind for kind in HARMS if kind not in ("locked", "deleted", "away")],
    "kernel": ["kill", "torn", "full", "small", "second", "rest"],
    "dvc": [*_OF_TOYS],
    "flow": [*_OF_TOYS, "locked", "deleted", "away"],
}
"""The kinds of stages that do not know all: some read no file, or have no record."""
_STOPPING = ("locked", "deleted", "second", "away")
"""For these the process is stopped at a point, while what is around it changes."""
_ENDING = ("kill", "torn", "end", "interrupt", "full", "readonly", "memory")
"""After these the stage need not have finished."""
_LOCKED_SECONDS = 8.0
_FULL_SECONDS = 10.0
_TRIES = 2
"""How often a stage is run again at most."""
_GONE_SECONDS = 30.0
_OUTBOX = Path(".cache/mlflow-outbox")


@dataclass(frozen=True)
class Fault:
    """What is done to a stage, and where."""

    number: int
    stage: str
    kind: str
    seed: str

    def rng(self) -> random.Random:
        """The random numbers of this fault alone."""
        return random.Random(self.seed)


@dataclass
class Outcome:
    """What came of a fault."""

    fault: Fault
    place: str = ""
    """The point or file at which it was done; empty where it was not."""
    found: list[tuple[str, str]] = field(default_factory=list)
    """A column of `COLUMNS` and the reason, for all that went wrong."""

    def add(self, column: str, reason: str) -> None:
        """Note what went wrong."""
        self.found.append((column, reason))


class Trial:
    """A fault in a copy of the project."""

    def __init__(self, fault: Fault, undisturbed: Undisturbed, folder: Path, forks: Forks) -> None:
        """Copy the project."""
        self.fault, self.undisturbed, self.forks, self.rng = fault, undisturbed, forks, fault.rng()
        self.place, self.words = Place(folder, undisturbed.before, fault.stage), words_of(fault.stage)
        self.outcome = Outcome(fault)
        self._open_records = 0
        """Runs that stay open in MLflow since their record was damaged, as a line has said."""

    def run(self) -> Outcome:
        """Do the harm, run the stage again where it has not ended well, and compare."""
        kind = self.fault.kind
        if kind == "input":
            self._damaged_input()
        elif kind == "small":
            self._small_disk()
        elif kind == "away" and self.fault.stage != "flow":
            self.outcome.place = "all the time"
            self._again(MLFLOW_TRACKING_URI=f"http://127.0.0.1:{free_port()}")
        else:
            self._harmed()
            if kind == "rest" and self.outcome.place:
                self._damage_rest()
        self._leave_nothing()
        if self.outcome.place and not any(column == "hung" for column, _ in self.outcome.found):
            self._compare()
        return self.outcome

    # The harm.

    def _harmed(self) -> None:
        """Run the stage with harm at a point, and again where it has not finished."""
        kind = self.fault.kind
        point = self._point()
        harm = "stop" if kind in _STOPPING else "kill" if kind == "rest" else kind
        plan = {"TORTURE_KIND": harm, "TORTURE_AT": str(point.number), "TORTURE_WHO": point.who}
        run = self.place.start(self.forks, self.words, **plan)
        if kind in _STOPPING and self.forks.wait(run) == "stopped":
            self._meanwhile(run)
        over = threading.Timer(_FULL_SECONDS, self.place.fired.with_name("fired.over").touch)
        if kind == "full" and self.fault.stage in TOYS:
            over.start()  # DVC's caches ask again and again until there is space (diskcache)
        self.forks.wait(run)
        over.cancel()
        if self.place.fired.exists():
            who, number, operation, path = self.place.fired.read_text(encoding="utf-8").rstrip("\n").split("\t")[1:]
            self.outcome.place = Point(who, int(number), operation, path).name
        # DVC and a flow refuse to run beside another one; a stage waits for it.
        refused = kind == "second" and self.fault.stage in TOYS
        self._judge(run, may_fail=refused or kind in (*_ENDING, "rest"))
        if run.status != 0 and kind != "rest":
            self._again()

    def _small_disk(self) -> None:
        """Run the stage on a disk with space for a part of what it writes, and again when there is more."""
        free = int(self.rng.random() * self.undisturbed.grows)
        self.outcome.place = f"{free} of {self.undisturbed.grows} bytes free"
        with self.place.disk(free) as enlarge:
            later = threading.Timer(_FULL_SECONDS, enlarge)
            if self.fault.stage in TOYS:
                later.start()
            run = self.place.run(self.forks, self.words)
            later.cancel()
            self._judge(run, may_fail=True)
            enlarge()
            if run.status != 0:
                self._again()
            self._leave_nothing()

    def _point(self) -> Point:
        if self.fault.kind == "rest":
            # What is resumed is written by the process itself, and not at its beginning.
            own = [point for point in self.undisturbed.points if point.who == "main"]
            return self.rng.choice(own[len(own) // 4 :])
        if self.fault.kind == "away":
            # Prefect's server runs when the flow writes its id, not before.
            own = [point for point in self.undisturbed.points if point.who == "main"]
            return self.rng.choice(own[next(n for n, point in enumerate(own) if point.path.endswith(RUN_LOCK.name)) :])
        return self.undisturbed.draw(self.rng, "^main" if self.fault.kind in _STOPPING else "")

    def _meanwhile(self, run: Run) -> None:
        """Change what is around a stopped process, and let it go on."""

        def go_on() -> None:
            os.kill(run.pid, signal.SIGCONT)

        database = self.place.project / (".prefect/prefect.db" if self.fault.stage == "flow" else "mlflow.db")
        if self.fault.kind == "deleted":
            for file in (database, Path(f"{database}-journal")):
                file.unlink(missing_ok=True)
            go_on()
        elif self.fault.kind == "locked":
            with contextlib.closing(sqlite3.connect(database, timeout=0)) as opened:
                with contextlib.suppress(sqlite3.OperationalError):  # the process has locked it itself
                    opened.execute("BEGIN EXCLUSIVE")
                go_on()
                time.sleep(_LOCKED_SECONDS)
        elif self.fault.kind == "away":
            for one in psutil.Process(run.pid).children(recursive=True):
                if {"prefect", "server"} <= set(one.cmdline()):
                    one.kill()
            go_on()
        else:
            threading.Timer(1.0, go_on).start()
            second = self.place.run(self.forks, self.words)
            self._judge(second, may_fail=self.fault.stage in TOYS)

    def _again(self, **more: str) -> None:
        """Run the stage, which must end well now."""
        for _ in range(_TRIES):
            run = self.place.run(self.forks, self.words, **more)
            self._judge(run, may_fail=True)
            if run.status == 0 or run.hung:
                return
            if self.fault.stage == "dvc":
                repair(self.place.project)  # as a flow and `make repro` do
        self.outcome.add("lost", f"run again, it ends with status {run.status}: {last_line(run)}")

    def _judge(self, run: Run, *, may_fail: bool) -> None:
        """Note what no run may do: hang, end without a reason, or end with a traceback."""
        if run.hung:
            self.outcome.add("hung", last_line(run))
        elif run.status != 0 and not may_fail:
            self.outcome.add("wrong", f"it ends with status {run.status}: {last_line(run)}")
        # Ctrl-C has Python's own traceback, DVC and Prefect have theirs, and without memory any library may raise anything.
        own = self.fault.kind in ("interrupt", "memory") or self.fault.stage in TOYS
        if "Traceback (most recent call last)" in run.said and not own:
            self.outcome.add("wrong", f"a traceback: {last_line(run)}")

    # Damage.

    def _damaged_input(self) -> None:
        """Damage a file that the stage reads: it must say so, or make it anew."""
        name = self.rng.choice(self.undisturbed.reads)
        file = self.place.project / name
        before = file.read_bytes()
        how = damage(file, self.rng)
        after = file.read_bytes() if file.exists() else b""
        self.outcome.place = f"{name}: {how}"
        run = self.place.run(self.forks, self.words)
        self._judge(run, may_fail=True)
        if run.status == 0:
            if file.exists() and file.read_bytes() == after:
                self.outcome.add("accepted", f"{name} ({how}) was read")
            return
        lines = [line for line in run.said.splitlines() if line.startswith("error: ")]
        parts = {file.name, file.parent.name, file.parent.parent.name}
        if run.status != 2 or len(lines) != 1 or not any(part in lines[0] for part in parts):
            self.outcome.add("wrong", f"{name} ({how}): status {run.status}, {last_line(run)}")
        file.write_bytes(before)
        self._again()

    def _damage_rest(self) -> None:
        """Damage a file that the killed stage has left, and run it again."""
        left = [file for file in self.place.project.rglob("*") if file.is_file() and self._is_rest(file)]
        if left:
            file = self.rng.choice(sorted(left))
            how = damage(file, self.rng)
            self.outcome.place += f", then {file.relative_to(self.place.project)}: {how}"
            self._again()
            if _OUTBOX in file.relative_to(self.place.project).parents:
                self._recorded_or_named(file)
        else:
            self._again()

    def _is_rest(self, file: Path) -> bool:
        name = file.relative_to(self.place.project)
        if name.name.endswith("lock") or name.name == ".holder" or name.name.startswith("mlflow.db") or not file.stat().st_size:
            return False
        return not (self.undisturbed.before / name).exists()

    def _recorded_or_named(self, file: Path) -> None:
        """A damaged run of the outbox waits, with a line that names it, until its folder is removed."""
        run = self.place.run(self.forks, ["tasks.tracking"])
        folder = self.place.project / _OUTBOX / file.relative_to(self.place.project / _OUTBOX).parts[0]
        if run.status == 1 and folder.name in run.said:
            shutil.rmtree(folder)
            self._open_records = 1

    # The judgment.

    def _leave_nothing(self) -> None:
        """No process may outlive the stage."""
        root = str(self.place.folder / "root")
        end = time.monotonic() + _GONE_SECONDS
        while left := [one for one in psutil.process_iter() if _root_of(one) == root]:
            if time.monotonic() > end:
                self.outcome.add("hung", f"it left {' '.join(left[0].cmdline())[:200]}")
                for one in left:
                    one.kill()
                return
            time.sleep(0.2)

    def _compare(self) -> None:
        """Compare the project with that of an undisturbed run."""
        if self.fault.stage not in UNRECORDED:
            sent = self.place.run(self.forks, ["tasks.tracking"])
            if sent.status != 0:
                self.outcome.add("lost", f"the records are not sent: {last_line(sent)}")
        found, known = self.place.state(), self.undisturbed.after
        for name, digest in known.files.items():
            if name not in found.files:
                self.outcome.add("lost", f"{name} is missing")
            elif digest and found.files[name] != digest:
                self.outcome.add("wrong", f"{name} differs")
        for name in found.files.keys() - known.files.keys():
            self.outcome.add("wrong", f"{name} is there beside the rest")
        for name in known.rows:
            if name not in found.rows and known.rows[name] is not None:
                self.outcome.add("lost", f"the row {name} is missing")
            elif known.rows[name] is not None and found.rows[name] != known.rows[name]:
                self.outcome.add("wrong", f"the row {name} differs")
        for name in found.doubled:
            self.outcome.add("doubled", f"the row {name}")
        if self.fault.kind != "deleted":
            self._compare_records(found, known)

    def _compare_records(self, found: State, known: State) -> None:
        """Each record of an undisturbed run must be there, whole, and none twice."""
        keys = [record.key for record in found.records]
        for key in {key for key in keys if keys.count(key) > 1}:
            self.outcome.add("doubled", f"the record {key} in MLflow")
        still = [record.name for record in found.records if record.status == "RUNNING" and not record.parent]
        if len(still) > self._open_records:
            self.outcome.add("wrong", f"records stay open: {still}")
        for wanted in known.records:
            # Which points go on to test depends on how fast they were.
            if wanted.parent and wanted.name.endswith(" test"):
                continue
            same = [one for one in found.records if one.name == wanted.name]
            missing = min((wanted.fields - one.fields for one in same if one.status == "FINISHED"), key=len, default=None)
            if missing is None:
                self.outcome.add("lost", f"the record {wanted.name}: {[one.status for one in same]}")
            elif missing:
                self.outcome.add("lost", f"the record {wanted.name} lacks {sorted(missing)[:5]}")


def last_line(run: Run) -> str:
    """The last line of what a run said, cut."""
    return (run.said.strip().splitlines() or ["nothing was said"])[-1][:300]


def damage(file: Path, rng: random.Random) -> str:
    """Damage a file, and say how."""
    content = file.read_bytes()
    ways: list[Callable[[], tuple[str, bytes | None]]] = [
        lambda: ("cut", content[: rng.randrange(len(content))]),
        lambda: ("a bit flipped", _with(content, rng.randrange(len(content)), lambda byte: byte ^ (1 << rng.randrange(8)))),
    ]
    if not content:  # such as the unlabelled texts of a corpus that has none
        ways = [lambda: ("a byte written", bytes([rng.randrange(1, 256)]))]
    if file.name != SUMS:  # a folder without its checksums is a user's own
        ways.append(lambda: ("missing", None))
    if digits := [match.start() for match in re.finditer(rb"[0-9]", content[:1_000_000])]:
        ways.append(lambda: ("a digit changed", _with(content, rng.choice(digits), lambda byte: 48 + (byte - 47) % 10)))
    how, new = rng.choice(ways)()
    if new is None:
        file.unlink()
    else:
        file.write_bytes(new)
    return how


def _with(content: bytes, place: int, change: Callable[[int], int]) -> bytes:
    return content[:place] + bytes([change(content[place])]) + content[place + 1 :]


def _root_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        return str(process.environ().get("TORTURE_ROOT", ""))
    return ""
