"""The flow's parts without a server: what a stage's task makes of its end, and what the artifacts say."""

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


class Played(StageRunner):
    """Gives one answer to every stage."""

    def __init__(self, answer: StageResult | StageError) -> None:
        super().__init__(Path(), timeout=1)
        self.answer = answer

    def run(self, name: str, tell: Callable[[str], None]) -> StageResult:
        tell(name)
        if isinstance(self.answer, StageError):
            raise self.answer
        return self.answer


def ended(answer: StageResult | StageError) -> State[Any]:
    with disable_run_logger():
        return pipeline.run_stage.fn("align", Played(answer))


def worth_another_try(state: State[Any]) -> bool:
    condition: Any = pipeline.run_stage.retry_condition_fn
    return bool(condition(None, None, state))


@pytest.mark.parametrize(("state", "name"), [("ran", "Completed"), ("cached", "Cached")])
def test_a_stage_that_is_up_to_date_completes(state: str, name: str) -> None:
    run = StageResult("align", state, 1.0)
    task = ended(run)
    assert (task.name, task.data, task.is_completed()) == (name, run, True)


@pytest.mark.parametrize(("kind", "again"), [("Failed", True), ("TimedOut", True), ("Refused", False), ("Stopped", False)])
def test_what_another_try_cannot_mend_is_not_tried_again(kind: str, again: bool) -> None:
    task = ended(StageError("stage 'align' failed: why", kind))
    assert (task.name, task.message, task.is_failed()) == (kind, "stage 'align' failed: why", True)
    assert worth_another_try(task) is again


def test_the_table_tells_how_each_stage_ended() -> None:
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


def test_a_stages_name_becomes_a_key() -> None:
    assert pipeline._slug("report@Multi30k_de") == "report-multi30k-de"


@pytest.mark.parametrize(
    "options",
    [{"cron": "0 3 * *"}, {"cron": "at night"}, {"interval_minutes": 0.0}, {"interval_minutes": float("nan")}],
)
def test_a_wrong_schedule_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"--cron|--interval-minutes"):
        serve._schedule(argparse.Namespace(**({"cron": None} | options)))


def test_schedules_are_prefects() -> None:
    assert serve._schedule(argparse.Namespace(cron="0 3 * * *")) == {"cron": "0 3 * * *"}
    interval = serve._schedule(argparse.Namespace(cron=None, interval_minutes=90.0))["interval"]
    assert interval.total_seconds() == 5400


@pytest.mark.parametrize("main", [pipeline.main, serve.main])
def test_a_wrong_place_is_one_line(
    main: Callable[[], int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["flow"] + (["--cron", "0 3 * * *"] if main is serve.main else []))
    with pytest.raises(SystemExit) as exit_status:
        main()
    assert exit_status.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_second_to_serve_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with lock_file(tmp_path / "served") as note:
        note.write("http://127.0.0.1:1/api")
        with (
            pytest.raises(InputError, match=r"served from .* already, at http://127\.0\.0\.1:1/api"),
            prefect_server(announce=True),
        ):
            pass


def test_a_configured_server_that_does_not_answer_is_named() -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    silent = {PREFECT_API_URL: "http://127.0.0.1:1/api", PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(silent), pytest.raises(InputError, match="no Prefect server answers at"), prefect_server():
        pass
