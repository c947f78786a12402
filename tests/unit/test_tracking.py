"""The spool, the shipper and the lineage, against a sink in memory that behaves as MLflow does; mlflow is never imported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.tracking import Recorder, lineage, ship_all, spool_folder, tracking_uri
from tasks.tracking import spool as files
from tasks.tracking.sink import PARENT_TAG
from tests.sinks import Killed, MemorySink

ROOT = Path(__file__).parents[2]
DEAD_WRITER = """
import os, signal, sys
from pathlib import Path
from tasks.tracking import Recorder
record = Recorder("translation", "killed", spool=Path(sys.argv[1]))
record.log_metrics({"loss": 2.0}, step=1)
assert "mlflow" not in sys.modules
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def record_a_sweep(spool: Path, figure: Path) -> None:
    """Two runs that use every kind of line; `figure` changes after it was logged."""
    with Recorder("translation", "train", spool=spool, flush_seconds=0, params={"rate": 0.1, "none": None}) as record:
        record.log_metrics({"loss": 1.0, "rate": None}, step=1)
        record.log_metrics({"loss": 0.5}, step=2)
        record.log_params({"batch": 8})
        record.set_tags({"kind": "training"})
        figure.write_text("as recorded", encoding="utf-8")
        record.log_artifact(figure, "figures")
        figure.write_text("later", encoding="utf-8")
    with Recorder("translation", "sweep", spool=spool, flush_seconds=0) as record:
        for window in (1, 2):
            record.child(f"window {window}", {"kind": "point"}, {"window": window}, {"bleu": 30 + window}, seconds=2)


def described(sink: MemorySink) -> list[tuple[Any, ...]]:
    """The runs of a sink without their ids."""
    runs = sink.runs.values()
    parents = {run_id: run.name for run_id, run in sink.runs.items()}
    return sorted(
        (
            run.name,
            run.status,
            parents.get(run.tags.get(PARENT_TAG, "")),
            run.tags.get("kind"),
            sorted((metric.name, metric.value, metric.step) for metric in run.metrics),
            sorted(run.params.items()),
            sorted(run.artifacts.items()),
        )
        for run in runs
    )


WHOLE = [
    ("sweep", "FINISHED", None, None, [], [], []),
    (
        "train",
        "FINISHED",
        None,
        "training",
        [("loss", 0.5, 2), ("loss", 1.0, 1)],
        [("batch", "8"), ("rate", "0.1")],
        [("figures/figure.svg", "as recorded")],
    ),
    ("window 1", "FINISHED", "sweep", "point", [("bleu", 31.0, 0)], [("window", "1")], []),
    ("window 2", "FINISHED", "sweep", "point", [("bleu", 32.0, 0)], [("window", "2")], []),
]


def test_a_record_is_lines_that_open_tell_and_end(spool: Path, tmp_path: Path) -> None:
    record_a_sweep(spool, tmp_path / "figure.svg")
    train, sweep = [[json.loads(line) for line in path.read_bytes().splitlines()] for path in files.run_files(spool)]
    assert [line["kind"] for line in train] == ["open", "metrics", "metrics", "params", "tags", "artifact", "end"]
    assert [line["kind"] for line in sweep] == ["open", "child", "child", "end"]
    assert train[0]["params"] == {"rate": "0.1"}
    assert train[1] == {"kind": "metrics", "values": {"loss": 1.0}, "step": 1, "time": train[1]["time"]}
    assert sweep[1]["end"] - sweep[1]["start"] == 2000


def test_everything_arrives_once_and_the_spool_is_empty_after(spool: Path, tmp_path: Path) -> None:
    record_a_sweep(spool, tmp_path / "figure.svg")
    sink = MemorySink()
    assert ship_all(spool, "uri", connect=sink.connect).sent == 2
    assert described(sink) == WHOLE
    assert sink.calls == 14
    assert not list(spool.iterdir())
    assert ship_all(spool, "uri", connect=sink.connect).left == 0
    assert sink.calls == 14


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
@pytest.mark.parametrize("call", range(1, 15))
def test_a_shipper_killed_at_any_call_neither_loses_nor_doubles(
    spool: Path, tmp_path: Path, call: int, after: bool, lanes: int
) -> None:
    record_a_sweep(spool, tmp_path / "figure.svg")
    sink = MemorySink(lanes)
    sink.kill_at, sink.after = call, after
    with pytest.raises(Killed):
        ship_all(spool, "uri", connect=sink.connect)
    sink.revive()
    assert ship_all(spool, "uri", connect=sink.connect).left == 0
    assert described(sink) == WHOLE
    assert not list(spool.iterdir())


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_point_is_three_calls_and_as_many_points_go_at_once_as_the_sink_takes(spool: Path, lanes: int) -> None:
    with Recorder("translation", "sweep", spool=spool, flush_seconds=0) as record:
        for point in range(40):
            record.child(f"point {point}", {"kind": "point"}, {"window": point}, {f"m{i}": i for i in range(25)})
    sink = MemorySink(lanes)
    sink.seconds = 0.001
    assert ship_all(spool, "uri", connect=sink.connect).sent == 1
    assert sink.calls == 3 * 40 + 3
    assert (sink.most_inside, sink.finds) == (lanes, 0)
    assert {f"point {point}" for point in range(40)} | {"sweep"} == {run.name for run in sink.runs.values()}


