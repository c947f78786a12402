"""Sends what waits in the spool to MLflow, each line once.

How a line is sent once: a file is locked while it is sent, and its sidecar says how far. A shipper killed between a call and
its note in the sidecar makes the next one repeat that call, so calls must bear repeating: a run is looked up by its key before
it is created again, params and tags are overwritten by themselves, artifacts too, and MLflow's databases keep one of two
metrics that agree in name, value, step and time. (A server of another make may keep both: a point drawn twice on a curve.)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tasks.tracking import spool as files
from tasks.tracking.delivery import Delivery
from tasks.tracking.sink import Away, Blocked, Gone, MlflowSink, Refused, Sink

LOCK_PATIENCE = 30.0


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
        delivery = Delivery(path, opening, hashlib.sha256(uri.encode()).hexdigest()[:16], sink, deadline)
        try:
            ended = delivery.run_or_start_over()
        except (Gone, Refused) as error:
            raise Blocked(f"run {opening['name']!r}: {error}") from error
        if ended:
            files.remove(path)
        return ended
