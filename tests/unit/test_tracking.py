"""Runs on their way to MLflow, which a store in memory stands for: nothing is lost or doubled; mlflow is never imported."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tasks.locks import timing_lock
from tasks.tracking import Recorder, outbox_folder, tracking_uri, upload_all
from tasks.tracking import __main__ as tracking_command
from tasks.tracking.client import one_line
from tasks.tracking.outbox import RUN_FILE, read
from tasks.tracking.upload import PARENT_TAG
from tests.memory_mlflow import Killed, MemoryMlflow, StoreError, memory_mlflow

ROOT = Path(__file__).parents[2]
SERVER = "http://127.0.0.1:5000"
DATABASE = "sqlite:///mlflow.db"
KILLED_WRITER = """
import os, signal, sys
from tasks.tracking import Recorder
run = Recorder("translation", "killed", {}, {})
run.log_metrics({"loss": 2.0}, step=1)
assert "mlflow" not in sys.modules
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def mlflow(tmp_path: Path) -> Iterator[MemoryMlflow]:
    with memory_mlflow(tmp_path) as store:
        yield store


@pytest.fixture
def outbox(mlflow: MemoryMlflow, tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def record(name: str = "run", experiment: str = "translation", **options: Any) -> Recorder:
    return Recorder(experiment, name, {}, {}, **{"flush_seconds": 0, **options})


def record_a_task(folder: Path) -> None:
    """Two runs with values of every kind; `figure.svg` changes after it was recorded."""
    figure = folder / "figure.svg"
    with Recorder("translation", "train", {"kind": "training"}, {"rate": 0.1, "none": None}, flush_seconds=0) as run:
        run.log_metrics({"loss": 1.0, "rate": None}, step=1)
        run.log_metrics({"loss": 0.5}, step=2)
        figure.write_text("as recorded", encoding="utf-8")
        run.log_artifact(figure, "figures")
        figure.write_text("later", encoding="utf-8")
    with record("sweep") as run:
        for window in (1, 2, 3):
            run.child(f"window {window}", {"kind": "point"}, {"window": window}, {"bleu": 30 + window})


def described(mlflow: MemoryMlflow) -> list[tuple[Any, ...]]:
    """Return the active runs without their ids."""
    return sorted(
        (
            run.info.run_name,
            run.info.status,
            mlflow.runs[run.parent].info.run_name if run.parent else "",
            run.data.tags.get("kind"),
            sorted((metric.key, metric.step, metric.value) for metric in run.history),
            run.data.params,
            run.artifacts,
        )
        for run in mlflow.active()
    )


WHOLE = [
    ("sweep", "FINISHED", "", None, [], {}, {}),
    (
        "train",
        "FINISHED",
        "",
        "training",
        [("loss", 1, 1.0), ("loss", 2, 0.5)],
        {"rate": "0.1"},
        {"figures/figure.svg": "as recorded"},
    ),
    *(
        (f"window {window}", "FINISHED", "sweep", "point", [("bleu", 0, 30.0 + window)], {"window": str(window)}, {})
        for window in (1, 2, 3)
    ),
]


def at(numbers: set[int], fault: Callable[[Callable[[], None]], None]) -> Callable[[int, Callable[[], None]], None]:
    """Return a fault that strikes the requests with these numbers."""
    return lambda number, work: fault(work) if number in numbers else work()


def lose_answer(work: Callable[[], None]) -> None:
    work()
    raise StoreError("Read timed out. (read timeout=10)")


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
    request, struck = 0, True
    while struck:
        request += 1
        folder = tmp_path / str(request)
        folder.mkdir()
        with memory_mlflow(folder) as mlflow:
            record_a_task(folder)
            mlflow.fault = at({request}, lose_answer)
            assert upload_all(outbox_folder(), uri) == (2, [])
            assert described(mlflow) == WHOLE, f"lost the answer to request {request}"
            assert len(mlflow.runs) == len(WHOLE)
            struck = len(mlflow.requests) >= request
    assert request > 25


def test_runs_created_after_they_were_looked_for_in_vain_are_kept_once(
    outbox: Path, mlflow: MemoryMlflow, tmp_path: Path
) -> None:
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


def test_a_server_that_is_slow_now_and_then_gets_every_point(outbox: Path, mlflow: MemoryMlflow) -> None:
    with record("sweep") as run:
        for point in range(40):
            run.child(f"point {point}", {}, {"window": point}, {"bleu": point})
    mlflow.fault = lambda number, work: lose_answer(work) if number % 10 == 0 else work()
    assert upload_all(outbox, SERVER) == (1, [])
    assert {run.info.status for run in mlflow.active()} == {"FINISHED"}
    assert len(mlflow.active()) == len(mlflow.runs) == 41
    assert all(len(run.history) == 1 for run in mlflow.active() if run.parent)


def test_a_run_that_gets_no_answer_is_given_up_after_a_few_times_and_lets_others_pass(
    outbox: Path, mlflow: MemoryMlflow
) -> None:
    def never_create_the_first(number: int, work: Callable[[], None]) -> None:
        if mlflow.requests[number - 1] == "create run" and mlflow.requests.count("create run") <= 3:
            raise StoreError("Read timed out. (read timeout=10)")
        work()

    for name in ("one", "two"):
        record(name).close()
    mlflow.fault = never_create_the_first
    sent, (reason,) = upload_all(outbox, SERVER)
    assert (sent, mlflow.connections) == (1, 2)
    assert "'one'" in reason
    assert "Read timed out" in reason
    assert [run.info.run_name for run in mlflow.active()] == ["two"]


def test_a_server_that_goes_while_runs_are_sent_is_asked_no_more(outbox: Path, mlflow: MemoryMlflow) -> None:
    def leave(number: int, work: Callable[[], None]) -> None:
        mlflow.unavailable = True
        raise StoreError("Connection refused")

    for name in ("one", "two", "three"):
        record(name).close()
    mlflow.fault = leave
    sent, waiting = upload_all(outbox, SERVER)
    assert (sent, len(waiting), len(mlflow.requests)) == (0, 3, 3)


def test_a_server_that_forgets_what_it_is_sent_is_given_up(outbox: Path, mlflow: MemoryMlflow) -> None:
    def forget(number: int, work: Callable[[], None]) -> None:
        work()
        if mlflow.requests[number - 1] == "end":
            mlflow.runs.clear()

    record().close()
    mlflow.fault = forget
    assert len(upload_all(outbox, SERVER)[1]) == 1
    assert mlflow.requests.count("create run") == 3


@pytest.mark.parametrize(("uri", "at_once"), [(DATABASE, 1), (SERVER, 4)])
def test_a_server_is_sent_four_points_at_once_and_a_database_one(
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


def test_uploads_side_by_side_send_each_run_once(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
    record_a_task(tmp_path)
    uploads = [threading.Thread(target=upload_all, args=(outbox, SERVER)) for _ in "abcd"]
    for thread in uploads:
        thread.start()
    for thread in uploads:
        thread.join()
    upload_all(outbox, SERVER)
    assert described(mlflow) == WHOLE
    assert len(mlflow.runs) == len(WHOLE)


def test_a_run_that_is_still_written_or_sent_elsewhere_is_left_alone(outbox: Path, mlflow: MemoryMlflow) -> None:
    run = record()
    assert upload_all(outbox, SERVER) == (0, [])
    run.close()
    with FileLock(run.folder / "lock"):
        assert upload_all(outbox, SERVER) == (0, [])
    assert mlflow.connections == 0
    assert upload_all(outbox, SERVER) == (1, [])


def test_while_mlflow_is_unavailable_it_is_asked_once_and_the_runs_wait(
    outbox: Path, mlflow: MemoryMlflow, tmp_path: Path
) -> None:
    record_a_task(tmp_path)
    mlflow.unavailable = True
    assert upload_all(outbox, SERVER) == (0, [f"{SERVER} does not answer"] * 2)
    assert mlflow.connections == 1
    mlflow.unavailable = False
    assert upload_all(outbox, SERVER) == (2, [])
    assert described(mlflow) == WHOLE


def test_a_deleted_experiment_keeps_its_runs_waiting_and_lets_others_pass(outbox: Path, mlflow: MemoryMlflow) -> None:
    record("one", "deleted").close()
    record("two").close()
    mlflow.create_experiment("deleted", None, {})
    mlflow.experiments["deleted"].lifecycle_stage = "deleted"
    sent, waiting = upload_all(outbox, SERVER)
    assert (sent, len(waiting)) == (1, 1)
    assert "'one'" in waiting[0]
    assert "restore it" in waiting[0]
    assert [run.info.run_name for run in mlflow.active()] == ["two"]


def test_a_value_that_mlflow_refuses_is_left_out_with_a_warning(
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


def test_a_run_whose_writer_was_killed_ends_as_killed(outbox: Path, mlflow: MemoryMlflow) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED_WRITER], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    (file,) = outbox.glob(f"*/{RUN_FILE}")
    with file.open("ab") as lines:
        lines.write(b'{"metrics": [["lo')
    assert upload_all(outbox, SERVER) == (1, [])
    run = mlflow.by_name("killed")
    assert (run.info.status, {metric.value for metric in run.history}) == ("KILLED", {2.0})
    assert run.info.end_time >= run.info.start_time
    assert not list(outbox.iterdir())


@pytest.mark.parametrize("line", [b"not json", b"[]", b'{"unknown": 1}', b'{"metrics": [["loss"]]}', b'{"children": [{}]}'])
def test_a_file_that_cannot_be_read_is_named_and_lets_others_pass(outbox: Path, mlflow: MemoryMlflow, line: bytes) -> None:
    run = record("one")
    with (run.folder / RUN_FILE).open("ab") as file:
        file.write(line + b"\n")
    run.close()
    record("two").close()
    sent, (reason,) = upload_all(outbox, SERVER)
    assert sent == 1
    assert str(run.folder) in reason
    assert "repair it or remove its folder" in reason


def test_a_replaced_database_gets_the_whole_run_again(outbox: Path, mlflow: MemoryMlflow) -> None:
    with record(live=True) as run:
        run.log_metrics({"loss": 1.0}, 1)
        run._opening.join()
        assert len(mlflow.by_name("run").history) == 1
        mlflow.runs.clear()
        run.log_metrics({"loss": 0.5}, 2)
    assert upload_all(outbox, SERVER) == (1, [])
    assert len(mlflow.by_name("run").history) == 2


def test_a_run_that_somebody_deleted_stays_deleted_and_their_own_child_runs_stay(outbox: Path, mlflow: MemoryMlflow) -> None:
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


def test_sending_stops_at_its_deadline(outbox: Path, mlflow: MemoryMlflow) -> None:
    record().close()
    sent, (reason,) = upload_all(outbox, SERVER, time.monotonic() - 1)
    assert sent == 0
    assert "no time left" in reason
    assert not mlflow.requests


def test_a_file_can_be_kept_with_runs_that_have_ended_as_well(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
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


def test_a_file_for_a_run_that_waits_itself_waits_too(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
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


def test_of_a_metric_the_last_value_at_a_step_counts_and_of_a_child_the_last_with_its_name(outbox: Path) -> None:
    with record() as run:
        run.log_metrics({"rate": 1.0, "p(accept)": 0.5})
        run.log_metrics({"rate": 2.0})
        for bleu in (1.0, 2.0):
            run.child("point", {"a=b": "c" * 9000}, {"d" * 10: "e" * 9000}, {"bleu": bleu})
    found = read(run.folder)
    assert [metric[:3] for metric in found.metrics] == [("rate", 2.0, 0), ("p_accept_", 0.5, 0)]
    (child,) = found.children
    assert (child.tags, child.params) == ({"a_b": "c" * 6000}, {"d" * 10: "e" * 6000})
    assert list(child.metrics[0])[:2] == ["bleu", 2.0]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(2), "FAILED"),
        (SystemExit(0), "FINISHED"),
    ],
)
def test_a_run_ends_as_the_work_ended(
    outbox: Path, error: BaseException, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)), record() as run:
        raise error
    assert read(run.folder).status == status
    (warning,) = capsys.readouterr().err.splitlines()
    assert "wait for MLflow: 1" in warning
    assert "python -m tasks.tracking" in warning


def test_nothing_is_sent_before_a_run_ends_unless_it_is_live(outbox: Path, mlflow: MemoryMlflow) -> None:
    threads = threading.active_count()
    with record("sweep", flush_seconds=20) as run:
        run.log_metrics({"points": 1.0})
        run.child("point", {}, {}, {"bleu": 30.0})
        assert (mlflow.connections, threading.active_count()) == (0, threads)
    assert {run.info.status for run in mlflow.active()} == {"FINISHED"}


def test_a_live_run_shows_its_metrics_and_what_was_lost_on_the_way_arrives_once_at_its_end(
    outbox: Path, mlflow: MemoryMlflow
) -> None:
    def fault(number: int, work: Callable[[], None]) -> None:
        if mlflow.requests[number - 1] != "log later":
            work()
        elif mlflow.requests.count("log later") == 1:
            raise StoreError("the server restarts")
        else:
            lose_answer(work)

    with record("train", live=True, flush_seconds=20) as run:
        run.log_metrics({"loss": 4.0}, 0)
        run._opening.join()
        mlflow.fault = fault
        for step in (1, 2):
            run.log_metrics({"loss": 4.0 - step}, step)
        live = mlflow.by_name("train")
        assert (live.info.status, sorted(metric.step for metric in live.history)) == ("RUNNING", [0, 2])
    (train,) = mlflow.runs.values()
    assert (train.info.status, sorted(metric.step for metric in train.history)) == ("FINISHED", [0, 1, 2])
    assert sum(kind == "log" for kind in mlflow.requests) == 2


def test_a_server_that_hangs_holds_nobody_up(outbox: Path, mlflow: MemoryMlflow, capsys: pytest.CaptureFixture[str]) -> None:
    released = threading.Event()
    mlflow.fault = lambda number, work: work() if released.wait(60) else None
    try:
        start = time.monotonic()
        with record("train", live=True, flush_seconds=0.3) as run:
            for step in range(300):
                run.log_metrics({"loss": 1.0}, step)
        assert time.monotonic() - start < 20
        assert "wait for MLflow: 1 (not sent within 0 s)" in capsys.readouterr().err
        assert len(read(run.folder).metrics) == 300
        # Another process does not create the run while this one might.
        assert upload_all(outbox, SERVER) == (0, [])
    finally:
        released.set()


def test_no_message_and_no_file_holds_a_password(outbox: Path, mlflow: MemoryMlflow) -> None:
    mlflow.unavailable = True
    record(flush_seconds=20).close()
    assert "secret" in tracking_uri()
    assert not any("secret" in file.read_text(encoding="utf-8") for file in outbox.rglob("*") if file.is_file())
    error = StoreError("no route to http://user:secret@server/api  \n after 1 try")
    assert one_line(error) == "no route to http://server/api after 1 try"


def test_the_command_sends_nothing_where_nothing_waits(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tasks.tracking"],
        cwd=ROOT,
        env={"DRAFTLINE_OUTBOX": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs sent to MLflow: 0; still waiting: 0\n", "")


def test_the_command_sends_nothing_while_something_is_timed(
    outbox: Path, mlflow: MemoryMlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["tracking"])
    record(flush_seconds=0).close()
    command = threading.Thread(target=tracking_command.main)
    with timing_lock("cpu"):
        command.start()
        command.join(timeout=0.5)
        assert command.is_alive() and mlflow.connections == 0
    command.join(timeout=30)
    assert [run.info.status for run in mlflow.active()] == ["FINISHED"]


def test_where_things_are_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTLINE_OUTBOX", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert outbox_folder(tmp_path) == tmp_path / ".cache" / "mlflow-outbox"
    assert tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("DRAFTLINE_OUTBOX", "/elsewhere")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", SERVER)
    assert outbox_folder(tmp_path) == Path("/elsewhere")
    assert tracking_uri(tmp_path) == SERVER


def test_nothing_here_imports_mlflow() -> None:
    code = (
        "import sys, tasks.tracking, tasks.lineage; tasks.lineage.lineage();"
        " sys.exit(bool({'mlflow', 'torch', 'transformers', 'deepspeed'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0
