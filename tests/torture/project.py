"""A tiny project before and after each stage, undisturbed: what a disturbed run is compared with.

Each stage runs twice without any harm. What both runs wrote alike must come out alike of a disturbed one too; the rest, such as
files with times, must be there. The first run notes its points: each change of a file, at which harm can be done.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tasks.files import checksum
from tests.e2e.conftest import comparable, smallest, tiny
from tests.served import STAGES as TOY
from tests.served import repository
from tests.torture.children import ROOT, Forks, Run

TASK = "translation"
STAGES = {
    "prepare": ("tasks.prepare",),
    "finetune small": ("tasks.finetune", "--model", "small"),
    "finetune large": ("tasks.finetune", "--model", "large"),
    "calibrate": ("tasks.calibrate",),
    "control": ("tasks.align", "--arm", "unaligned"),
    "align": ("tasks.align", "--arm", "aligned"),
    "sweep": ("tasks.sweep",),
    "report": ("tasks.report",),
    "kernel": ("tasks.calibrate",),
    "dvc": ("dvc", "repro"),
    "flow": ("flows.pipeline",),
}
"""The stages, the first one that compiles the kernel, and DVC and a Prefect flow that run the graph of a toy."""
UNRECORDED = ("prepare", "calibrate", "kernel", "dvc", "flow")
"""Without a run in MLflow."""
TOYS = ("dvc", "flow")
_TIMES_ALONE = frozenset(f"latest_metrics prediction_error_{name}" for name in ("mean", "worst"))
"""Of a sweep that chose a point at random which it had to time."""
_WHY = "tags why = "
"""Two undisturbed runs may agree by chance in why a point was timed."""
_PAGE = 4096
_DVC_TEMPORARY = r"\.[\w-]{22}\.tmp"
_KEPT = ("data/**/*", "models/**/*", "results/**/*", "*.txt", "dvc.lock")
_PASSED_ON = ("PATH", "HOME", "LANG", "LD_PRELOAD", "VIRTUAL_ENV")


class Point(NamedTuple):
    """A change of a file by a stage: where harm can be done."""

    who: str
    number: int
    operation: str
    path: str

    @property
    def name(self) -> str:
        """The same for points that differ only by numbers, digests and random names."""
        path = re.sub(_DVC_TEMPORARY, ".tmp", self.path)
        path = re.sub(r"[0-9a-f]{8,}|\d+", "#", path)
        path = re.sub(r"tmp[A-Za-z0-9_#]{6,}(/.*)?", "tmp#", path)
        return f"{self.who} {self.operation} {path}"


@dataclass
class Record:
    """A run that MLflow holds."""

    name: str
    status: str
    key: str
    parent: str
    fields: frozenset[str]
    """Names of its params, tags, metrics and artifacts; then with their values."""


@dataclass
class State:
    """What a project holds after a stage."""

    files: dict[str, str] = field(default_factory=dict)
    """Checksums by path; "" where two undisturbed runs differ."""
    rows: dict[str, Any] = field(default_factory=dict)
    """Rows on validation without what times decide."""
    doubled: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


@dataclass
class Undisturbed:
    """A stage, the project before it, and what comes of it."""

    stage: str
    before: Path
    after: State
    points: list[Point]
    reads: list[str]
    """Files of the project that it reads."""
    grows: int
    """Bytes that it adds to a disk."""

    def draw(self, rng: random.Random, among: str = "") -> Point:
        """Draw a point: each name of `Point.name` is equally likely, however often the stage passes it."""
        named: dict[str, list[Point]] = {}
        for point in self.points:
            if re.search(among, point.name):
                named.setdefault(point.name, []).append(point)
        return rng.choice(named[rng.choice(sorted(named))])


class Place:
    """A folder in which a project is disturbed: the project, its temporary files, and the notes of what was done."""

    def __init__(self, folder: Path, before: Path, stage: str = "") -> None:
        """Copy the project as it was before a stage."""
        self.stage = stage
        self.folder, self.project = folder.resolve(), folder.resolve() / "root" / "project"
        self.notes = self.folder / "notes"
        for made in (self.notes, self.folder / "root" / "tmp"):
            made.mkdir(parents=True)
        shutil.copytree(before, self.project, symlinks=True)
        self._runs = 0

    @contextlib.contextmanager
    def disk(self, free: int) -> Iterator[Callable[[], object]]:
        """Lay the project on a small disk of its own, a tmpfs with some bytes free; yield what makes it large."""
        root, aside = self.project.parent, self.folder / "aside"
        root.rename(aside)
        root.mkdir()
        size = taken(aside) + free
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", root], check=True)
        try:
            shutil.copytree(aside, root, symlinks=True, dirs_exist_ok=True)
            yield lambda: subprocess.run(["mount", "-o", "remount,size=1g", root], check=True)
        finally:  # what the disk holds stays, to be looked at
            shutil.rmtree(aside)
            shutil.copytree(root, aside, symlinks=True)
            subprocess.run(["umount", "--lazy", root], check=True)
            root.rmdir()
            aside.rename(root)

    @property
    def fired(self) -> Path:
        """The line of the point at which the harm was done."""
        return self.notes / "fired"

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process in this project."""
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return passed | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.folder / "root" / "tmp"),
            # Where compiled code is kept: the kernel is compiled once, but where that is what is disturbed.
            "XDG_CACHE_HOME": str(self.project / ".compiled" if self.stage == "kernel" else self.folder.parent / "cache"),
            "DVC_SITE_CACHE_DIR": str(self.folder / "root" / "site"),
            "PREFECT_HOME": str(self.project / ".prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
            "TORTURE_ROOT": str(self.folder / "root"),
            "TORTURE_FIRED": str(self.fired),
            **more,
        }

    def start(self, forks: Forks, words: Sequence[str], **more: str) -> Run:
        """Start a module in the project."""
        self._runs += 1
        return forks.start(words, self.project, self.environment(**more), self.notes / f"run{self._runs}.txt")

    def run(self, forks: Forks, words: Sequence[str], **more: str) -> Run:
        """Run a module in the project, and wait for its end."""
        run = self.start(forks, words, **more)
        forks.wait(run)
        return run

    def state(self) -> State:
        """What the project holds now."""
        found = State()
        for file in (file for pattern in _KEPT for file in self.project.glob(pattern) if file.is_file()):
            name = str(file.relative_to(self.project))
            if re.fullmatch(_DVC_TEMPORARY, file.name):
                continue
            if name == "dvc.lock":  # stages that run side by side are listed in the order of their ends
                found.files[name] = json.dumps(yaml.safe_load(file.read_text(encoding="utf-8")), sort_keys=True)
            elif file.name == ".gitignore":  # a line that DVC was writing when it was killed names nothing
                lines = file.read_text(encoding="utf-8").split()
                found.files[name] = " ".join(sorted(one for one in lines if (file.parent / one.lstrip("/")).exists()))
            else:
                found.files[name] = checksum(file)
            if file.name == "rows.jsonl":
                _read_rows(file, name, found)
        found.records = records(self.project / "mlflow.db")
        return found


