"""Writes many ended runs into MLflow's database in one transaction.

MLflow's client takes three calls for a run, each of them several transactions, each of which SQLite flushes to the disk: about
100 ms, so that the 300 points of a sweep took half a minute. Where the client works on an SQLite database itself, the runs are
inserted as rows of MLflow's own tables, as its command `migrate-filestore` does. The rows equal those that the client writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tasks.tracking.outbox import Run

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

_NAME_TAG, _UNKNOWN_USER = "mlflow.runName", "unknown"


def insert_runs(client: MlflowClient, experiment: str, runs: Sequence[tuple[Run, dict[str, str]]]) -> set[str]:
    """Insert runs, all or none.

    A run with a value that MLflow refuses is left out, and so is every run where the client's store is no SQLite database:
    the caller sends those through the client.

    Args:
        client: The MLflow.
        experiment: The id of the runs' experiment.
        runs: Ended runs that MLflow does not hold, each with its tags.

    Returns:
        The keys of those inserted.

    Raises:
        Exception: The database was busy, or its tables are not those of the MLflow that is known here; nothing was inserted.
    """
    store = _database_of(client)
    if store is None or not runs:
        return set()
    from mlflow.store.tracking.dbmodels import models
    from sqlalchemy import insert

    location = client.get_experiment(experiment).artifact_location
    tables: dict[type[Any], list[dict[str, Any]]] = {
        table: [] for table in (models.SqlRun, models.SqlTag, models.SqlParam, models.SqlMetric, models.SqlLatestMetric)
    }
    inserted = set[str]()
    for run, tags in runs:
        rows = _rows(store, run, tags, int(experiment), location)
        if rows is None:
            continue
        inserted.add(run.key)
        for table, some in zip(tables, rows, strict=True):
            tables[table] += some
    with store.ManagedSessionMaker(read_only=False) as session:
        for table, some in tables.items():
            if some:
                session.execute(insert(table), some)
    return inserted


def _database_of(client: MlflowClient) -> SqlAlchemyStore | None:
    """Return the store of a client that works on an SQLite database itself."""
    store = getattr(getattr(client, "_tracking_client", None), "store", None)
    return store if getattr(store, "db_type", None) == "sqlite" and hasattr(store, "ManagedSessionMaker") else None


def _rows(
    store: SqlAlchemyStore, run: Run, tags: dict[str, str], experiment: int, location: str
) -> tuple[list[dict[str, Any]], ...] | None:
    """Return the rows of a run: runs, tags, params, metrics, last metrics; None if MLflow refuses one of its values."""
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.exceptions import MlflowException
    from mlflow.utils.validation import _validate_batch_log_data

    tags = {**tags, _NAME_TAG: run.name}
    metrics = [Metric(name, value, at, step) for name, value, step, at in run.metrics]
    try:
        _, params, known = _validate_batch_log_data(
            metrics, [Param(*param) for param in run.params.items()], [RunTag(*tag) for tag in tags.items()]
        )
    except MlflowException:
        return None
    key = {"run_uuid": uuid4().hex}
    row = {
        "name": run.name,
        "artifact_uri": f"{location}/{key['run_uuid']}/artifacts",
        "experiment_id": experiment,
        "source_type": "UNKNOWN",
        "source_name": "",
        "source_version": "",
        "entry_point_name": "",
        "user_id": _UNKNOWN_USER,
        "status": run.status,
        "start_time": run.start,
        "end_time": run.end,
        "deleted_time": None,
        "lifecycle_stage": "active",
    }
    values = [key | _metric_row(store, metric) for metric in metrics]
    last = {one["key"]: one for one in sorted(values, key=lambda one: (one["step"], one["timestamp"], one["value"]))}
    return [key | row], [key | _pair(one) for one in known], [key | _pair(one) for one in params], values, [*last.values()]


def _pair(one: Any) -> dict[str, str]:
    return {"key": one.key, "value": one.value}


def _metric_row(store: SqlAlchemyStore, metric: Any) -> dict[str, Any]:
    is_nan, value = store.sanitize_metric_value(metric.value)
    return {"key": metric.key, "value": value, "timestamp": metric.timestamp, "step": metric.step, "is_nan": is_nan}
