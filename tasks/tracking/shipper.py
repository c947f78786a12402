"""Sends what waits in the spool to MLflow, each line once.

How a line is sent once: a file is locked while it is sent, and its sidecar says how far. A shipper killed between a call and
its note in the sidecar makes the next one repeat that one call, so calls must bear repeating: a run is looked up by its key
before it is created again, params and tags are overwritten by themselves, artifacts too, and MLflow's databases keep one of
two metrics that agree in name, value, step and time. (A server of another make may keep both: a point drawn twice on a curve.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tasks.tracking import spool as files
from tasks.tracking.sink import PARENT_TAG, Away, Blocked, Gone, Metric, MlflowSink, Refused, Sink
from tasks.tracking.spool import Line, Sent

LOCK_PATIENCE = 30.0
_VALUES = ("metrics", "params", "tags")
_VALUES_A_GROUP = 500


@dataclass
class Shipment:
    """What a pass over the spool did: runs that still wait, why the first of these does, and runs sent to their end."""

    left: int = 0
    reason: str = ""
    sent: int = 0


def tracking_uri(root: Path = Path()) -> str:
    """`MLFLOW_TRACKING_URI`, or the SQLite database `mlflow.db` in `root`, the repository."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / 'mlflow.db'}"


def ship(spool: Path, uri: str) -> int:
    """Sends every waiting record and gives the number of runs that could not be sent."""
    return ship_all(spool, uri).left


def ship_all(spool: Path, uri: str, *, deadline: float | None = None, connect: Callable[[str], Sink] = MlflowSink) -> Shipment:
    """Sends every waiting record, oldest first, and never raises on account of MLflow.

    Runs that are still written are sent as far as they go; those whose writer died are ended as KILLED.

    Args:
        deadline: `time.monotonic()` at which to stop between two calls.
        connect: gives the sink of a URI; tests put their own here.
    """
    shipment = Shipment()
    sink: Sink | None = None
    away = False
    for path in files.run_files(spool):
        if away:
            shipment.left += files.has_unsent(path)
            continue
        try:
            sink = connect(uri) if sink is None else sink
            shipment.sent += ship_file(path, uri, sink, deadline)
        except (Away, Blocked, files.Busy, OSError) as error:
            shipment.left += 1
            shipment.reason = shipment.reason or str(error)
            away = isinstance(error, Away)
    with contextlib.suppress(OSError):
        files.sweep_out(spool)
    return shipment


def ship_file(path: Path, uri: str, sink: Sink, deadline: float | None = None) -> bool:
    """Sends what a run's file holds and gives whether the run ended, after which its file is removed.

    Raises:
        Away, Blocked, Busy, OSError: something could not be sent; the sidecar says how far it got.
    """
    patience = LOCK_PATIENCE if deadline is None else max(0.0, min(LOCK_PATIENCE, deadline - time.monotonic()))
    with files.locked(path, patience) as present:
        if not present:
            return False
        try:
            opening = files.read_opening(path)
        except ValueError as error:
            raise Blocked(f"{path.name}: {error}; repair or remove it") from error
        delivery = _Delivery(path, opening, hashlib.sha256(uri.encode()).hexdigest()[:16], sink, deadline)
        try:
            ended = delivery.run_or_start_over()
        except (Gone, Refused) as error:
            raise Blocked(f"run {opening['name']!r}: {error}") from error
        if ended:
            files.remove(path)
        return ended