def words_of(stage: str) -> list[str]:
    """The module of a stage, and its words."""
    return [*STAGES[stage], *(() if stage in TOYS else ("--task", TASK))]


def _read_rows(file: Path, name: str, state: State) -> None:
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        key = f"{name} {row['split']} {row['method']} {row['settings']}"
        if key in state.rows:
            state.doubled.append(key)
        state.rows[key] = comparable(row)


def records(database: Path) -> list[Record]:
    """The runs of a database of MLflow."""
    if not database.exists():
        return []
    with contextlib.closing(sqlite3.connect(database)) as opened:
        active = "SELECT run_uuid, name, status, artifact_uri FROM runs WHERE lifecycle_stage = 'active'"
        runs = opened.execute(active).fetchall()
        names: dict[str, set[str]] = {}
        for table in ("params", "latest_metrics", "tags"):
            for run, name, value in opened.execute(f"SELECT run_uuid, key, value FROM {table}"):  # noqa: S608 (fixed names)
                names.setdefault(run, set()).update([f"{table} {name}", f"{table} {name} = {value}"])
        tags = {(run, key): value for run, key, value in opened.execute("SELECT run_uuid, key, value FROM tags")}
    found = []
    for run, name, status, place in runs:
        folder = Path(str(place).removeprefix("file://"))
        files = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
        artifacts = {f"artifact {path}{more}" for path, file in files.items() for more in ("", f" = {checksum(file)}")}
        parent, key = tags.get((run, "mlflow.parentRunId"), ""), tags.get((run, "draftline.key"), "")
        found.append(Record(name, status, key, parent, frozenset(names.get(run, set()) | artifacts)))
    return found


