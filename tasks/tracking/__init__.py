"""Experiment tracking: a stage writes each run to a file, and what MLflow does not hold yet is sent from there.

    recorder.py  what a stage uses       outbox.py  the files
    contents.py  what a run holds beside values: data sets, tables, a description, trained models
    upload.py    sends what is missing   client.py  opens MLflow       views.py  what an experiment's page offers under Views
    bulk.py      writes the points of a sweep into a database at once
    registration.py  makes a pair a version of a registered model
    champion.py      reads the registry for `tasks.promote` alone, and moves the alias of the champion
    model_files.py   the files of such a model                         served_pair.py  the code that it runs

No stage reads from MLflow, needs it, or sends anything while it times something. What could not be sent is sent when the next
run ends, or by `python -m tasks.tracking`.
"""

from tasks.tracking.client import tracking_uri
from tasks.tracking.outbox import DataSet, RegisteredModel, outbox_folder
from tasks.tracking.recorder import Recorder
from tasks.tracking.registration import model_name
from tasks.tracking.upload import upload_all

__all__ = ["DataSet", "Recorder", "RegisteredModel", "model_name", "outbox_folder", "tracking_uri", "upload_all"]
