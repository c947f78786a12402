"""Experiment tracking: a stage writes each run to a folder of its own, and sends what MLflow does not hold yet when it ends.

    recorder.py  what a stage uses, and the files        upload.py       sends them through MLflow's client
    registry.py  registered pairs                        served_pair.py  the code that a registered pair runs

No stage reads from MLflow, needs it, or sends anything while it times something. What could not be sent is sent when the next
run ends, or by `python -m tasks.tracking`.
"""

from tasks.tracking.recorder import DataSet, Recorder, RegisteredModel, model_name, outbox_folder, tracking_uri
from tasks.tracking.upload import upload_all

__all__ = ["DataSet", "Recorder", "RegisteredModel", "model_name", "outbox_folder", "tracking_uri", "upload_all"]