def build(folder: Path, workers: Sequence[Forks], stages: Sequence[str]) -> dict[str, Undisturbed]:
    """Run stages and those before them, undisturbed and each twice; the processes that fork learn what they import."""
    chain = [stage for stage in STAGES if stage not in (*TOYS, "kernel")]
    asked = ["calibrate" if stage == "kernel" else stage for stage in stages if stage not in TOYS]
    last = max(map(chain.index, asked), default=-1)
    stages = [*chain[: last + 1], *(stage for stage in stages if stage not in chain)]
    empty = folder / "empty"
    empty.mkdir(parents=True)
    params = smallest(tiny(yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))))
    (empty / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False), encoding="utf-8")
    if not set(stages) <= set(UNRECORDED):
        # A database with its tables and no experiment: their making takes longer than most stages.
        made = Place(folder / "database", empty)
        assert made.run(workers[0], ["tests.torture.project", "mlflow.db"]).status == 0
        shutil.copy2(made.project / "mlflow.db", folder / "mlflow.db")
    found, before = dict[str, Undisturbed](), empty
    for stage in stages:
        place, start = folder / stage.replace(" ", "-"), before
        if stage in TOYS:
            start = toy(folder / f"{stage}-toy", workers[0], stage)
        elif stage == "kernel":
            start = found["calibrate"].before
        found[stage], after = undisturbed(place, workers, stage, start, folder / "mlflow.db")
        before = after if start is before else before
    return found


def toy(folder: Path, forks: Forks, stage: str) -> Path:
    """A repository whose graph costs nothing; for a flow with a database of Prefect, whose tables take long to make."""
    folder.mkdir()
    made = repository(folder / "repository", TOY)
    if stage == "flow":
        place = Place(folder / "first", made, stage)
        assert place.run(forks, words_of(stage)).status == 0
        shutil.copytree(place.project / ".prefect", made / ".prefect")
    return made


def undisturbed(folder: Path, workers: Sequence[Forks], stage: str, before: Path, database: Path) -> tuple[Undisturbed, Path]:
    """Run a stage twice in copies of a project; also return the project after it, without its records."""
    start = folder / "before"
    shutil.copytree(before, start, symlinks=True)
    if stage not in UNRECORDED:
        shutil.copy2(database, start / "mlflow.db")
    places = [Place(folder / name, start, stage) for name in ("first", "second")]

    def run(place: Place, forks: Forks) -> State:
        noted = {"TORTURE_SEEN": str(place.notes / "seen"), "TORTURE_MODULES": str(place.notes / "modules")}
        done = place.run(forks, words_of(stage), **noted)
        assert done.status == 0, f"{stage} fails undisturbed: {done.said[-2000:]}"
        forks.learn((place.notes / "modules").read_text(encoding="utf-8").split())
        return place.state()

    # With two processes that fork side by side, with one after the other.
    with ThreadPoolExecutor(len(workers)) as pool:
        first, second = pool.map(run, places, [workers[0], workers[-1]])
    assert first.files.keys() == second.files.keys()
    for record in first.records:
        same = [other.fields for other in second.records if other.name == record.name]
        agreed = record.fields.intersection(*same) - _TIMES_ALONE
        record.fields = frozenset(one for one in agreed if not one.startswith(_WHY))
    first.files = {name: digest if second.files[name] == digest else "" for name, digest in first.files.items()}
    lines = [line.split("\t") for line in (places[0].notes / "seen").read_text(encoding="utf-8").splitlines()]
    prefix = "project/"
    points = [Point(who, int(number), operation, path) for _, who, number, operation, path in lines if number != "0"]
    reads = sorted({path.removeprefix(prefix) for *_, number, _, path in lines if number == "0" and path.startswith(prefix)})
    reads = [name for name in reads if (start / name).is_file() and name != "params.yaml" and "mlflow.db" not in name]
    if stage == "kernel":
        points = [point for point in points if "/.compiled/" in point.path and point.who == "main"]
    after = folder / "after"
    unrecorded = shutil.ignore_patterns("mlflow.db*", "mlartifacts", ".cache")
    shutil.copytree(places[0].project, after, symlinks=True, ignore=unrecorded)
    return Undisturbed(stage, start, first, points, reads, taken(places[0].project) - taken(start)), after


def can_mount(folder: Path) -> bool:
    """Whether this process may mount a disk of memory; the folder is made for the trial."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder], capture_output=True).returncode:
        return False
    subprocess.run(["umount", folder], check=True)
    return True


def taken(folder: Path) -> int:
    """Bytes that a folder takes on a disk, in pages."""
    return sum(-(-file.lstat().st_size // _PAGE) * _PAGE for file in folder.rglob("*"))


if __name__ == "__main__":
    from tasks.tracking.upload import connect

    connect(f"sqlite:///{Path(sys.argv[1]).resolve()}")
