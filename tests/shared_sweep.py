"""A sweep on two machines that are simulated on one, with a journal of who worked and who timed.

`python -m tests.shared_sweep OPTIONS…` is `python -m tasks.sweep OPTIONS…`. `dask worker --preload tests.shared_sweep` starts
workers that claim to be on another machine. All of them wait for each other, so that each worker is sure to do a part.
"""

import os
import runpy
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.served import PATIENCE

JOURNAL, PROCESSES = "SHARED_SWEEP_JOURNAL", "SHARED_SWEEP_PROCESSES"
"""Environment variables: the journal's file, and how many processes share the sweep."""


class Entry(NamedTuple):
    """A line of the journal, in the order of time."""

    what: str
    """`replay` or `decode`, a unit of the work that is shared, or `time`, a visit to a point."""
    begins: bool
    process: int


def journal(file: Path) -> list[Entry]:
    lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    return [Entry(what, begins == "begin", int(process)) for what, begins, process in lines]


def done_by(entries: list[Entry], what: str) -> set[int]:
    """The processes that have done something of a kind."""
    return {entry.process for entry in entries if entry.what == what and not entry.begins}


def _keep_journal_of(kind: Any, method: str, what: str) -> None:
    whole = getattr(kind, method)

    def noted(*arguments: Any, **options: Any) -> Any:
        if what != "time":
            _wait_for_others(what)
        _note(what, "begin")
        try:
            return whole(*arguments, **options)
        finally:
            _note(what, "end")

    setattr(kind, method, noted)


def _note(what: str, when: str) -> None:
    # One write to a file that is opened for appending is one line, whoever else writes.
    with Path(os.environ[JOURNAL]).open("ab", buffering=0) as file:
        file.write(f"{what} {when} {os.getpid()}\n".encode())


def _wait_for_others(what: str) -> None:
    """Wait until every process has done a unit of this kind of work, unless this one has not."""
    deadline, file = time.monotonic() + PATIENCE, Path(os.environ[JOURNAL])
    # The process that sweeps replays the first example, and decodes nothing.
    wanted = int(os.environ[PROCESSES]) - (what == "decode")
    while os.getpid() in (done := done_by(journal(file), what)) and len(done) < wanted:
        assert time.monotonic() < deadline, f"only {done} did {what}"
        time.sleep(0.05)


def keep_journal() -> None:
    """Note each unit of shared work and each timing of this process."""
    from tasks.evaluation.sweep import run
    from tasks.evaluation.sweep.replay import GridReplay, PointDecoder

    _keep_journal_of(GridReplay, "_replay", "replay")
    _keep_journal_of(PointDecoder, "__call__", "decode")
    _keep_journal_of(run, "_time_each", "time")


def dask_setup(_: Any) -> None:
    """Called by Dask when a worker starts."""
    from tasks.evaluation.sweep import fan_out

    fan_out.machine = lambda: "another machine"
    keep_journal()


if __name__ == "__main__":
    keep_journal()
    runpy.run_module("tasks.sweep", run_name="__main__")
