"""When watch starts the stages: after a change, never twice for what failed, again for what was killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.logging import disable_run_logger
from prefect.states import Completed

from flows import watch
from flows.lockfile import lock_file
from flows.pipeline import RUN_LOCK
from flows.sources import Sources
from tasks.errors import InputError
from tests.unit.flows.conftest import Repository

Looked = Callable[[Sources], str]


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> dict[str, StateType]:
    """The states of the server's runs, by id; no test of this file has a server."""
    known: dict[str, StateType] = {}
    monkeypatch.setattr(watch, "read_state", known.get)
    return known


@pytest.fixture
def look(repository: Repository, monkeypatch: pytest.MonkeyPatch, states: dict[str, StateType]) -> Iterator[Looked]:
    """Return a function that looks once at the given sources, and returns the message of the run, or `ran`."""
    monkeypatch.chdir(repository({"only": {"cmd": "touch out", "deps": ["raw"], "outs": ["out"]}}))
    found: list[Sources] = []

    def run_graph(*_: object) -> State[None]:
        return Completed(message="ran")

    monkeypatch.setattr(watch, "run_graph", run_graph)
    monkeypatch.setattr(watch, "read_sources", lambda *_: found[-1])

    def once(sources: Sources) -> str:
        found.append(sources)
        return str(watch.watch.fn().message)

    with disable_run_logger():
        yield once


CHANGED = Sources(("raw (modified)",), "1")


def test_nothing_changed_starts_nothing(look: Looked) -> None:
    assert look(Sources((), "1")) == "nothing changed: 1 stages are up to date with their sources"
    assert look(CHANGED) == "ran"


@pytest.mark.parametrize(
    ("state", "again"),
    [
        (StateType.FAILED, "which failed; python -m flows.pipeline tries again"),
        (StateType.CANCELLED, "which was cancelled; python -m flows.pipeline tries again"),
        (StateType.CRASHED, None),
        (StateType.RUNNING, None),
        (None, None),
    ],
)
def test_what_failed_waits_for_a_change_and_what_was_killed_goes_on(
    look: Looked, states: dict[str, StateType], state: StateType | None, again: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.pipeline.runtime.flow_run.id", "run-1", raising=False)
    assert look(CHANGED) == "ran"
    if state is not None:
        states["run-1"] = state
    assert look(CHANGED) == ("ran" if again is None else f"nothing changed since flow run run-1, {again}")
    assert look(Sources(CHANGED.changes, "2")) == "ran"


def test_a_hub_that_does_not_answer_stops_nothing(look: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(root: Path) -> None:
        raise InputError("no answer")

    monkeypatch.setattr(watch, "moved_on_hub", away)
    assert look(CHANGED) == "ran"


def test_a_look_while_a_run_is_at_work_starts_nothing(look: Looked) -> None:
    with lock_file(RUN_LOCK) as lock:
        lock.write("run-1")
        assert look(CHANGED) == "flow run run-1 is at work in this repository; wait for it to end"
