"""PostgreSQL behind Prefect and MLflow, killed in each stage of a flow whose stages record runs."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking.upload import connect
from tests.held_graph import GRAPH, ONCE, Outcome, at_work, begun, graph, let_go, outcome
from tests.mlflow_server import runs_of
from tests.optional import slow_with
from tests.served import PATIENCE, At, ended, environment, running, send_runs, until
from tests.services import NO_POSTGRES, POSTGRES, Postgres, free_port, mlflow_server, postgres, prefect_server

pytestmark = [*slow_with("prefect", "dvc", "mlflow", "psycopg2"), pytest.mark.skipif(POSTGRES is None, reason=NO_POSTGRES)]

RECORD = """\
import sys
from tasks.tracking import Recorder
with Recorder("toy", sys.argv[1], {}, {}) as run:
    run.log_metrics({"loss": 1.0})
"""


@dataclass
class OnPostgres(At):
    """The servers of Prefect and of MLflow on one database server."""

    database: Postgres


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[OnPostgres]:
    # A busy machine takes long to start a database: the flow asks for more than a minute.
    variables = environment(tmp_path) | {"PREFECT_CLIENT_MAX_RETRIES": "8"}
    with postgres("prefect", "mlflow") as database:
        own = variables | database.variables
        address = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database.url("prefect", "postgresql+asyncpg")}
        with (
            prefect_server(tmp_path, own | address, free_port()) as prefect,
            mlflow_server(tmp_path, database.url("mlflow"), str(tmp_path / "artifacts"), free_port(), own) as mlflow,
        ):
            addresses = {"PREFECT_API_URL": prefect, "MLFLOW_TRACKING_URI": mlflow}
            yield OnPostgres(tmp_path, variables | addresses, prefect, database)


def recording(name: str, stage: dict[str, Any]) -> dict[str, Any]:
    """A stage of the graph that also records a run of its name at its end."""
    return {**stage, "cmd": f"{stage['cmd']}; {sys.executable} record.py {name}"}


def test_a_database_killed_in_each_stage_loses_nothing(servers: OnPostgres, tmp_path: Path, undisturbed: Outcome) -> None:
    """Each stage ends while the database is away."""
    stages = {name: recording(name, stage) for name, stage in GRAPH.items()}
    root, output = graph(tmp_path / "repository", *GRAPH, stages=stages), tmp_path / "output"
    (root / "record.py").write_text(RECORD, encoding="utf-8")
    command = [sys.executable, "-m", "flows.pipeline", "--retries", "0"]
    with running(command, root, servers.environment, output) as process:
        for name in GRAPH:
            until(f"{name} at work", lambda: at_work(root, name) or process.poll() is not None)  # noqa: B023
            assert process.poll() is None, output.read_text()
            run_id = (root / ".cache/flow-run").read_text()
            servers.database.kill()
            let_go(root, name)
            until(f"the end of {name}", lambda: name in ended(root) or process.poll() is not None)  # noqa: B023
            servers.database.start()
        assert process.wait(PATIENCE) == 0, output.read_text()
    assert outcome(root) == undisturbed
    assert begun(root) == ONCE
    assert servers.run(run_id)["state"]["message"] == "4 stages are up to date: 4 ran, 0 cached"
    send_runs(root, servers.environment)
    runs = runs_of(connect(servers.environment["MLFLOW_TRACKING_URI"]), "toy")
    assert {name: run.info.status for name, run in runs.items()} == dict.fromkeys(GRAPH, "FINISHED")
