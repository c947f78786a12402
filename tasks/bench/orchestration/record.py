"""What MLflow takes for the points of a sweep, and what it takes at least through its client."""

from __future__ import annotations

import contextlib
import io
import os
import time
from pathlib import Path
from unittest import mock

from tasks.errors import InputError
from tasks.tracking import Recorder, upload_all
from tasks.tracking.client import connect

_POINTS = 300
_PARAMS, _METRICS, _TAGS = 8, 25, 12
"""About as many as a point of a sweep has."""


def record_costs(folder: Path, points: int, by_client: int) -> dict[str, float]:
    """Return the seconds in which the run of a sweep with 300 points is sent to an SQLite database, of the clock and processor.

    MLflow is imported and its database made before.

    Args:
        folder: An empty folder.
        points: Points of the sweep that is sent.
        by_client: Points that are sent by calls of MLflow's client alone: create, log, end. This is the floor without
            `tasks.tracking.bulk`.

    Raises:
        InputError: MLflow does not hold them all.
    """
    uri, outbox = f"sqlite:///{folder / 'mlflow.db'}", folder / "outbox"
    client = connect(uri)
    with mock.patch.dict(os.environ, {"DRAFTLINE_OUTBOX": str(outbox), "MLFLOW_TRACKING_URI": uri}):
        silent = contextlib.redirect_stderr(io.StringIO())  # it says that the run waits
        with silent, Recorder("bench", "sweep", {"kind": "sweep"}, {}, flush_seconds=0) as sweep:
            for point in range(points):
                sweep.child(f"point {point}", *_contents(point))
        begun, used = time.monotonic(), time.process_time()
        sent, waiting = upload_all(outbox, uri)
        taken, used = time.monotonic() - begun, time.process_time() - used
    experiment = client.get_experiment_by_name("bench")
    held = 0 if experiment is None else len(client.search_runs([experiment.experiment_id], max_results=50_000))
    if waiting or held != points + 1:
        raise InputError(f"MLflow holds {held} of {points + 1} runs, {sent} were sent: {waiting}")
    return {
        f"mlflow_s_per_{_POINTS}_points": round(_POINTS * taken / points, 2),
        f"mlflow_processor_s_per_{_POINTS}_points": round(_POINTS * used / points, 2),
        f"mlflow_client_s_per_{_POINTS}_points": round(_POINTS * _by_client(uri, by_client) / by_client, 1),
    }


def _contents(point: int) -> tuple[dict[str, object], dict[str, object], dict[str, float]]:
    tags: dict[str, object] = {f"tag-{number}": f"value {point}" for number in range(_TAGS)}
    params: dict[str, object] = {f"param-{number}": point for number in range(_PARAMS)}
    return tags, params, {f"metric-{number}": point + number / 10 for number in range(_METRICS)}


def _by_client(uri: str, points: int) -> float:
    """Return the seconds that MLflow's client takes for so many runs."""
    from mlflow.entities import Metric, Param

    client = connect(uri)
    experiment = client.create_experiment("by client")
    begun = time.monotonic()
    for point in range(points):
        tags, params, metrics = _contents(point)
        run = client.create_run(experiment, tags=tags, run_name=f"point {point}")
        values = [Metric(name, value, 0, 0) for name, value in metrics.items()]
        client.log_batch(run.info.run_id, values, [Param(name, str(value)) for name, value in params.items()])
        client.set_terminated(run.info.run_id)
    return time.monotonic() - begun