class _Delivery:
    """One file on its way; the caller holds its lock."""

    def __init__(self, path: Path, opening: Line, destination: str, sink: Sink, deadline: float | None) -> None:
        self.path, self.opening, self.sink, self.deadline = path, opening, sink, deadline
        sent = files.load_sent(path)
        self.repeated = sent is not None
        self.sent = sent if sent is not None and sent.destination == destination else Sent(destination)

    def run_or_start_over(self) -> bool:
        """`run`; where the database was replaced and has lost the run, the whole record is sent again as a new one."""
        try:
            return self.run()
        except Gone:
            self.sent = Sent(self.sent.destination)
            return self.run()

    def run(self) -> bool:
        """Sends the lines that were not sent yet; True once the run has ended in MLflow."""
        # Asked before reading: of a writer that was dead then, the last line has been read.
        alive = files.is_alive(self.opening["writer"])
        run_id = self._run_id()
        group: list[tuple[bytes, Line, int]] = []
        for raw, end in files.read_from(self.path, self.sent.offset):
            line = _parse(raw)
            if line["kind"] in _VALUES:
                group.append((raw, line, end))
                if sum(len(item["values"]) for _, item, _ in group) >= _VALUES_A_GROUP:
                    group = self._send_group(run_id, group)
                continue
            group = self._send_group(run_id, group)
            if line["kind"] == "end":
                self.sink.end(run_id, line["status"], line["time"])
                return True
            self._send_one(run_id, raw, line, end)
        self._send_group(run_id, group)
        if not alive:
            self.sink.end(run_id, "KILLED", int(self.path.stat().st_mtime * 1000))
        return not alive

    def _run_id(self) -> str:
        """The id of the run in MLflow, which is created unless an earlier shipper got as far as that."""
        if self.sent.run_id is not None:
            return self.sent.run_id
        self._check_time()
        self.sent.save(self.path)
        tags = dict(self.opening["tags"])
        parent = self._parent_id()
        if parent is not None:
            tags[PARENT_TAG] = parent
        run_id = self._create(self.opening, tags, self.opening["time"])
        self.sink.log(run_id, [], self.opening["params"], {})
        self.sent.run_id = run_id
        self._note(files.read_from(self.path, 0)[0][1])
        return run_id

    def _create(self, run: Line, tags: dict[str, str], start: int) -> str:
        experiment = self.opening["experiment"]
        found = self.sink.find(experiment, run["key"]) if self.repeated else None
        return self.sink.create(experiment, run["key"], run["name"], tags, start) if found is None else found

    def _parent_id(self) -> str | None:
        """The run id of the parent, from its sidecar while its file waits, else from MLflow; None where it has none."""
        key = self.opening["parent"]
        if key is None:
            return None
        for path in self.path.parent.glob(f"*-{key}.jsonl"):
            sent = files.load_sent(path)
            if sent is None or sent.run_id is None or sent.destination != self.sent.destination:
                raise Blocked(f"run {self.opening['name']!r}: its parent is not sent yet")
            return sent.run_id
        return self.sink.find(self.opening["experiment"], key)

    def _send_group(self, run_id: str, group: list[tuple[bytes, Line, int]]) -> list[tuple[bytes, Line, int]]:
        """Sends consecutive lines in as few calls as MLflow allows; line by line where it refuses some. Gives []."""
        if not group:
            return []
        self._check_time()
        try:
            self.sink.log(run_id, *_merged(line for _, line, _ in group))
        except Refused:
            for raw, line, end in group:
                self._send_one(run_id, raw, line, end)
        self._note(group[-1][2])
        return []

    def _send_one(self, run_id: str, raw: bytes, line: Line, end: int) -> None:
        """Sends a line, or sets it aside with a warning where MLflow will never take it."""
        self._check_time()
        try:
            if line["kind"] == "child":
                self._send_child(run_id, line)
            elif line["kind"] == "artifact":
                self._send_artifact(run_id, line)
            elif line["kind"] in _VALUES:
                self.sink.log(run_id, *_merged([line]))
            else:
                raise Refused("this is no line of a spool file")
        except (Refused, KeyError) as error:
            files.set_aside(self.path, raw)
            aside = self.path.with_suffix(".refused")
            name = self.opening["name"]
            print(f"warning: a line of run {name!r} cannot go to MLflow ({error}); it is kept in {aside}", file=sys.stderr)
        self._note(end)

    def _send_child(self, run_id: str, line: Line) -> None:
        child_id = self._create(line, {**line["tags"], PARENT_TAG: run_id}, line["start"])
        metrics = [Metric(name, value, line["end"], 0) for name, value in line["metrics"].items()]
        self.sink.log(child_id, metrics, line["params"], {})
        self.sink.end(child_id, line["status"], line["end"])

    def _send_artifact(self, run_id: str, line: Line) -> None:
        copy = files.artifact_folder(self.path) / line["path"]
        if not copy.exists():
            raise Refused(f"the artifact {copy} is missing")
        self.sink.log_artifact(run_id, copy, line["folder"])

    def _note(self, offset: int) -> None:
        self.sent.offset = max(self.sent.offset, offset)
        self.sent.save(self.path)

    def _check_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise Away("no time left for sending")


def _parse(raw: bytes) -> Line:
    """A line of a file; one that somebody has broken gets the kind `broken`."""
    with contextlib.suppress(ValueError):
        line = json.loads(raw)
        if isinstance(line, dict) and (line.get("kind") not in _VALUES or isinstance(line.get("values"), dict)):
            return {"kind": "broken", **line}
    return {"kind": "broken"}


def _merged(lines: Iterable[Line]) -> tuple[list[Metric], dict[str, str], dict[str, str]]:
    """The metrics, params and tags of several lines; of a tag set twice the later value."""
    metrics: list[Metric] = []
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    for line in lines:
        if line["kind"] == "metrics":
            metrics += [Metric(name, value, line["time"], line["step"]) for name, value in line["values"].items()]
        else:
            (params if line["kind"] == "params" else tags).update(line["values"])
    return metrics, params, tags
