"""MLflow's server on PostgreSQL and an S3 store, as a team runs it, and four writers at once.

`test_database_faults.py` kills the database.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.tracking.upload import KEY_TAG, PARENT_TAG, connect
from tests.mlflow_server import runs_of
from tests.optional import slow_with
from tests.served import PATIENCE, ROOT
from tests.services import NO_POSTGRES, POSTGRES, S3_VARIABLES, free_port, mlflow_server, postgres, s3_store

pytestmark = [*slow_with("mlflow", "psycopg2", "boto3", "moto"), pytest.mark.skipif(POSTGRES is None, reason=NO_POSTGRES)]

POINTS, BUCKET = 8, "mlflow"
WRITERS_AT_ONCE = """
import os, sys
from pathlib import Path
import mlflow.tracking
from tasks.tracking import Recorder
points, patience, *names = sys.argv[1:]
children = []
for name in names:
    child = os.fork()
    if not child:
        os.environ["DRAFTLINE_OUTBOX"] = f"outbox-{name}"  # each writer is a machine of its own
        figure = Path(f"{name}.svg")
        figure.write_text(f"<svg>{name}</svg>", encoding="utf-8")
        about = ("translation", f"sweep {name}", {"kind": "sweep"}, {"writer": name})
        with Recorder(*about, flush_seconds=float(patience)) as sweep:
            for point in range(int(points)):
                sweep.child(f"point {name} {point}", {"kind": "point"}, {"draft_length": point}, {"bleu": 30.0 + point})
            sweep.log_artifact(figure, "figures")
        os._exit(0)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a server as docs/deploy/README.md starts it, which alone has the keys of the store."""
    with postgres("mlflow") as database, s3_store(tmp_path, BUCKET) as store:
        variables = database.variables | S3_VARIABLES | {"MLFLOW_S3_ENDPOINT_URL": store}
        with mlflow_server(tmp_path, database.url("mlflow"), f"s3://{BUCKET}/artifacts", free_port(), variables) as url:
            yield url


def test_four_writers_at_once_lose_no_run_and_double_none(url: str, tmp_path: Path) -> None:
    names = [f"writer-{number}" for number in range(4)]
    command = [sys.executable, "-c", WRITERS_AT_ONCE, str(POINTS), str(PATIENCE), *names]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": url}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    client = connect(url)
    runs = runs_of(client)
    wanted = [f"sweep {name}" for name in names] + [f"point {name} {point}" for name in names for point in range(POINTS)]
    assert sorted(runs) == sorted(wanted)
    assert len({run.data.tags[KEY_TAG] for run in runs.values()}) == len(wanted)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for name in names:
        sweep = runs[f"sweep {name}"]
        assert sweep.data.params == {"writer": name}
        for point in range(POINTS):
            one = runs[f"point {name} {point}"]
            assert one.data.tags[PARENT_TAG] == sweep.info.run_id
            assert (one.data.params, one.data.metrics) == ({"draft_length": str(point)}, {"bleu": 30.0 + point})
        # The client has no key of the store: the server hands the file on.
        figure = client.download_artifacts(sweep.info.run_id, f"figures/{name}.svg")
        assert Path(figure).read_text(encoding="utf-8") == f"<svg>{name}</svg>"
