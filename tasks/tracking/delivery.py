"""One file of the spool on its way to MLflow.

Of consecutive children several are sent at once, where the sink has lanes for them: a server takes four in the time of one.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tasks.tracking import spool as files
from tasks.tracking.sink import PARENT_TAG, Away, Blocked, Gone, Metric, Refused, Sink
from tasks.tracking.spool import Line, Sent

_VALUES = ("metrics", "params", "tags")
_VALUES_A_GROUP = 500
_CHILDREN_A_GROUP = 16


class _Placed(NamedTuple):
    """A line of the file."""

    raw: bytes
    line: Line
    end: int
    """The offset behind it."""


class Delivery:
    """One file on its way; the caller holds its lock."""

    def __init__(self, path: Path, opening: Line, destination: str, sink: Sink, deadline: float | None) -> None:
        self.path, self.opening, self.sink, self.deadline = path, opening, sink, deadline
        sent = files.load_sent(path)
        self.repeated = sent is not None
        self.sent = sent if sent is not None and sent.destination == destination else Sent(destination)
        # Where it went to another destination in between, nobody knows what is already at this one.
        self.begun = self.sent.begun if sent is None or sent is self.sent else sys.maxsize

    def run_or_start_over(self) -> bool:
        """`run`; where the database was replaced and has lost the run, the whole record is sent again as a new one."""
        try:
            return self.run()
        except Gone:
            self.begun = max(self.begun, self.sent.begun)
            self.sent = Sent(self.sent.destination)
            return self.run()

    def run(self) -> bool:
        """Sends the lines that were not sent yet; True once the run has ended in MLflow."""
        # Asked before reading: of a writer that was dead then, the last line has been read.
        alive = files.is_alive(self.opening["writer"])
        run_id = self._run_id()
        for group in _groups(files.read_from(self.path, self.sent.offset)):
            self._check_time()
            kind = group[0].line["kind"]
            if kind == "end":
                self.sink.end(run_id, group[0].line["status"], group[0].line["time"])
                return True
            if kind in _VALUES:
                self._send_values(run_id, group)
            elif kind == "child":
                self._send_children(run_id, group)
            else:
                self._settle(group[0], partial(self._send_other, run_id, group[0].line))
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
        parent = self.opening["parent"] and self._id_of(self.opening["parent"])
        if parent is not None:
            tags[PARENT_TAG] = parent
        run_id = self._create(self.opening, tags, self.opening["time"], self.repeated)
        self.sink.log(run_id, [], self.opening["params"], {})
        self.sent.run_id = run_id
        self._note(files.read_from(self.path, 0)[0][1])
        return run_id

    def _create(self, run: Line, tags: dict[str, str], start: int, repeated: bool) -> str:
        experiment = self.opening["experiment"]
        found = self.sink.find(experiment, run["key"]) if repeated else None
        return self.sink.create(experiment, run["key"], run["name"], tags, start) if found is None else found

    def _id_of(self, key: str) -> str | None:
        """The run id of another run: from its sidecar while its file waits, else from MLflow; None where that has none."""
        for path in self.path.parent.glob(f"*-{key}.jsonl"):
            sent = files.load_sent(path)
            if sent is None or sent.run_id is None or sent.destination != self.sent.destination:
                raise Blocked(f"run {self.opening['name']!r}: the run that it belongs to is not sent yet")
            return sent.run_id
        return self.sink.find(self.opening["experiment"], key)

    def _send_values(self, run_id: str, group: list[_Placed]) -> None:
        """Sends lines in as few calls as MLflow allows; line by line where it refuses some."""
        try:
            self.sink.log(run_id, *_merged(placed.line for placed in group))
        except Refused:
            for placed in group:
                self._settle(placed, partial(self.sink.log, run_id, *_merged([placed.line])))
        self._note(group[-1].end)

    def _send_children(self, run_id: str, group: list[_Placed]) -> None:
        """Sends children side by side, as many as the sink takes; where one cannot be sent, those behind it wait as well."""
        self.sent.begun = max(self.sent.begun, group[-1].end)
        self.sent.save(self.path)
        with ThreadPoolExecutor(self.sink.lanes) as pool:
            calls = [pool.submit(self._send_child, run_id, placed) for placed in group]
            try:
                for placed, call in zip(group, calls, strict=True):
                    self._settle(placed, call.result)
            finally:
                for call in calls:
                    call.cancel()

    def _settle(self, placed: _Placed, send: Callable[[], None]) -> None:
        """Sends a line, or sets it aside with a warning where MLflow will never take it; then notes that it is done with."""
        try:
            send()
        except (Refused, KeyError) as error:
            files.set_aside(self.path, placed.raw)
            aside = self.path.with_suffix(".refused")
            name = self.opening["name"]
            print(f"warning: a line of run {name!r} cannot go to MLflow ({error}); it is kept in {aside}", file=sys.stderr)
        self._note(placed.end)

    def _send_child(self, run_id: str, placed: _Placed) -> None:
        self._check_time()
        line = placed.line
        child_id = self._create(line, {**line["tags"], PARENT_TAG: run_id}, line["start"], placed.end <= self.begun)
        metrics = [Metric(name, value, line["end"], 0) for name, value in line["metrics"].items()]
        self.sink.log(child_id, metrics, line["params"], {})
        self.sink.end(child_id, line["status"], line["end"])

    def _send_other(self, run_id: str, line: Line) -> None:
        if line["kind"] != "artifact":
            raise Refused("this is no line of a spool file")
        copy = files.artifact_folder(self.path) / line["path"]
        if not copy.exists():
            raise Refused(f"the artifact {copy} is missing")
        self.sink.log_artifact(run_id, copy, line["folder"])
        for key in line.get("beside", ()):
            # None: the earlier run was recorded elsewhere, and only its results came here.
            earlier = self._id_of(key)
            if earlier is not None:
                self.sink.log_artifact(earlier, copy, line["folder"])

    def _note(self, offset: int) -> None:
        self.sent.offset = max(self.sent.offset, offset)
        self.sent.save(self.path)

    def _check_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise Away("no time left for sending")


def _groups(lines: Iterable[tuple[bytes, int]]) -> Iterator[list[_Placed]]:
    """The lines of a file in order: consecutive values together, and consecutive children; every other line by itself."""
    group: list[_Placed] = []
    for raw, end in lines:
        placed = _Placed(raw, _parse(raw), end)
        if group and not _joins(group, placed):
            yield group
            group = []
        group.append(placed)
    if group:
        yield group


def _joins(group: list[_Placed], placed: _Placed) -> bool:
    first, kind = group[0].line["kind"], placed.line["kind"]
    if first in _VALUES and kind in _VALUES:
        return sum(len(member.line["values"]) for member in group) < _VALUES_A_GROUP
    return first == kind == "child" and len(group) < _CHILDREN_A_GROUP


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
