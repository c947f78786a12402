"""The cost of a run at two revisions, with a repository whose stages burn processor time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.bench import pipeline
from tasks.bench.pipeline import Cost, RunCost, main, ratio, table
from tasks.errors import InputError

# Stands in for dvc: announces each stage of the file `stages` and burns so many seconds of processor time in a child.
DVC = """#!{python}
import subprocess, sys
burn = "import time\\nwhile time.process_time() < {{}}: pass"
for line in open("stages"):
    name, seconds = line.split()
    print(f"Running stage '{{name}}':", flush=True)
    subprocess.run([sys.executable, "-c", burn.format(seconds)], check=True)
if open("stages").read() == "": sys.exit("nothing to do")
"""


def commit(repository: Path, stages: str) -> str:
    (repository / "stages").write_text(stages, encoding="utf-8")
    for command in (["add", "--all"], ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    dvc = tmp_path / "environment" / "bin" / "dvc"
    dvc.parent.mkdir(parents=True)
    dvc.write_text(DVC.format(python=sys.executable), encoding="utf-8")
    dvc.chmod(0o755)
    return folder


def test_stages_of_both_revisions_are_measured(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = commit(repository, "prepare 0.3\nfinetune 0.9\n")
    after = commit(repository, "prepare 0.3\nalign 0.3\n")
    main(["--before", before, "--repository", str(repository), "--environment", str(tmp_path / "environment")])
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert [found["before"]["revision"], found["after"]["revision"]] == [before, after]
    assert list(found["after"]["stages"]) == ["prepare", "align"]
    assert 0.9 <= found["before"]["stages"]["finetune"]["processor"] < 1.6
    assert found["before"]["stages"]["prepare"]["processor"] < 0.9
    stages = sum(cost["processor"] for cost in found["before"]["stages"].values())
    assert 1.2 <= stages <= found["before"]["total"]["processor"]
    assert 0.4 < found["repro_over_before"] < 0.85
    assert any(line.startswith("| finetune | 1 |  |") for line in lines)


def test_a_run_that_fails_and_a_revision_that_is_missing_are_named(repository: Path, tmp_path: Path) -> None:
    commit(repository, "")
    options = ["--repository", str(repository), "--environment", str(tmp_path / "environment")]
    with pytest.raises(InputError, match=r"dvc repro failed in .*: nothing to do"):
        main(["--before", "HEAD", *options])
    with pytest.raises(InputError, match="has no revision c124981"):
        main(options)


def test_the_ratio_is_of_processor_time_without_the_set_up() -> None:
    before = RunCost("a", Cost(50, 90), {"prepare": Cost(10, 5)}, Cost(100, 60))
    after = RunCost("b", Cost(500, 900), {"prepare": Cost(4, 5)}, Cost(25, 60))
    assert ratio(before, after) == 0.25
    assert list(table(before, after))[2:] == [
        "| prepare | 10 | 4 | 5 | 5 |",
        "| **dvc repro** | 100 | 25 | 60 | 60 |",
        "| make setup (not in the ratio) | 50 | 500 | 90 | 900 |",
    ]


def test_setting_up_uses_the_lock_file_of_the_revision(repository: Path) -> None:
    (repository / "Makefile").write_text("setup:\n\tmkdir -p .venv && cp requirements.lock .venv/made\n", encoding="utf-8")
    (repository / "requirements.lock").write_text("one", encoding="utf-8")
    assert pipeline.set_up(repository, None) is not None
    assert (repository / ".venv" / "made").read_text(encoding="utf-8") == "one"
