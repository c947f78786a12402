"""The parts of the flow without a server: states of stage tasks, artifacts, schedules and refusals."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.logging import disable_run_logger
from prefect.states import Completed, Failed, Pending

from flows import pipeline, serve
from flows.lockfile import lock_file
from flows.server import prefect_server
from flows.stage import StageError, StageResult, StageRunner
from tasks.errors import InputError
from tests.unit.flows.conftest import Repository


class FakeRunner(StageRunner):
    """A runner that gives the same answer for every stage and starts no process."""

    def __init__(self, answer: StageResult | StageError) -> None:
        super().__init__(Path(), timeout=1)
        self.answer = answer

    def run(self, name: str, log: Callable[[str], None]) -> StageResult:
        log(name)
        if isinstance(self.answer, StageError):
            raise self.answer
        return self.answer


def ended(answer: StageResult | StageError) -> State[Any]:
    with disable_run_logger():
        return pipeline.run_stage.fn("align", FakeRunner(answer))


def retried_by_prefect(state: State[Any]) -> bool:
    condition: Any = pipeline.run_stage.retry_condition_fn
    return bool(condition(None, None, state))


@pytest.mark.parametrize(("state", "name"), [("ran", "Completed"), ("cached", "Cached")])
def test_a_stage_that_is_up_to_date_completes(state: str, name: str) -> None:
    run = StageResult("align", state, 1.0)
    task = ended(run)
    assert (task.name, task.data, task.is_completed()) == (name, run, True)


@pytest.mark.parametrize(("kind", "retried"), [("Failed", True), ("TimedOut", True), ("Refused", False), ("Stopped", False)])
def test_a_failure_that_a_retry_cannot_fix_is_not_retried(kind: str, retried: bool) -> None:
    task = ended(StageError("stage 'align' failed: why", kind))
    assert (task.name, task.message, task.is_failed()) == (kind, "stage 'align' failed: why", True)
    assert retried_by_prefect(task) is retried


def test_the_table_shows_how_each_stage_ended() -> None:
    rows = [
        pipeline._row("a", Completed(data=StageResult("a", "ran", 1.26))),
        pipeline._row("b", Failed(message="stage 'b' failed: why")),
        pipeline._row("c", Pending(name="NotReady")),
    ]
    assert rows == [
        {"stage": "a", "state": "ran", "seconds": 1.3},
        {"stage": "b", "state": "failed", "seconds": None},
        {"stage": "c", "state": "not run", "seconds": None},
    ]


def test_an_artifact_key_has_only_allowed_characters() -> None:
    assert pipeline._artifact_key("report@Multi30k_de") == "report-multi30k-de"


@pytest.mark.parametrize(
    "options",
    [{"cron": "0 3 * *"}, {"cron": "at night"}, {"interval_minutes": 0.0}, {"interval_minutes": float("nan")}],
)
def test_a_wrong_schedule_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"--cron|--interval-minutes"):
        serve._schedule(argparse.Namespace(**({"cron": None} | options)))


def test_a_schedule_becomes_arguments_of_prefect() -> None:
    assert serve._schedule(argparse.Namespace(cron="0 3 * * *")) == {"cron": "0 3 * * *"}
    interval = serve._schedule(argparse.Namespace(cron=None, interval_minutes=90.0))["interval"]
    assert interval.total_seconds() == 5400


@pytest.mark.parametrize("main", [pipeline.main, serve.main])
def test_a_folder_without_dvc_is_refused_in_one_line(
    main: Callable[[], int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["flow"] + (["--cron", "0 3 * * *"] if main is serve.main else []))
    with pytest.raises(SystemExit) as exit_status:
        main()
    assert exit_status.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_second_run_in_a_repository_is_cancelled(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository({"source": {"cmd": "touch log"}}))
    with lock_file(pipeline.RUN_LOCK) as lock:
        lock.write("of another run")
        state = pipeline.pipeline.fn()
    assert state.is_cancelled()
    assert state.message == "flow run of another run is at work in this repository; wait for it to end"
    assert not Path("log").exists()


def test_a_second_serving_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with lock_file(tmp_path / "served") as lock:
        lock.write("http://127.0.0.1:1/api")
        with (
            pytest.raises(InputError, match=r"already served from .* at http://127\.0\.0\.1:1/api"),
            prefect_server(announce=True),
        ):
            pass


def test_a_configured_server_that_does_not_answer_is_named() -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    silent = {PREFECT_API_URL: "http://127.0.0.1:1/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(silent), pytest.raises(InputError, match="no Prefect server answers at"), prefect_server():
        pass
