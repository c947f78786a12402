"""Runs on their way to MLflow: nothing is lost or doubled, whichever request fails; what cannot be sent is named and waits."""

import contextlib
import errno
import functools
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tasks.files import sealed
from tasks.tracking import DataSet, Recorder, tracking_uri, upload, upload_all
from tasks.tracking.upload import KEY_TAG, PARENT_TAG, RUN_FILE, Unavailable
from tests.local_mlflow import FaultyClient, Killed, local_mlflow, run_of, runs_of, text_of
from tests.unit.tracking.conftest import record


def record_a_task(folder: Path) -> None:
    """Two runs with values of every kind; `figure.svg` changes after it was recorded."""
    figure = folder / "figure.svg"
    with Recorder("translation", "train", {"kind": "training"}, {"rate": 0.1, "none": None}, flush_seconds=0) as run:
        run.log_metrics({"loss": 1.0, "rate": None}, step=1)
        run.log_metrics({"loss": 0.5}, step=2)
        figure.write_text("as recorded", encoding="utf-8")
        run.log_artifact(figure, "figures")
        figure.write_text("later", encoding="utf-8")
        run.log_inputs([DataSet("data/text/train.jsonl", "abc.dir", "data/text", 90, 2, "training")])
        run.describe("the **verdict**")
        run.log_table("frontier", {"speedup": [1.0, 2.0], "method": ["bild", "bild"]})
    with record("sweep") as run:
        for window in (1, 2):
            run.child(f"window {window}", {"kind": "point"}, {"window": window}, {"bleu": 30 + window})


def check_whole(mlflow: FaultyClient) -> None:
    """Check that MLflow holds the task once."""
    found = {run.info.run_name: run for run in runs_of(mlflow)}
    assert len(found) == len(runs_of(mlflow)) == 4
    assert {run.info.status for run in found.values()} == {"FINISHED"}
    train = found["train"]
    history = mlflow.client.get_metric_history(train.info.run_id, "loss")
    assert sorted((one.step, one.value) for one in history) == [(1, 1.0), (2, 0.5)]
    assert (train.data.params, train.data.tags["kind"]) == ({"rate": "0.1"}, "training")
    assert train.data.tags["mlflow.note.content"] == "the **verdict**"
    assert text_of(mlflow, "train", "figures/figure.svg") == "as recorded"
    table = json.loads(text_of(mlflow, "train", "frontier.json"))
    assert (table["columns"], table["data"]) == (["speedup", "method"], [[1.0, "bild"], [2.0, "bild"]])
    assert json.loads(train.data.tags["mlflow.loggedArtifacts"]) == [{"path": "frontier.json", "type": "table"}]
    (data,) = train.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest, data.tags[0].value) == ("data/text/train.jsonl", "abc.dir", "training")
    for window in (1, 2):
        child = found[f"window {window}"]
        assert child.data.tags[PARENT_TAG] == found["sweep"].info.run_id
        assert (child.data.metrics, child.data.params) == ({"bleu": 30.0 + window}, {"window": str(window)})


def lose_answer(request: Callable[[], Any]) -> None:
    request()
    raise ConnectionError("Read timed out. (read timeout=10)")


def test_everything_arrives_once_and_the_outbox_is_empty_after(outbox: Path, mlflow: FaultyClient, tmp_path: Path) -> None:
    record_a_task(tmp_path)
    assert upload_all(outbox, tracking_uri()) == (2, [])
    check_whole(mlflow)
    assert not list(outbox.iterdir())
    requests = len(mlflow.requests)
    assert upload_all(outbox, tracking_uri()) == (0, [])
    assert len(mlflow.requests) == requests


