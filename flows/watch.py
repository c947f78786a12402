"""Starts the stages only where a source has changed: `python -m flows.watch`, or `flows.serve --watch-minutes N`.

A source is what the graph reads and no stage makes: files, folders, code, parameters, and the commit of a data set on the hub.
Stages that a killed run has left out of date are finished too. A run that failed or was cancelled on these very sources is not
repeated: it waits for a change, or for `python -m flows.pipeline`.
"""

from __future__ import annotations

import json
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State, StateType
from prefect.states import Completed

from flows.graph import read_graph
from flows.pipeline import in_workspace, run_graph, run_once
from flows.settings import PipelineSettings
from flows.sources import Sources, moved_on_hub, read_sources
from flows.stale_runs import read_state
from tasks.corpora.hub.lock import replace_commit
from tasks.errors import InputError
from tasks.files import atomic_write
from tasks.paths import CACHE

_DEFAULTS = PipelineSettings()
_NOTE = CACHE / "watched.json"
"""The fingerprint of the sources that the last run was started for, and its id."""
_GIVEN_UP = (StateType.FAILED, StateType.CANCELLED, StateType.CANCELLING)


@flow(name="watch", persist_result=False)
def watch(
    targets: list[str] | None = None,
    execution: PipelineSettings = _DEFAULTS,
) -> State[None]:
    """Bring the stages up to date if a source has changed; otherwise do nothing.

    Args:
        targets: stages or groups of stages, watched and run with the stages that they need; None: all stages.
        execution: how stages run.
    """
    return in_workspace(lambda root, run_id: _look(root, run_id, targets or [], execution))


def _look(root: Path, run_id: str, targets: list[str], settings: PipelineSettings) -> State[None]:
    names = [stage.name for stage in read_graph(root, targets)]
    _follow_hub(root)
    sources = read_sources(root, names)
    if not sources.changes:
        return Completed(name="Unchanged", message=f"nothing changed: {len(names)} stages are up to date with their sources")
    if (earlier := _given_up(root / _NOTE, sources)) is not None:
        return Completed(name="Unchanged", message=f"nothing changed since {earlier}; python -m flows.pipeline tries again")
    get_run_logger().info("changed: %s", sources.summary())
    atomic_write(root / _NOTE, json.dumps({"sources": sources.fingerprint, "run": run_id}))
    return run_graph(root, run_id, targets, settings)


def _follow_hub(root: Path) -> None:
    """Write newer commits of the hub to the lock files, which are sources of the graph."""
    try:
        for moved in moved_on_hub(root):
            replace_commit(moved.data_set, moved.commit, moved.lock)
            get_run_logger().info("%s: %s is now at commit %s", moved.lock.name, moved.data_set.name, moved.commit)
    except InputError as error:
        get_run_logger().warning("the hub was not asked for newer data: %s", error)


def _given_up(note: Path, sources: Sources) -> str | None:
    """Return which run failed or was cancelled on the same sources; None if there is none."""
    try:
        last = json.loads(note.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    if last["sources"] != sources.fingerprint or (state := read_state(last["run"])) not in _GIVEN_UP:
        return None
    return f"flow run {last['run']}, which {'failed' if state is StateType.FAILED else 'was cancelled'}"


def main() -> int:
    """Look once and return the exit status, which is 1 if a stage failed."""
    return run_once(watch, "Run DVC's stages as one flow run if a source has changed.")


if __name__ == "__main__":
    raise SystemExit(main())
