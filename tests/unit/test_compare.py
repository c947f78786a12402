"""The command: what it reads, what it prints, how it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import compare
from tasks.compare import open_result
from tasks.errors import InputError
from tests.commands import Run, runner
from tests.finished import finished, loaded, write
from tests.toy_project import git


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(compare.main, monkeypatch, capsys)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return write(tmp_path / "before", *finished())


@pytest.fixture
def after(tmp_path: Path) -> Path:
    summary, rows = finished(faster=1.2, seed=1)
    for pair in summary["pairs"].values():
        pair["lineage"]["git_commit"] = "b" * 40
    return write(tmp_path / "after", summary, rows)


def test_a_result_against_itself(run: Run, before: Path) -> None:
    printed = run(before, before / "summary.json").printed
    assert printed.splitlines()[-1] == "nothing that is more than noise"
    assert "md5" not in printed


def test_a_change_is_listed_in_its_section_and_in_the_last_line(run: Run, before: Path, after: Path) -> None:
    lines = run(before, after).printed.splitlines()
    assert any(line.split() == ["git_commit", "a" * 12, "b" * 12] for line in lines)
    assert lines[-1].startswith("more than noise: bild aligned, no loss: speed-up (test) 1.")
    assert "unaligned, no loss" not in lines[-1]
    (speedup,) = (line for line in lines if line.strip().startswith("bild aligned, no loss: speed-up"))
    assert speedup.endswith("< 0.001  more than noise")
    assert any("4 of 4 paired" in line for line in lines)


def test_json_for_programs(run: Run, before: Path, after: Path) -> None:
    found = json.loads(run(before, after, "--json").printed)
    assert found["more_than_noise"] == [one["name"] for one in found["numbers"] if one["more_than_noise"]] != []
    assert found["differing"] == [["git_commit", "a" * 40, "b" * 40]]


def test_numbers_without_an_interval_are_counted(run: Run, tmp_path: Path) -> None:
    summary, _ = finished()
    del summary["vanilla"]["small"]["quality_interval"]
    summary["pairs"] = {}
    older = write(tmp_path / "older", summary, {})
    last = run(older, older).printed.splitlines()[-1]
    assert last == "nothing that is more than noise (not compared, since they have no interval: 1 of 15 numbers)"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"no summary\.json there; write it by: python -m tasks\.report"),
        ("{", r"summary\.json: not JSON .*; write it with this revision's tasks\.report"),
        ("[]", r"summary\.json: not a JSON object"),
        ('{"metric": "bleu"}', r"summary\.json: field 'task' is missing; write it"),
        ('{"version": 2}', r"summary\.json: version 2, but this code reads version 1; write it"),
    ],
)
def test_a_folder_without_a_result_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        open_result(str(tmp_path))


def test_a_mistake_is_one_line_and_status_2(run: Run, tmp_path: Path, before: Path) -> None:
    summary, rows = finished()
    other = write(tmp_path / "other", {**summary, "metric": "rougeL"}, rows)
    status, _, said = run(before, other)
    (line,) = said.splitlines()
    assert status == 2 and "is measured in bleu and" in line and "compare results of one metric" in line


def test_a_name_that_is_neither_path_nor_revision_is_refused() -> None:
    for text in ("nowhere", ":nowhere", "HEAD:"):
        with pytest.raises(InputError, match="no such file or folder; give a folder of results, a summary"):
            open_result(text)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository of DVC's, as of one commit, whose results lie in DVC's cache; it is the working directory."""
    pytest.importorskip("dvc")
    folder = tmp_path / "repository"
    write(folder / "results" / "toy", *finished())
    monkeypatch.chdir(folder)
    outs = ["results/toy/summary.json", "results/toy/sweep/aligned", "results/toy/sweep/unaligned"]
    git(folder, "init", "--quiet")
    for words in (["init"], ["add", *outs]):
        subprocess.run([sys.executable, "-m", "dvc", "-q", *words], check=True, capture_output=True)
    commit(folder, "a result")
    return folder


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)


def test_a_revision_is_read_from_git_and_dvc_with_the_settings_of_its_trainings(run: Run, repository: Path) -> None:
    (repository / "results/toy/summary.json").unlink()
    (repository / "results/toy/summary.json").write_text(json.dumps(finished(faster=1.5)[0]), encoding="utf-8")
    earlier = open_result("HEAD:results/toy")
    expected = loaded("HEAD:results/toy", *finished())
    assert (earlier.summary, earlier.rows) == (expected.summary, expected.rows)
    assert open_result("HEAD:results/toy/summary.json").summary == earlier.summary
    with pytest.raises(InputError, match=r"v1:results/toy cannot be read: unknown Git revision 'v1'"):
        open_result("v1:results/toy")
    with pytest.raises(InputError, match=r"HEAD:results/other is not there, or neither DVC's cache nor a remote holds it"):
        open_result("HEAD:results/other")
    # A folder alone does not say by which params.yaml it was made.
    names = []
    for beta in (0.3, 0.7):
        task = {"align": {"beta": beta, "steps": 40}, "seeds": [1, 2], "sweep": {"seed": beta}}
        Path("params.yaml").write_text(json.dumps({"tasks": {"toy": task}}), encoding="utf-8")
        commit(repository, f"beta {beta}")
        git(repository, "tag", f"beta-{beta}")
        names.append(f"beta-{beta}:results/toy")
    assert json.loads(run(*names, "--json").printed)["differing"] == [["align.beta", "0.3", "0.7"]]
    assert json.loads(run(names[0], "results/toy", "--json").printed)["differing"] == []
