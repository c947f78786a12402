"""Marks flow runs as crashed when the process that worked on them is gone."""

from __future__ import annotations

from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Crashed

_UNFINISHED = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def mark_crashed(run_id: str) -> None:
    """Mark a run whose process died; do nothing if the run has ended or the server does not know it."""
    with get_client(sync_client=True) as client:
        run = _read(client, run_id)
        if run is not None and run.state is not None and run.state.type in _UNFINISHED:
            _crash(client, run)


def read_state(run_id: str) -> StateType | None:
    """Return the type of a run's state; None if the server does not know the run."""
    with get_client(sync_client=True) as client:
        run = _read(client, run_id)
    return None if run is None or run.state is None else run.state.type


def is_cancelled(run_id: str) -> bool:
    """Whether somebody has cancelled a run on the server; false if the server does not answer."""
    try:
        return read_state(run_id) in (StateType.CANCELLING, StateType.CANCELLED)
    except (HTTPError, PrefectHTTPStatusError):
        return False


def mark_all_crashed(flow: str, deployment: str) -> int:
    """Mark all unfinished runs of a deployment as crashed and return their number.

    Call this only from the process that is about to serve the deployment: every unfinished run then belongs to a predecessor
    that died. Such a run would occupy the deployment's only slot, so that no other run could start.
    """
    with get_client(sync_client=True) as client:
        stale = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_UNFINISHED))),
            flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])),
            deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=[deployment])),
        )
        for run in stale:
            _crash(client, run)
    return len(stale)


def _read(client: SyncPrefectClient, run_id: str) -> FlowRun | None:
    try:
        return client.read_flow_run(UUID(run_id))
    except (ObjectNotFound, ValueError):
        return None


def _crash(client: SyncPrefectClient, run: FlowRun) -> None:
    client.set_flow_run_state(run.id, Crashed(message="The process of this run ended without reporting a state."), force=True)
