"""Servers that fail, disappear or refuse, and files that cannot be sent: each run waits or is named; others are sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tasks.tracking import Recorder, tracking_uri, upload_all
from tasks.tracking.client import one_line
from tasks.tracking.outbox import RUN_FILE
from tests.memory_mlflow import MemoryMlflow, StoreError
from tests.unit.tracking.conftest import SERVER, WHOLE, described, record, record_a_task


def test_a_run_without_an_answer_is_given_up_after_a_few_attempts_and_others_are_sent(
    outbox: Path, mlflow: MemoryMlflow
) -> None:
    def refuse_the_first_creations(number: int, work: Callable[[], None]) -> None:
        if mlflow.requests[number - 1] == "create run" and mlflow.requests.count("create run") <= 3:
            raise StoreError("Read timed out. (read timeout=10)")
        work()

    for name in ("one", "two"):
        record(name).close()
    mlflow.fault = refuse_the_first_creations
    sent, (reason,) = upload_all(outbox, SERVER)
    assert (sent, mlflow.connections) == (1, 2)
    assert "'one'" in reason
    assert "Read timed out" in reason
    assert [run.info.run_name for run in mlflow.active()] == ["two"]


def test_a_server_that_becomes_unavailable_receives_no_more_requests(outbox: Path, mlflow: MemoryMlflow) -> None:
    def leave(number: int, work: Callable[[], None]) -> None:
        mlflow.unavailable = True
        raise StoreError("Connection refused")

    for name in ("one", "two", "three"):
        record(name).close()
    mlflow.fault = leave
    sent, waiting = upload_all(outbox, SERVER)
    assert (sent, len(waiting), len(mlflow.requests)) == (0, 3, 3)


def test_sending_ends_when_a_server_loses_its_runs(outbox: Path, mlflow: MemoryMlflow) -> None:
    def forget(number: int, work: Callable[[], None]) -> None:
        work()
        if mlflow.requests[number - 1] == "end":
            mlflow.runs.clear()

    record().close()
    mlflow.fault = forget
    assert len(upload_all(outbox, SERVER)[1]) == 1
    assert mlflow.requests.count("create run") == 3


def test_a_run_that_is_still_written_or_sent_elsewhere_is_skipped(outbox: Path, mlflow: MemoryMlflow) -> None:
    run = record()
    assert upload_all(outbox, SERVER) == (0, [])
    run.close()
    with FileLock(run.folder / "lock"):
        assert upload_all(outbox, SERVER) == (0, [])
    assert mlflow.connections == 0
    assert upload_all(outbox, SERVER) == (1, [])


def test_an_unavailable_server_is_contacted_once_and_the_runs_wait(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
    record_a_task(tmp_path)
    mlflow.unavailable = True
    assert upload_all(outbox, SERVER) == (0, [f"{SERVER} does not answer"] * 2)
    assert mlflow.connections == 1
    mlflow.unavailable = False
    assert upload_all(outbox, SERVER) == (2, [])
    assert described(mlflow) == WHOLE


def test_runs_of_a_deleted_experiment_wait_and_others_are_sent(outbox: Path, mlflow: MemoryMlflow) -> None:
    record("one", "deleted").close()
    record("two").close()
    mlflow.create_experiment("deleted", None, {})
    mlflow.experiments["deleted"].lifecycle_stage = "deleted"
    sent, waiting = upload_all(outbox, SERVER)
    assert (sent, len(waiting)) == (1, 1)
    assert "'one'" in waiting[0]
    assert "restore it" in waiting[0]
    assert [run.info.run_name for run in mlflow.active()] == ["two"]


def test_a_value_that_mlflow_refuses_is_omitted_with_a_warning(
    outbox: Path, mlflow: MemoryMlflow, capsys: pytest.CaptureFixture[str]
) -> None:
    with Recorder("translation", "run", {}, {"rate": 0.1}, flush_seconds=0) as run:
        run.log_metrics({"loss": 1.0, "refused": 2.0, "quality": 3.0})
    capsys.readouterr()
    assert upload_all(outbox, SERVER) == (1, [])
    stored = mlflow.by_name("run")
    assert (stored.data.metrics, stored.data.params) == ({"loss": 1.0, "quality": 3.0}, {"rate": "0.1"})
    assert stored.info.status == "FINISHED"
    (warning,) = capsys.readouterr().err.splitlines()
    assert "refuses refused of run 'run': a bad name" in warning


@pytest.mark.parametrize(
    "line", [b"not json", b"[]", b'{"unknown": 1}', b'{"metrics": [["loss"]]}', b'{"children": [{}]}', b'{"models": [{}]}']
)
def test_a_file_that_cannot_be_read_is_named_and_others_are_sent(outbox: Path, mlflow: MemoryMlflow, line: bytes) -> None:
    run = record("one")
    with (run.folder / RUN_FILE).open("ab") as file:
        file.write(line + b"\n")
    run.close()
    record("two").close()
    sent, (reason,) = upload_all(outbox, SERVER)
    assert sent == 1
    assert str(run.folder) in reason
    assert "repair it or remove its folder" in reason


def test_sending_stops_at_its_deadline(outbox: Path, mlflow: MemoryMlflow) -> None:
    record().close()
    sent, (reason,) = upload_all(outbox, SERVER, time.monotonic() - 1)
    assert sent == 0
    assert "no time left" in reason
    assert not mlflow.requests


def test_messages_and_files_contain_no_password(outbox: Path, mlflow: MemoryMlflow) -> None:
    mlflow.unavailable = True
    record(flush_seconds=300).close()
    assert "secret" in tracking_uri()
    assert not any("secret" in file.read_text(encoding="utf-8") for file in outbox.rglob("*") if file.is_file())
    error = StoreError("no route to http://user:secret@server/api  \n after 1 try")
    assert one_line(error) == "no route to http://server/api after 1 try"