def test_a_table_whose_upload_ended_before_its_tag_is_listed(
    outbox: Path, mlflow: FaultyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_a_task(tmp_path)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(mlflow.client, "set_tag", killed)  # which `log_table` calls last
        upload_all(outbox, tracking_uri())
    assert upload_all(outbox, tracking_uri()) == (2, [])
    check_whole(mlflow)


@pytest.mark.parametrize("name", ["figure.svg", "frontier.json"])
def test_a_damaged_copy_is_named_and_waits_for_its_bytes(outbox: Path, mlflow: FaultyClient, tmp_path: Path, name: str) -> None:
    record_a_task(tmp_path)
    (file,) = outbox.glob(f"*/files/*/{name}")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    sent, (reason,) = upload_all(outbox, tracking_uri())
    assert (sent, name in reason, "is not as recorded" in reason) == (1, True, True)
    file.write_bytes(whole)
    assert upload_all(outbox, tracking_uri()) == (1, [])
    check_whole(mlflow)


def _failing_write(
    mlflow: FaultyClient,
    writes: Iterator[int],
    number: int,
    fail: Callable[[Callable[[], Any]], Any],
    request: int,
    work: Callable[[], Any],
) -> Any:
    """Do the work of a request; of the write with this number what `fail` makes of it."""
    reads = mlflow.requests[request - 1].startswith(("get_", "list_", "search_"))
    return work() if reads or next(writes) != number else fail(work)


def every_second_write(tmp_path: Path, first: int, fail: Callable[[Callable[[], Any]], Any]) -> Iterator[Path]:
    """The outbox of a recorded task for every second request that changes MLflow, which fails after its work.

    What fails before its work leaves MLflow as it was after the last change. Afterwards MLflow has to hold the task once.
    """
    for number in itertools.count(first, 2):
        folder, writes = tmp_path / str(number), itertools.count(1)
        with local_mlflow(folder) as mlflow:
            record_a_task(folder)
            mlflow.fault = functools.partial(_failing_write, mlflow, writes, number, fail)
            yield folder / "outbox"
            check_whole(mlflow)
            if next(writes) <= number + 2:
                break
    assert number > 12


def test_an_upload_killed_after_a_write_neither_loses_nor_doubles(tmp_path: Path) -> None:
    def kill(work: Callable[[], Any]) -> None:
        work()
        raise Killed

    for outbox in every_second_write(tmp_path, 1, kill):
        with contextlib.suppress(Killed):
            upload_all(outbox, tracking_uri())
        assert upload_all(outbox, tracking_uri())[1] == []


def test_an_answer_lost_after_the_work_neither_loses_nor_doubles(tmp_path: Path) -> None:
    """A read time-out: the server has created, logged or ended, and its client does not know."""
    for outbox in every_second_write(tmp_path, 2, lose_answer):
        assert upload_all(outbox, tracking_uri()) == (2, [])


def test_of_runs_that_a_slow_server_made_twice_one_stays(outbox: Path, mlflow: FaultyClient) -> None:
    run = record()
    run.close()
    experiment = mlflow.client.create_experiment("translation")
    for _ in range(2):
        mlflow.client.create_run(experiment, tags={KEY_TAG: run.key}, run_name="run")
    assert upload_all(outbox, tracking_uri()) == (1, [])
    assert run_of(mlflow, "run").info.status == "FINISHED"


@pytest.mark.parametrize(("uri", "at_once"), [("sqlite:///mlflow.db", 1), ("http://127.0.0.1:5000", 4)])
def test_a_server_takes_four_points_at_once_a_database_one(outbox: Path, mlflow: FaultyClient, uri: str, at_once: int) -> None:
    with record("sweep") as run:
        for point in range(8):
            run.child(f"point {point}", {}, {"window": point}, {f"m{i}": i for i in range(25)})
    inside, most, lock = 0, 0, threading.Lock()

    def count(number: int, request: Callable[[], Any]) -> Any:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.05)
        try:
            with lock:
                return request()
        finally:
            inside -= 1

    mlflow.fault = count
    assert upload_all(outbox, uri) == (1, [])
    assert most == at_once
    assert len(runs_of(mlflow)) == 9


def test_concurrent_uploads_send_each_run_once(outbox: Path, mlflow: FaultyClient, tmp_path: Path) -> None:
    record_a_task(tmp_path)
    uploads = [threading.Thread(target=upload_all, args=(outbox, tracking_uri())) for _ in "abc"]
    for thread in uploads:
        thread.start()
    for thread in uploads:
        thread.join()
    upload_all(outbox, tracking_uri())
    check_whole(mlflow)


def test_a_deleted_run_is_not_restored_and_child_runs_of_users_are_kept(outbox: Path, mlflow: FaultyClient) -> None:
    with record(live=True) as run:
        run.log_metrics({"loss": 1.0}, 1)
        run._opening.join()
        mlflow.client.delete_run(run_of(mlflow, "run").info.run_id)
    with record("sweep", live=True) as run:
        run.log_metrics({"points": 1.0})
        run._opening.join()
        sweep = run_of(mlflow, "sweep").info
        mlflow.client.create_run(sweep.experiment_id, tags={PARENT_TAG: sweep.run_id}, run_name="a note")
        run.child("point", {}, {}, {})
    assert upload_all(outbox, tracking_uri()) == (2, [])
    assert sorted(run.info.run_name for run in runs_of(mlflow)) == ["a note", "point", "sweep"]


