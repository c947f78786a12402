"""The command for experiments as far as it goes without running one: options, refusals, what it lists."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from flows import experiment
from flows.experiments.queue import ExperimentQueue
from tests.toy_project import make_project

RATE = "tasks.toy.align.learning_rate"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("template") / "project")


@pytest.fixture
def project(template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(template)
    return template


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["experiment", *words])
    return experiment.main()


def test_experiments_are_added_listed_and_removed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text(f"{RATE}: [0.5, 0.6]\n", encoding="utf-8")
    assert command(monkeypatch, "--list") == 0
    assert capsys.readouterr().out == "there are no experiments\n"
    for seen in ("added seeds=7,learning_rate=0.5: ", "known already: seeds=7,learning_rate=0.5: waiting"):
        assert command(monkeypatch, "--grid", str(grid), "--set", "tasks.toy.seeds=[7]", "--queue") == 0
        assert capsys.readouterr().out.startswith(seen)
    assert command(monkeypatch, "--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["state"]) for one in listed] == [
        ("seeds=7,learning_rate=0.5", "waiting"),
        ("seeds=7,learning_rate=0.6", "waiting"),
    ]
    assert listed[0]["about"]["settings"] == {"tasks.toy.seeds": [7], RATE: 0.5}
    assert command(monkeypatch, "--list") == 0
    assert capsys.readouterr().out.splitlines()[0] == f"seeds=7,learning_rate=0.5  waiting  tasks.toy.seeds=[7] {RATE}=0.5"
    assert command(monkeypatch, "--remove", *(one["name"] for one in listed)) == 0
    assert ExperimentQueue(project).all() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", f"{RATE}=0.5", "--set", f"{RATE}=0.6"], "is given more than once"),
        (["--set", f"{RATE}=fast"], "must be|valid number"),
        (["--set", f"{RATE}=0.5", "--jobs", "0"], "--jobs is 0; it must be at least 1"),
        (["--set", f"{RATE}=0.5", "--targets", "nothing"], "has no stage 'nothing'"),
        (["--run", "nothing"], "no experiment 'nothing'"),
        (["--retry", "nothing"], "no experiment 'nothing'"),
        (["--grid", "missing.yaml"], r"no grid file missing\.yaml"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(
    words: list[str], message: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, *words)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)
    assert ExperimentQueue(project).all() == []


@pytest.mark.parametrize("words", [[], ["--queue"], ["--set", f"{RATE}=0.5", "--list"]])
def test_options_that_do_not_go_together_are_refused(
    words: list[str], project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, *words)
    assert ended.value.code == 2
    assert "give either --set or --grid" in capsys.readouterr().err


def test_the_runs_go_into_the_record_of_the_repository(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((one, _),) = ExperimentQueue(project).add([{RATE: 0.9}])
    for name in ("MLFLOW_TRACKING_URI", "DRAFTLINE_OUTBOX"):
        monkeypatch.delenv(name, raising=False)
    found = experiment._environment(project, one)
    assert found["DRAFTLINE_OUTBOX"] == str(project / ".cache" / "mlflow-outbox")
    assert found["MLFLOW_TRACKING_URI"] == f"sqlite:///{project / 'mlflow.db'}"
    assert found["DVC_EXP_NAME"] == "learning_rate=0.9"
    # What is relative to the working folder stays there: stages run elsewhere.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mine.db")
    assert experiment._environment(project, one)["MLFLOW_TRACKING_URI"] == f"sqlite:///{project / 'mine.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert experiment._environment(project, one)["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:5000"
    ExperimentQueue(project).remove([one.name])
