"""MLflow's server on PostgreSQL and an S3 store, as a team runs it: four writers at once, and a database that is killed."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import Recorder, outbox_folder, upload_all
from tasks.tracking.upload import KEY_TAG, PARENT_TAG, connect
from tests.optional import slow_with
from tests.served import PATIENCE, ROOT
from tests.services import NO_POSTGRES, POSTGRES, S3_VARIABLES, Postgres, free_port, mlflow_server, postgres, s3_store

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


@dataclass
class Team:
    """The services that a team shares."""

    database: Postgres
    store: str
    url: str
    client: Any

    def runs(self) -> list[Any]:
        experiment = self.client.get_experiment_by_name("translation").experiment_id
        return list(self.client.search_runs([experiment], max_results=1000))


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    folder = tmp_path_factory.mktemp("team")
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(postgres("mlflow"))
        store = stack.enter_context(s3_store(folder, BUCKET))
        variables = database.variables | S3_VARIABLES | {"MLFLOW_S3_ENDPOINT_URL": store}
        served = mlflow_server(folder, database.url("mlflow"), f"s3://{BUCKET}/artifacts", free_port(), variables)
        url = stack.enter_context(served)
        yield Team(database, store, url, connect(url))


def test_four_writers_at_once_lose_no_run_and_double_none(team: Team, tmp_path: Path) -> None:
    names = [f"writer-{number}" for number in range(4)]
    command = [sys.executable, "-c", WRITERS_AT_ONCE, str(POINTS), str(PATIENCE), *names]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": team.url}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    runs = team.runs()
    wanted = [f"sweep {name}" for name in names] + [f"point {name} {point}" for name in names for point in range(POINTS)]
    assert sorted(run.info.run_name for run in runs) == sorted(wanted)
    assert len({run.data.tags[KEY_TAG] for run in runs}) == len(wanted)
    assert {run.info.status for run in runs} == {"FINISHED"}
    by_name = {run.info.run_name: run for run in runs}
    for name in names:
        sweep = by_name[f"sweep {name}"]
        assert sweep.data.params == {"writer": name}
        for point in range(POINTS):
            one = by_name[f"point {name} {point}"]
            assert one.data.tags[PARENT_TAG] == sweep.info.run_id
            assert (one.data.params, one.data.metrics) == ({"draft_length": str(point)}, {"bleu": 30.0 + point})
        # The client has no key of the store: the server hands the file on.
        figure = team.client.download_artifacts(sweep.info.run_id, f"figures/{name}.svg")
        assert Path(figure).read_text(encoding="utf-8") == f"<svg>{name}</svg>"


def test_artifacts_lie_in_the_s3_store(team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    record(team, tmp_path, monkeypatch, "train")
    assert upload_all(outbox_folder(), team.url) == (1, [])
    for name, value in S3_VARIABLES.items():
        monkeypatch.setenv(name, value)
    listed = boto3.client("s3", endpoint_url=team.store).list_objects_v2(Bucket=BUCKET)["Contents"]
    assert [entry["Size"] for entry in listed if entry["Key"].endswith("/train.txt")] == [len("the log of train")]


def test_a_database_killed_between_two_runs_costs_no_record(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks.tracking.upload._PAUSE_SECONDS", 0.01)
    record(team, tmp_path, monkeypatch, "before")
    assert upload_all(outbox_folder(), team.url) == (1, [])
    team.database.kill()
    try:
        record(team, tmp_path, monkeypatch, "meanwhile", flush_seconds=PATIENCE)
        assert "wait for MLflow: 1" in capsys.readouterr().err
    finally:
        team.database.start()
    assert upload_all(outbox_folder(), team.url) == (1, [])
    names = [run.info.run_name for run in team.runs() if run.info.run_name in ("before", "meanwhile")]
    assert sorted(names) == ["before", "meanwhile"]


def record(team: Team, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, flush_seconds: float = 0.0) -> None:
    """Record a run with a file; it is only sent here if `flush_seconds` says so."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", team.url)
    monkeypatch.setenv("DRAFTLINE_OUTBOX", str(folder / "outbox"))
    file = folder / f"{name}.txt"
    file.write_text(f"the log of {name}", encoding="utf-8")
    with Recorder("translation", name, {}, {}, flush_seconds=flush_seconds) as run:
        run.log_metrics({"loss": 1.0})
        run.log_artifact(file)