def test_after_a_kill_only_what_was_on_its_way_is_looked_up(spool: Path) -> None:
    with Recorder("translation", "sweep", spool=spool, flush_seconds=0) as record:
        for point in range(100):
            record.child(f"point {point}")
    sink = MemorySink(4)
    sink.kill_at = 150
    with pytest.raises(Killed):
        ship_all(spool, "uri", connect=sink.connect)
    sink.revive()
    assert ship_all(spool, "uri", connect=sink.connect).left == 0
    assert len(sink.runs) == len({run.name for run in sink.runs.values()}) == 101
    assert 0 < sink.finds <= 16


def test_a_file_can_be_kept_with_runs_that_have_ended_as_well(spool: Path, tmp_path: Path) -> None:
    sweep = Recorder("translation", "sweep", spool=spool, flush_seconds=0)
    sweep.close("FAILED")
    figure = tmp_path / "figure.svg"
    figure.write_text("a frontier", encoding="utf-8")
    sink = MemorySink()
    for folder in ("while it waits", "once it is sent"):
        with Recorder("translation", folder, spool=spool, flush_seconds=0) as report:
            report.log_artifact(figure, folder, beside=[sweep.key, "made elsewhere"])
        assert ship_all(spool, "uri", connect=sink.connect).left == 0
    assert sink.by_name("sweep").status == "FAILED"
    assert set(sink.by_name("sweep").artifacts) == {"while it waits/figure.svg", "once it is sent/figure.svg"}
    assert set(sink.by_name("once it is sent").artifacts) == {"once it is sent/figure.svg"}


def test_a_kill_between_removing_a_file_and_its_company_leaves_waste_that_the_next_pass_removes(spool: Path) -> None:
    spool.mkdir()
    (spool / "1-a.sent").write_text("{}", encoding="utf-8")
    (spool / "1-a.files").mkdir()
    (spool / "1-a.refused").write_text("kept", encoding="utf-8")
    ship_all(spool, "uri", connect=MemorySink().connect)
    assert [path.name for path in spool.iterdir()] == ["1-a.refused"]


def test_concurrent_shippers_send_each_run_once(spool: Path, tmp_path: Path) -> None:
    record_a_sweep(spool, tmp_path / "figure.svg")
    sink = MemorySink()
    sink.seconds = 0.01
    shippers = [threading.Thread(target=ship_all, args=(spool, "uri"), kwargs={"connect": sink.connect}) for _ in "abcd"]
    for shipper in shippers:
        shipper.start()
    for shipper in shippers:
        shipper.join()
    assert described(sink) == WHOLE
    assert sink.calls == 14


