"""Pairs as versions of a registered model: one for each pair, whichever request is the last before a kill, and its champion."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from tasks.errors import InputError
from tasks.promote import CHAMPION, WHY_TAG, Champions
from tasks.tracking import RegisteredModel, tracking_uri, upload_all
from tests.local_mlflow import FaultyClient, Killed, runs_of
from tests.unit.tracking.conftest import record

NAME = "draftline-toy"


@pytest.fixture(autouse=True)
def _little_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models carry no code: copying it takes most of the time."""
    monkeypatch.setattr("tasks.tracking.registry._WHOLE", ())


def report(folder: Path, content: str, second: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record a report, begun at this second, with a pair of this content, and leave it in the outbox."""
    pair = folder / f"pair-{content}"
    (pair / "large").mkdir(parents=True, exist_ok=True)
    (pair / "pair.json").write_text("{}", encoding="utf-8")
    (pair / "large/model.safetensors").write_text(content, encoding="utf-8")
    monkeypatch.setattr("tasks.tracking.recorder._now_ms", lambda: 1000 * second)
    with record("report") as run:
        run.log_model(RegisteredModel(NAME, str(pair), "the verdict", {"method": "bild"}, {}, ["a text"]))


def aliases(mlflow: FaultyClient) -> dict[str, str]:
    return {alias: str(number) for alias, number in mlflow.client.get_registered_model(NAME).aliases.items()}


def test_a_pair_has_one_version_and_the_alias_follows_the_newest_report(
    outbox: Path, mlflow: FaultyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [(1, "old", "1"), (3, "new", "2"), (4, "old", "1"), (2, "new", "1")]  # the last one arrives late
    for second, content, candidate in expected:
        report(tmp_path, content, second, monkeypatch)
        assert upload_all(outbox, tracking_uri()) == (1, [])
        assert aliases(mlflow) == {"candidate": candidate}
    versions = mlflow.client.search_model_versions(f"name = '{NAME}'")
    found = sorted((one.version, one.description, one.tags["method"]) for one in versions)
    assert found == [(1, "the verdict", "bild"), (2, "the verdict", "bild")]

    champions = Champions("toy")
    assert champions.champion() is None
    old, new = champions.candidate(), champions.candidate("2")
    assert (champions.fetch(new, tmp_path / "scratch") / "large/model.safetensors").read_text() == "new"
    champions.refuse(new, "none", "slower")
    champions.promote(old, None, "faster")
    assert aliases(mlflow) == {"candidate": "1", CHAMPION: "1"}
    assert champions.candidate("2").tags[WHY_TAG] == "slower"
    with pytest.raises(InputError, match="is version 1 now: it changed during the comparison"):
        champions.promote(new, None, "faster")
    (champions.fetch(new, tmp_path / "scratch") / "large/model.safetensors").write_text("damaged")
    with pytest.raises(InputError, match="are not those that were registered"):
        champions.fetch(new, tmp_path / "scratch")


@pytest.mark.parametrize("request_number", [6, 9, 12])
def test_a_registration_that_is_killed_neither_loses_nor_doubles(
    outbox: Path, mlflow: FaultyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_number: int
) -> None:
    def kill(number: int, work: Callable[[], Any]) -> Any:
        found = work()
        if number >= request_number:
            raise Killed
        return found

    report(tmp_path, "new", 1, monkeypatch)
    mlflow.fault = kill
    with pytest.raises(Killed):
        upload_all(outbox, tracking_uri())
    mlflow.fault = lambda number, work: work()
    assert upload_all(outbox, tracking_uri()) == (1, [])
    assert len(mlflow.client.search_model_versions(f"name = '{NAME}'")) == 1
    assert aliases(mlflow) == {"candidate": "1"}
    assert [run.info.status for run in runs_of(mlflow)] == ["FINISHED"]


def test_a_registration_that_is_interrupted_goes_on_when_it_is_sent_again(
    outbox: Path, mlflow: FaultyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(tmp_path, "pair", 1, monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("tasks.tracking.registry.copy_code", MagicMock(side_effect=KeyboardInterrupt))
        upload_all(outbox, tracking_uri())
    assert upload_all(outbox, tracking_uri()) == (1, [])
    assert aliases(mlflow) == {"candidate": "1"}
    assert [run.info.status for run in runs_of(mlflow)] == ["FINISHED"]


def test_a_task_without_a_registered_pair_is_named(mlflow: FaultyClient) -> None:
    with pytest.raises(InputError, match=f"MLflow holds no model {NAME}; make one by python -m tasks.report --task toy"):
        Champions("toy")
