"""Runs on their way to MLflow: nothing is lost or doubled, whichever request fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.tracking import outbox_folder, upload_all
from tasks.tracking.upload import PARENT_TAG
from tests.memory_mlflow import Killed, MemoryMlflow, StoreError, memory_mlflow
from tests.unit.tracking.conftest import DATABASE, SERVER, WHOLE, described, lose_answer, record, record_a_task


def at(numbers: set[int], fault: Callable[[Callable[[], None]], None]) -> Callable[[int, Callable[[], None]], None]:
    """Return a fault that hits the requests with these numbers."""
    return lambda number, work: fault(work) if number in numbers else work()


def test_everything_arrives_once_and_the_outbox_is_empty_after(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
    record_a_task(tmp_path)
    assert upload_all(outbox, DATABASE) == (2, [])
    assert described(mlflow) == WHOLE
    assert not list(outbox.iterdir())
    requests = len(mlflow.requests)
    assert upload_all(outbox, DATABASE) == (0, [])
    assert len(mlflow.requests) == requests


@pytest.mark.parametrize("uri", [DATABASE, SERVER])
@pytest.mark.parametrize("after", [False, True], ids=["before the work", "after the work"])
def test_an_upload_killed_at_any_request_neither_loses_nor_doubles(tmp_path: Path, uri: str, after: bool) -> None:
    def kill(number: int, work: Callable[[], None]) -> None:
        if number == request and after:
            work()
        if number >= request:
            raise Killed
        work()

    request = 0
    killed = True
    while killed:
        request += 1
        folder = tmp_path / str(request)
        folder.mkdir()
        with memory_mlflow(folder) as mlflow:
            record_a_task(folder)
            mlflow.fault = kill
            try:
                upload_all(outbox_folder(), uri)
                killed = False
            except Killed:
                mlflow.fault = lambda number, work: work()
                assert upload_all(outbox_folder(), uri)[1] == []
            assert described(mlflow) == WHOLE, f"killed at request {request}"
            assert not list(outbox_folder().iterdir())
    assert request > 25


@pytest.mark.parametrize("uri", [DATABASE, SERVER])
def test_an_answer_lost_after_the_work_neither_loses_nor_doubles(tmp_path: Path, uri: str) -> None:
    """A read time-out: the server has created, logged or ended, and its client does not know."""
    request, hit = 0, True
    while hit:
        request += 1
        folder = tmp_path / str(request)
        folder.mkdir()
        with memory_mlflow(folder) as mlflow:
            record_a_task(folder)
            mlflow.fault = at({request}, lose_answer)
            assert upload_all(outbox_folder(), uri) == (2, [])
            assert described(mlflow) == WHOLE, f"lost the answer to request {request}"
            assert len(mlflow.runs) == len(WHOLE)
            hit = len(mlflow.requests) >= request
    assert request > 25


def test_runs_created_after_a_search_found_none_are_kept_once(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
    """A server so slow that it creates each run twice: when the request is repeated, and when it gets to the first one."""
    late: list[Callable[[], None]] = []

    def postpone(number: int, work: Callable[[], None]) -> None:
        create = mlflow.requests[number - 1] == "create run"
        if create and not late:
            late.append(work)
            raise StoreError("Read timed out. (read timeout=10)")
        work()
        if create:
            late.pop()()

    record_a_task(tmp_path)
    mlflow.fault = postpone
    assert upload_all(outbox, DATABASE) == (2, [])
    assert described(mlflow) == WHOLE
    assert len(mlflow.runs) > len(WHOLE)
    assert "RUNNING" not in {run.info.status for run in mlflow.active()}


def test_a_server_that_is_sometimes_slow_receives_every_point(outbox: Path, mlflow: MemoryMlflow) -> None:
    with record("sweep") as run:
        for point in range(40):
            run.child(f"point {point}", {}, {"window": point}, {"bleu": point})
    mlflow.fault = lambda number, work: lose_answer(work) if number % 10 == 0 else work()
    assert upload_all(outbox, SERVER) == (1, [])
    assert {run.info.status for run in mlflow.active()} == {"FINISHED"}
    assert len(mlflow.active()) == len(mlflow.runs) == 41
    assert all(len(run.history) == 1 for run in mlflow.active() if run.parent)


@pytest.mark.parametrize(("uri", "at_once"), [(DATABASE, 1), (SERVER, 4)])
def test_a_server_receives_four_points_at_once_and_a_database_one(
    outbox: Path, mlflow: MemoryMlflow, uri: str, at_once: int
) -> None:
    with record("sweep", live=True) as run:
        run.log_metrics({"points": 20.0})
        run._opening.join()
        for point in range(20):
            run.child(f"point {point}", {}, {"window": point}, {f"m{i}": i for i in range(25)})
    requests = len(mlflow.requests)
    mlflow.together, mlflow.most_inside = threading.Barrier(at_once), 0
    assert upload_all(outbox, uri) == (1, [])
    assert mlflow.most_inside == at_once
    # A point is three requests: create, log, end.
    assert len(mlflow.requests) - requests == 3 * 20 + 8


def test_concurrent_uploads_send_each_run_once(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
    record_a_task(tmp_path)
    uploads = [threading.Thread(target=upload_all, args=(outbox, SERVER)) for _ in "abcd"]
    for thread in uploads:
        thread.start()
    for thread in uploads:
        thread.join()
    upload_all(outbox, SERVER)
    assert described(mlflow) == WHOLE
    assert len(mlflow.runs) == len(WHOLE)


def test_a_replaced_database_receives_the_whole_run_again(outbox: Path, mlflow: MemoryMlflow) -> None:
    with record(live=True) as run:
        run.log_metrics({"loss": 1.0}, 1)
        run._opening.join()
        assert len(mlflow.by_name("run").history) == 1
        mlflow.runs.clear()
        run.log_metrics({"loss": 0.5}, 2)
    assert upload_all(outbox, SERVER) == (1, [])
    assert len(mlflow.by_name("run").history) == 2


def test_a_deleted_run_is_not_restored_and_child_runs_of_users_are_kept(outbox: Path, mlflow: MemoryMlflow) -> None:
    with record(live=True) as run:
        run.log_metrics({"loss": 1.0}, 1)
        run._opening.join()
        mlflow.delete_run(mlflow.by_name("run").info.run_id)
    with record("sweep", live=True) as run:
        run.log_metrics({"points": 1.0})
        run._opening.join()
        for name in ("a note", "another"):
            mlflow.create_run("translation", 0, {PARENT_TAG: mlflow.by_name("sweep").info.run_id}, name)
        run.child("point", {}, {}, {})
    assert upload_all(outbox, SERVER) == (2, [])
    assert sorted(run.info.run_name for run in mlflow.active()) == ["a note", "another", "point", "sweep"]


def test_an_artifact_is_also_kept_with_runs_that_have_ended(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
    sweep = record("sweep")
    sweep.close("FAILED")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "figure.svg").write_text("a frontier", encoding="utf-8")
    for name in ("while it waits", "once it is sent"):
        with record(name) as report:
            report.log_artifact(tmp_path / "figures", name, also_in=[sweep.key, "recorded elsewhere"])
        assert upload_all(outbox, SERVER)[1] == []
    kept = {f"{name}/figures/figure.svg": "a frontier" for name in ("while it waits", "once it is sent")}
    assert mlflow.by_name("sweep").artifacts == kept
    assert mlflow.by_name("sweep").info.status == "FAILED"
    assert list(mlflow.by_name("once it is sent").artifacts) == ["once it is sent/figures/figure.svg"]


def test_an_artifact_for_a_run_that_waits_waits_too(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<h1>", encoding="utf-8")
    sweep = record("sweep")
    with record("report") as report:
        report.log_artifact(tmp_path / "page.html", also_in=[sweep.key])
    sent, (reason,) = upload_all(outbox, SERVER)
    assert sent == 0
    assert "'report'" in reason
    sweep.close()
    assert upload_all(outbox, SERVER) == (2, [])
    assert mlflow.by_name("sweep").artifacts == {"page.html": "<h1>"}