def test_a_file_that_another_shipper_holds_is_left_to_it(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Recorder("translation", "held", spool=spool, flush_seconds=0).close()
    monkeypatch.setattr("tasks.tracking.shipper.LOCK_PATIENCE", 0.1)
    sink = MemorySink()
    with files.locked(files.run_files(spool)[0], 0):
        shipment = ship_all(spool, "uri", connect=sink.connect)
    assert (shipment.left, shipment.reason) == (1, "another process is sending it")
    assert not sink.runs


def test_while_mlflow_is_away_it_is_asked_once_and_the_records_wait(spool: Path, tmp_path: Path) -> None:
    record_a_sweep(spool, tmp_path / "figure.svg")
    sink = MemorySink()
    sink.away = True
    shipment = ship_all(spool, "uri", connect=sink.connect)
    assert (shipment.left, shipment.reason, sink.connections) == (2, "uri does not answer", 1)
    sink.away = False
    assert ship_all(spool, "uri", connect=sink.connect).left == 0
    assert described(sink) == WHOLE


def test_a_deleted_experiment_keeps_its_runs_waiting_and_lets_others_pass(spool: Path) -> None:
    Recorder("deleted", "one", spool=spool, flush_seconds=0).close()
    Recorder("translation", "two", spool=spool, flush_seconds=0).close()
    sink = MemorySink()
    sink.deleted = "deleted"
    shipment = ship_all(spool, "uri", connect=sink.connect)
    assert (shipment.left, shipment.sent) == (1, 1)
    assert "is deleted" in shipment.reason
    assert [run.name for run in sink.runs.values()] == ["two"]


def test_a_run_whose_writer_died_ends_as_killed(spool: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", DEAD_WRITER, str(spool)], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    (path,) = files.run_files(spool)
    with path.open("ab") as file:
        file.write(b'{"kind": "metrics", "val')
    sink = MemorySink()
    assert ship_all(spool, "uri", connect=sink.connect).sent == 1
    run = sink.by_name("killed")
    assert (run.status, {metric.value for metric in run.metrics}) == ("KILLED", {2.0})
    assert run.end >= run.start
    assert not list(spool.iterdir())


def test_a_run_that_is_still_written_is_sent_as_far_as_it_goes(spool: Path) -> None:
    record = Recorder("translation", "training", spool=spool, flush_seconds=0)
    sink = MemorySink()
    for step in (1, 2):
        record.log_metrics({"loss": 1.0 / step}, step)
        shipment = ship_all(spool, "uri", connect=sink.connect)
        assert (shipment.sent, shipment.left) == (0, 0)
        run = sink.by_name("training")
        assert (run.status, len(run.metrics)) == ("RUNNING", step)
    record.close()
    ship_all(spool, "uri", connect=sink.connect)
    assert sink.by_name("training").status == "FINISHED"


def test_a_run_recorded_under_another_is_its_child_whether_that_still_waits_or_not(spool: Path) -> None:
    parent = Recorder("translation", "sweep", spool=spool, flush_seconds=0)
    Recorder("translation", "early", spool=spool, parent=parent, flush_seconds=0).close()
    sink = MemorySink()
    assert ship_all(spool, "uri", connect=sink.connect).left == 0
    parent.close()
    assert ship_all(spool, "uri", connect=sink.connect).left == 0
    Recorder("translation", "late", spool=spool, parent=parent, flush_seconds=0).close()
    ship_all(spool, "uri", connect=sink.connect)
    parent_id = sink.find("translation", parent.key)
    assert sink.by_name("early").tags[PARENT_TAG] == sink.by_name("late").tags[PARENT_TAG] == parent_id


def test_a_line_that_mlflow_refuses_is_set_aside_and_the_rest_arrives(spool: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder("translation", "run", spool=spool, flush_seconds=0) as record:
        record.log_metrics({"loss": 1.0})
        record.log_metrics({"refused": 2.0})
        record.log_metrics({"loss": 3.0}, step=1)
    capsys.readouterr()
    sink = MemorySink()
    assert ship_all(spool, "uri", connect=sink.connect).left == 0
    assert {metric.value for metric in sink.by_name("run").metrics} == {1.0, 3.0}
    (aside,) = spool.iterdir()
    assert aside.suffix == ".refused"
    assert json.loads(aside.read_text(encoding="utf-8"))["values"] == {"refused": 2.0}
    (warning,) = capsys.readouterr().err.splitlines()
    assert "'run'" in warning
    assert "a bad name" in warning


def test_a_broken_line_or_file_does_not_stop_the_others(spool: Path) -> None:
    record = Recorder("translation", "run", spool=spool, flush_seconds=0)
    with record.path.open("ab") as file:
        file.write(b'not json\n{"kind": "metrics"}\n{"kind": "child"}\n[]\n')
    record.close()
    (spool / "0-a.jsonl").write_text("[1]\n", encoding="utf-8")
    sink = MemorySink()
    shipment = ship_all(spool, "uri", connect=sink.connect)
    assert (shipment.sent, shipment.left) == (1, 1)
    assert "0-a.jsonl" in shipment.reason
    assert sink.by_name("run").status == "FINISHED"


def test_a_replaced_database_gets_the_whole_record_again(spool: Path) -> None:
    record = Recorder("translation", "training", spool=spool, flush_seconds=0)
    record.log_metrics({"loss": 1.0}, 1)
    sink = MemorySink()
    ship_all(spool, "uri", connect=sink.connect)
    sink.runs.clear()
    record.log_metrics({"loss": 0.5}, 2)
    record.close()
    assert ship_all(spool, "uri", connect=sink.connect).left == 0
    assert len(sink.by_name("training").metrics) == 2


def test_another_destination_gets_the_whole_record(spool: Path) -> None:
    record = Recorder("translation", "training", spool=spool, flush_seconds=0)
    record.log_metrics({"loss": 1.0}, 1)
    ship_all(spool, "http://user:secret@old", connect=MemorySink().connect)
    assert not any("secret" in path.read_text(encoding="utf-8") for path in spool.iterdir())
    record.close()
    sink = MemorySink()
    ship_all(spool, "http://new", connect=sink.connect)
    assert (sink.by_name("training").status, len(sink.by_name("training").metrics)) == ("FINISHED", 1)


def test_sending_stops_at_its_deadline(spool: Path) -> None:
    Recorder("translation", "run", spool=spool, flush_seconds=0).close()
    sink = MemorySink()
    shipment = ship_all(spool, "uri", deadline=time.monotonic() - 1, connect=sink.connect)
    assert (shipment.left, shipment.reason, sink.calls) == (1, "no time left for sending", 0)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(2), "FAILED"),
        (SystemExit(0), "FINISHED"),
    ],
)
def test_how_the_work_ended_is_how_the_run_ends(
    spool: Path, error: BaseException, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)), Recorder("translation", "run", spool=spool, flush_seconds=0) as record:
        raise error
    assert json.loads(record.path.read_bytes().splitlines()[-1])["status"] == status
    (warning,) = capsys.readouterr().err.splitlines()
    assert "1 run waits" in warning
    assert "python -m tasks.tracking" in warning