def test_a_run_without_an_answer_waits_and_others_are_sent(outbox: Path, mlflow: FaultyClient) -> None:
    for name in ("one", "two"):
        record(name).close()

    def refuse(number: int, request: Callable[[], Any]) -> Any:
        if mlflow.requests.count("create_run") <= 3 and mlflow.requests[number - 1] == "create_run":
            raise ConnectionError("no route to http://user:secret@server/api  \n after 1 try")
        return request()

    mlflow.fault = refuse
    sent, (reason,) = upload_all(outbox, tracking_uri())
    assert (sent, reason) == (1, "run 'one': no route to http://server/api after 1 try")
    assert [run.info.run_name for run in runs_of(mlflow)] == ["two"]


def test_an_unavailable_server_is_contacted_once_and_the_runs_wait(
    outbox: Path, mlflow: FaultyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_a_task(tmp_path)
    contacts = list[str]()

    def away(uri: str) -> FaultyClient:
        contacts.append(uri)
        raise Unavailable("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(upload, "connect", away)
        assert upload_all(outbox, tracking_uri()) == (0, ["it does not answer"] * 2)
    assert len(contacts) == 1
    assert upload_all(outbox, tracking_uri()) == (2, [])
    check_whole(mlflow)


def test_a_run_that_is_still_written_or_sent_elsewhere_is_skipped(outbox: Path, mlflow: FaultyClient) -> None:
    run = record()
    assert upload_all(outbox, tracking_uri()) == (0, [])
    run.close()
    with FileLock(run.folder / "lock"):
        assert upload_all(outbox, tracking_uri()) == (0, [])
    assert mlflow.requests == []
    assert upload_all(outbox, tracking_uri()) == (1, [])


def test_runs_of_a_deleted_experiment_wait_and_others_are_sent(outbox: Path, mlflow: FaultyClient) -> None:
    record("one", "deleted").close()
    record("two").close()
    mlflow.client.delete_experiment(mlflow.client.create_experiment("deleted"))
    sent, (reason,) = upload_all(outbox, tracking_uri())
    assert sent == 1
    assert "'one'" in reason and "restore it" in reason
    assert [run.info.run_name for run in runs_of(mlflow)] == ["two"]


CHANGED = sealed('{"params": {"steps": "700"}}').replace("7", "9").encode()


@pytest.mark.parametrize("line", [b"not json", b"[]", b'{"unknown": {"a": 1}}', CHANGED])
def test_a_file_that_cannot_be_read_is_named_and_others_are_sent(outbox: Path, mlflow: FaultyClient, line: bytes) -> None:
    run = record("one")
    with (run.folder / RUN_FILE).open("ab") as file:
        file.write(line + b"\n")
    run.close()
    record("two").close()
    sent, (reason,) = upload_all(outbox, tracking_uri())
    assert sent == 1
    assert str(run.folder) in reason and "repair it or remove its folder" in reason


def test_an_outbox_that_nobody_may_write_is_named(outbox: Path, mlflow: FaultyClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object, **__: object) -> FileLock:
        raise OSError(errno.EROFS, "Read-only file system", "lock")

    record("one").close()
    monkeypatch.setattr(upload, "FileLock", closed)
    assert upload_all(outbox, tracking_uri()) == (0, ["[Errno 30] Read-only file system: 'lock'"])


@pytest.mark.parametrize("parts", [True, False])
def test_a_folder_of_a_run_without_its_file_is_named(outbox: Path, mlflow: FaultyClient, parts: bool, tmp_path: Path) -> None:
    run = record("one")
    (tmp_path / "card").write_text("text", encoding="utf-8")
    if parts:
        run.log_artifact(tmp_path / "card")
    run.close()
    (run.folder / RUN_FILE).unlink()
    record("two").close()
    sent, (reason,) = upload_all(outbox, tracking_uri())
    assert sent == 1
    assert f"{run.folder / RUN_FILE} is missing" in reason


def test_sending_stops_at_its_deadline(outbox: Path, mlflow: FaultyClient) -> None:
    record().close()
    assert upload_all(outbox, tracking_uri(), time.monotonic() - 1) == (0, ["no time left for sending"])
    assert not mlflow.requests
