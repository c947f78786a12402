"""Experiment tracking: every run is written to a spool on disk and sent to MLflow from there.

A stage talks only to a `Recorder`, which appends lines to a file; a shipper sends the lines. So MLflow is written to and
never read back by a stage, nothing of it runs while something is timed, and when it is away the work goes on and the record is
sent later: by the next stage that closes a recorder, or by `python -m tasks.tracking`.

    spool.py     the file format, locks, what was sent     recorder.py  what a stage uses
    shipper.py   sends what waits, each line once          follower.py  sends beside the work, pauses while something is timed
    delivery.py  one file on its way                       sink.py      the only code that imports mlflow
    lineage.py   where a run came from, as tags            views.py     what an experiment's page offers under Views
"""

from __future__ import annotations

from tasks.tracking.lineage import lineage
from tasks.tracking.recorder import Recorder
from tasks.tracking.shipper import Shipment, ship, ship_all, tracking_uri
from tasks.tracking.spool import spool_folder

__all__ = ["Recorder", "Shipment", "lineage", "ship", "ship_all", "spool_folder", "tracking_uri"]
