"""A place for records that behaves as MLflow does, in memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tasks.tracking.sink import Away, Blocked, Gone, Metric, Refused


@dataclass
class Run:
    """What a sink keeps of a run; metrics are a set, as MLflow's databases keep one of two equal ones."""

    key: str
    name: str
    tags: dict[str, str]
    start: int
    metrics: set[Metric] = field(default_factory=set)
    params: dict[str, str] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    status: str = "RUNNING"
    end: int = 0


class Killed(BaseException):
    """Stands for the end of a shipper's process."""


class MemorySink:
    """A `Sink` in memory that can be killed before or after its n-th call, be away, refuse a metric and lose its runs."""

    def __init__(self, lanes: int = 1) -> None:
        self.runs: dict[str, Run] = {}
        self.lanes = lanes
        self.calls = self.finds = self.connections = 0
        self.inside = self.most_inside = 0
        self.kill_at: int | None = None
        self.after = False
        self.dead = False
        self.away = False
        self.deleted = ""
        self.seconds = 0.0
        self.lock = threading.Lock()

    def connect(self, uri: str) -> MemorySink:
        self.connections += 1
        if self.away:
            raise Away(f"{uri} does not answer")
        return self

    def revive(self) -> None:
        """What the next process finds."""
        self.kill_at, self.dead = None, False

    def by_name(self, name: str) -> Run:
        (run,) = (run for run in self.runs.values() if run.name == name)
        return run

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """Once one call is killed, all are: they belong to one process."""
        with self.lock:
            self.calls += 1
            number = self.calls
            self.dead = self.dead or (number == self.kill_at and not self.after)
            if self.dead:
                raise Killed
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        try:
            time.sleep(self.seconds)
            with self.lock:
                yield
        finally:
            self.inside -= 1
        self.dead = self.dead or number == self.kill_at
        if self.dead:
            raise Killed

    def find(self, experiment: str, key: str) -> str | None:
        self.finds += 1
        return next((run_id for run_id, run in self.runs.items() if run.key == key), None)

    def create(self, experiment: str, key: str, name: str, tags: dict[str, str], start: int) -> str:
        with self._call():
            if experiment == self.deleted:
                raise Blocked(f"experiment {experiment!r} is deleted")
            run_id = f"run{len(self.runs)}"
            self.runs[run_id] = Run(key, name, tags, start)
        return run_id

    def log(self, run_id: str, metrics: list[Metric], params: dict[str, str], tags: dict[str, str]) -> None:
        with self._call():
            if any(metric.name == "refused" for metric in metrics):
                raise Refused("a bad name")
            run = self._run(run_id)
            run.metrics |= set(metrics)
            run.params |= params
            run.tags |= tags

    def log_artifact(self, run_id: str, path: Path, folder: str) -> None:
        with self._call():
            self._run(run_id).artifacts[f"{folder}/{path.name}"] = path.read_text(encoding="utf-8")

    def end(self, run_id: str, status: str, time: int) -> None:
        with self._call():
            run = self._run(run_id)
            run.status, run.end = status, time

    def _run(self, run_id: str) -> Run:
        if run_id not in self.runs:
            raise Gone(run_id)
        return self.runs[run_id]
