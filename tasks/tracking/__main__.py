"""`python -m tasks.tracking`: sends every run that waits for MLflow, and notes where the artifacts of a moved folder are."""

from __future__ import annotations

import contextlib
import sqlite3

from tasks.console import add_json, answer, command_parser
from tasks.locks import host_lock
from tasks.tracking.recorder import outbox_folder, tracking_uri
from tasks.tracking.upload import RUN_FILE, follow_move, upload_all


def main() -> int:
    """Send what waits, as soon as nothing is timed, and print one line; return 1 if something still waits."""
    route = "the outbox (.cache/mlflow-outbox, or DRAFTLINE_OUTBOX) to MLflow (mlflow.db here, or MLFLOW_TRACKING_URI)"
    description = f"Send every run that waits in {route}. Exit status 1 if a run still waits."
    parser = command_parser(description)
    add_json(parser)
    arguments = parser.parse_args()
    outbox, uri = outbox_folder(), tracking_uri()
    with contextlib.suppress(sqlite3.Error):  # which an upload names
        follow_move(uri)
    with host_lock() if any(outbox.glob(f"*/{RUN_FILE}")) else contextlib.nullcontext():
        sent, waiting = upload_all(outbox, uri)
    said = f"runs sent to MLflow: {sent}; still waiting: {len(waiting)}" + (f" in {outbox} ({waiting[0]})" if waiting else "")
    answer(arguments, said, sent=sent, waiting=list(map(str, waiting)))
    return 1 if waiting else 0


if __name__ == "__main__":
    raise SystemExit(main())
