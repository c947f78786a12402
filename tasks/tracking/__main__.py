"""`python -m tasks.tracking`: sends every record that waits for MLflow."""

from __future__ import annotations

import argparse

from tasks.tracking.shipper import ship_all, tracking_uri
from tasks.tracking.sink import Away, MlflowSink
from tasks.tracking.spool import spool_folder


def main() -> int:
    """Sends what waits and prints one line; 1 if something still waits."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.tracking",
        description="Send every record that waits in the spool (.cache/mlflow-spool, or what DRAFTLINE_SPOOL names) to MLflow"
        " (mlflow.db here, or what MLFLOW_TRACKING_URI names). Exit status 1 if something still waits.",
    )
    parser.add_argument("--create", action="store_true", help="create the SQLite database if it is missing")
    spool, uri = spool_folder(), tracking_uri()
    if parser.parse_args().create:
        try:
            MlflowSink(uri)
        except Away as error:
            raise SystemExit(f"error: MLflow does not open: {error}") from None
    shipment = ship_all(spool, uri)
    reason = f" in {spool} ({shipment.reason})" if shipment.left else ""
    print(f"runs sent to MLflow: {shipment.sent}; still waiting: {shipment.left}{reason}")
    return 1 if shipment.left else 0


if __name__ == "__main__":
    raise SystemExit(main())
