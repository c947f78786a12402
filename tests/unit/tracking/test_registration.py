"""Pairs on their way to the model registry: one version for each pair, whichever request fails, and one copy of its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.tracking import RegisteredModel, outbox_folder, upload_all
from tasks.tracking.registration import CONTENT_TAG, MODEL_TAG
from tests.memory_mlflow import Killed, MemoryMlflow, memory_mlflow
from tests.unit.tracking.conftest import SERVER, lose_answer, record

NAME = "draftline-toy"


def pair_folder(folder: Path, content: str = "weights") -> Path:
    """Two files in place of a pair; an older folder is replaced."""
    shutil.rmtree(folder / "pair", ignore_errors=True)
    (folder / "pair/large").mkdir(parents=True)
    (folder / "pair/pair.json").write_text("{}", encoding="utf-8")
    (folder / "pair/large/model.safetensors").write_text(content, encoding="utf-8")
    return folder / "pair"


def report(folder: Path, content: str = "weights", name: str = "report") -> None:
    """Record a run with a pair of this content, and leave it in the outbox."""
    model = RegisteredModel(NAME, str(pair_folder(folder, content)), "the verdict", {"method": "bild"}, {}, ["a text"])
    with record(name) as run:
        run.log_model(model)


def candidate(mlflow: MemoryMlflow) -> str:
    """Return the content of the weights in the version that has the alias."""
    (version,) = (one for one in mlflow.versions if one.version == mlflow.aliases[NAME]["candidate"])
    files = mlflow.logged[version.tags[MODEL_TAG]].files
    return str(files["artifacts/pair/large/model.safetensors"], "utf-8")


def described(mlflow: MemoryMlflow) -> Any:
    """Return everything that registration leaves, without checksums and times."""
    runs = {run.info.run_name: (run.info.status, mlflow.outputs.get(run.info.run_id, [])) for run in mlflow.active()}
    models = [(one.name, one.status, sorted(one.files)) for one in mlflow.logged.values()]
    versions = [(one.version, one.source, one.description, one.tags["method"]) for one in mlflow.versions]
    return runs, models, versions, mlflow.aliases


@pytest.fixture
def whole(tmp_path: Path) -> Any:
    """What an undisturbed upload of one report leaves."""
    with memory_mlflow(tmp_path) as mlflow:
        report(tmp_path)
        assert upload_all(outbox_folder(), SERVER) == (1, [])
        return described(mlflow)


def test_a_pair_becomes_a_version_with_verdict_and_alias(whole: Any) -> None:
    runs, models, versions, aliases = whole
    files = ["MLmodel", "artifacts/pair/large/model.safetensors", "artifacts/pair/pair.json"]
    assert runs == {"report": ("FINISHED", [("m0", 0)])}
    assert models == [(NAME, "READY", files)]
    assert versions == [("1", "models/0", "the verdict", "bild")]
    assert aliases == {NAME: {"candidate": "1"}}


@pytest.mark.parametrize("after", [False, True], ids=["before the work", "after the work"])
def test_a_registration_killed_at_any_request_neither_loses_nor_doubles(tmp_path: Path, whole: Any, after: bool) -> None:
    def kill(number: int, work: Callable[[], None]) -> None:
        if number == request and after:
            work()
        if number >= request:
            raise Killed
        work()

    request, killed = 0, True
    while killed:
        request += 1
        folder = tmp_path / str(request)
        folder.mkdir()
        with memory_mlflow(folder) as mlflow:
            report(folder)
            mlflow.fault = kill
            try:
                upload_all(outbox_folder(), SERVER)
                killed = False
            except Killed:
                mlflow.fault = lambda number, work: work()
                assert upload_all(outbox_folder(), SERVER) == (1, [])
            assert described(mlflow) == whole, f"killed at request {request}"
    assert request > 18


def test_an_answer_lost_after_the_work_neither_loses_nor_doubles(tmp_path: Path, whole: Any) -> None:
    request, hit = 0, True
    while hit:
        request += 1
        folder = tmp_path / str(request)
        folder.mkdir()
        with memory_mlflow(folder) as mlflow:
            report(folder)
            mlflow.fault = lambda number, work, lost=request: lose_answer(work) if number == lost else work()  # type: ignore[misc]
            assert upload_all(outbox_folder(), SERVER) == (1, [])
            assert described(mlflow) == whole, f"lost the answer to request {request}"
            hit = len(mlflow.requests) >= request
    assert request > 18


def test_mlflow_away_keeps_the_pair_of_the_report(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
    mlflow.unavailable = True
    report(tmp_path)
    shutil.rmtree(tmp_path / "pair")
    assert upload_all(outbox, SERVER)[0] == 0
    mlflow.unavailable = False
    assert upload_all(outbox, SERVER) == (1, [])
    assert candidate(mlflow) == "weights"


def test_the_same_pair_has_one_version_and_every_report_shows_it(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
    for name in ("first", "second"):
        report(tmp_path, name=name)
        assert upload_all(outbox, SERVER) == (1, [])
    assert len(mlflow.versions) == len(mlflow.logged) == 1
    assert mlflow.requests.count("finalize model") == 1
    assert [len(mlflow.outputs[mlflow.by_name(name).info.run_id]) for name in ("first", "second")] == [1, 1]


def test_the_alias_follows_the_newest_report_even_back_to_an_older_pair(
    outbox: Path, mlflow: MemoryMlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second, content in enumerate(("old", "new", "old")):
        monkeypatch.setattr("tasks.tracking.recorder.now_ms", lambda second=second: 1000 * second)
        report(tmp_path, content)
        assert upload_all(outbox, SERVER) == (1, [])
        assert candidate(mlflow) == content
    assert len(mlflow.versions) == 2


def test_an_older_report_that_arrives_late_does_not_take_the_alias(
    outbox: Path, mlflow: MemoryMlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second, content in ((2, "new"), (1, "old")):
        monkeypatch.setattr("tasks.tracking.recorder.now_ms", lambda second=second: 1000 * second)
        report(tmp_path, content)
        assert upload_all(outbox, SERVER) == (1, [])
    assert len(mlflow.versions) == 2
    assert candidate(mlflow) == "new"


def test_versions_made_twice_are_removed_unless_an_alias_names_them(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
    report(tmp_path)
    assert upload_all(outbox, SERVER) == (1, [])
    [first] = mlflow.versions
    for _ in range(2):  # a slow server that repeats a request does this
        mlflow.create_model_version(NAME, first.source, first.run_id, first.tags, None, first.description, 0, "m0")
    mlflow.set_registered_model_alias(NAME, "champion", "3")
    report(tmp_path)
    assert upload_all(outbox, SERVER) == (1, [])
    assert [one.version for one in mlflow.versions] == ["1", "3"]
    assert mlflow.aliases == {NAME: {"candidate": "1", "champion": "3"}}
    assert len({one.tags[CONTENT_TAG] for one in mlflow.versions}) == 1


def test_waiting_runs_share_the_files_of_a_pair_that_is_written_anew(
    outbox: Path, mlflow: MemoryMlflow, tmp_path: Path
) -> None:
    for _ in range(3):
        report(tmp_path)
    weights = list(outbox.glob("*/models/*/large/model.safetensors"))
    assert len(weights) == 3
    assert len({file.stat().st_ino for file in weights}) == 1
    # The last folder was written anew; its file is not the one that is kept.
    assert weights[0].stat().st_nlink == 3


def test_a_pair_that_is_kept_is_not_copied(outbox: Path, mlflow: MemoryMlflow, tmp_path: Path) -> None:
    report(tmp_path)
    [kept] = outbox.glob("*/models/*/large/model.safetensors")
    assert kept.samefile(tmp_path / "pair/large/model.safetensors")