def test_names_are_made_such_as_mlflow_takes(spool: Path) -> None:
    with Recorder("translation", "run", spool=spool, flush_seconds=0, tags={"a=b": "c" * 9000}) as record:
        record.log_metrics({"p(accept)": 1})
    opening, metrics, _ = [json.loads(line) for line in record.path.read_bytes().splitlines()]
    assert opening["tags"] == {"a_b": "c" * 8000}
    assert metrics["values"] == {"p_accept_": 1.0}


def test_the_command_sends_nothing_where_nothing_waits(spool: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tasks.tracking"],
        cwd=ROOT,
        env={"DRAFTLINE_SPOOL": str(spool), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs sent to MLflow: 0; still waiting: 0\n", "")


def test_where_things_are_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTLINE_SPOOL", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert spool_folder(tmp_path) == tmp_path / ".cache" / "mlflow-spool"
    assert tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("DRAFTLINE_SPOOL", "/elsewhere")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert spool_folder(tmp_path) == Path("/elsewhere")
    assert tracking_uri(tmp_path) == "http://127.0.0.1:5000"


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, timeout=60)


def test_lineage_names_code_data_and_starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    (tmp_path / "code.py").write_text("1", encoding="utf-8")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    (tmp_path / "dvc.lock").write_text(
        "stages:\n  prepare:\n    outs:\n    - path: data/translation\n      md5: abc.dir\n", encoding="utf-8"
    )
    monkeypatch.setenv("DVC_STAGE", "sweep@aligned")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "flow-1")
    tags = lineage(tmp_path, inputs=["data/translation/train.jsonl", tmp_path / "data/translation", "data/other"])
    assert len(tags["git_commit"]) == 40
    assert tags["git_dirty"] == "false"
    assert (tags["stage"], tags["flow_run"]) == ("sweep@aligned", "flow-1")
    assert {name: value for name, value in tags.items() if name.startswith("input")} == {
        "input data/translation/train.jsonl": "abc.dir",
        "input data/translation": "abc.dir",
    }
    assert tags["python"].startswith("3.")
    assert int(tags["host_cores"]) >= 1
    (tmp_path / "code.py").write_text("2", encoding="utf-8")
    assert lineage(tmp_path)["git_dirty"] == "true"


def test_lineage_asks_torch_for_the_gpu_only_where_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert "host_gpu" not in lineage(ROOT)
    gpu = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "NVIDIA H200")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=gpu))
    assert lineage(ROOT)["host_gpu"] == "NVIDIA H200"


def test_lineage_of_no_repository_leaves_git_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    tags = lineage(tmp_path)
    assert not {"git_commit", "git_dirty", "stage"} & tags.keys()


def test_nothing_here_imports_mlflow() -> None:
    code = (
        "import sys, tasks.tracking; tasks.tracking.lineage();"
        " sys.exit(bool({'mlflow', 'torch', 'transformers', 'deepspeed'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0
