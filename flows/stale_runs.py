"""Sets right what a crash has left on the Prefect server: runs that nobody works on any more."""

from __future__ import annotations

from uuid import UUID

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
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

_AT_WORK = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def mark_crashed(run_id: str) -> None:
    """Marks a run whose process died, unless it reached an end or the server does not know it."""
    with get_client(sync_client=True) as client:
        try:
            run = client.read_flow_run(UUID(run_id))
        except (ObjectNotFound, ValueError):
            return
        if run.state is not None and run.state.type in _AT_WORK:
            _crash(client, run)


def mark_all_crashed(flow: str, deployment: str) -> int:
    """Marks the runs of a deployment that are at work as crashed, and gives their number.

    Only the one process that serves the deployment may call this, before it serves: all of them are a dead predecessor's.

    A run left like this would keep the deployment's only slot, so that no other could start.
    """
    with get_client(sync_client=True) as client:
        left = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_AT_WORK))),
            flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])),
            deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=[deployment])),
        )
        for run in left:
            _crash(client, run)
    return len(left)


def _crash(client: SyncPrefectClient, run: FlowRun) -> None:
    client.set_flow_run_state(run.id, Crashed(message="The process of this run ended without a word."), force=True)
