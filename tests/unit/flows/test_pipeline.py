"""The parts of the flow without a server: states of stage tasks, artifacts, schedules and refusals."""

import argparse
import dataclasses
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import Flow
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ParameterTypeError
from prefect.logging import disable_run_logger
from prefect.states import Completed, Failed, Pending
from prefect.utilities.callables import parameter_schema

from flows import pipeline, serve
from flows.graph import Stage
from flows.server import lock_file
from flows.stage import PipelineSettings, StageError, StageResult, StageRunner, pipeline_parser
from tasks.errors import InputError
from tasks.settings import read_options
from tests.commands import runner
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


def test_the_table_shows_how_each_stage_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, verdicts = list[Any](), list[Any]()
    monkeypatch.setattr(pipeline, "create_table_artifact", lambda rows, **_: tables.extend(rows))
    monkeypatch.setattr(pipeline, "create_markdown_artifact", lambda text, key, **_: verdicts.append((key, text)))
    (tmp_path / "table.md").write_text("# Deploy it", encoding="utf-8")
    stages = [Stage("report@Multi30k_de", (), (tmp_path / "table.md",)), Stage("b", (), ()), Stage("c", (), ())]
    states: Any = {"report@Multi30k_de": Completed(), "b": Failed(message="why"), "c": Pending(name="NotReady")}
    pipeline._create_artifacts(stages, states, {"report@Multi30k_de": StageResult("report", "ran", 1.26)})
    assert tables == [
        {"stage": "report@Multi30k_de", "state": "ran", "seconds": 1.3},
        {"stage": "b", "state": "failed", "seconds": None},
        {"stage": "c", "state": "not run", "seconds": None},
    ]
    assert verdicts == [("verdict-multi30k-de", "# Deploy it")]


UNSCHEDULED: dict[str, Any] = {"cron": None, "interval_minutes": None}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cron": "0 3 * *"}, "--cron"),
        ({"cron": "at night"}, "--cron"),
        ({"interval_minutes": 0.0}, "--interval-minutes"),
        ({"interval_minutes": float("nan")}, "--interval-minutes"),
        ({}, "no flow has a schedule; give --cron"),
    ],
)
def test_a_wrong_schedule_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        serve._schedules(argparse.Namespace(**(UNSCHEDULED | options)))


def test_schedules_become_arguments_of_prefect() -> None:
    options = UNSCHEDULED | {"cron": "0 3 * * *", "interval_minutes": 0.5}
    assert serve._schedules(argparse.Namespace(**options)) == [
        (serve.nightly, {"cron": "0 3 * * *"}),
        (pipeline.pipeline, {"interval": datetime.timedelta(seconds=30)}),
    ]


@pytest.mark.parametrize("main", [pipeline.main, serve.main])
def test_a_folder_without_dvc_is_refused_in_one_line(
    main: Callable[[], int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = runner(main, monkeypatch, capsys)(*(["--cron", "0 3 * * *"] if main is serve.main else []))
    assert (ended.status, len(ended.said.splitlines())) == (2, 1)


@pytest.mark.parametrize("flow", [pipeline.pipeline, serve.nightly], ids=lambda one: one.name)
def test_how_stages_run_is_a_form_with_descriptions_and_bounds(flow: Flow[..., Any]) -> None:
    form = parameter_schema(flow).definitions["PipelineSettings"]["properties"]
    described = {field.name: field.metadata["description"] for field in dataclasses.fields(PipelineSettings)}
    assert {name: shown["description"] for name, shown in form.items()} == described
    assert flow.validate_parameters({"execution": {"workers": 2}})["execution"] == PipelineSettings(workers=2)
    with pytest.raises(ParameterTypeError, match="workers is 20; it must be at most 16"):
        flow.validate_parameters({"execution": {"workers": 20}})


def test_a_second_run_in_a_repository_is_cancelled(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository({"source": {"cmd": "touch log"}}))
    with lock_file(pipeline.RUN_LOCK):
        pipeline.RUN_LOCK.write_text("of another run")
        state = pipeline.pipeline.fn()
    assert state.is_cancelled()
    assert state.message == "flow run of another run is at work in this repository; wait for it to end"
    assert not Path("log").exists()


def test_a_run_that_is_cancelled_on_the_server_closes_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def read_state(run_id: str) -> StateType:
        asked.append(run_id)
        return StateType.CANCELLING if len(asked) == 2 else StateType.RUNNING

    monkeypatch.setattr(pipeline, "wait", lambda *_, **__: argparse.Namespace(not_done={"a stage"}))
    monkeypatch.setattr(pipeline, "_CANCELLED_POLL_SECONDS", 0.0)
    monkeypatch.setattr(pipeline, "read_state", read_state)
    runner = FakeRunner(StageResult("align", "ran", 1.0))
    with pytest.raises(pipeline.RunCancelledError):
        pipeline._wait([], runner, "run-1")
    assert asked == ["run-1", "run-1"]
    with pytest.raises(StageError, match=r"was stopped$"):
        StageRunner.run(runner, "align", print)


def test_a_run_whose_worker_has_ended_fails_which_makes_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    context = argparse.Namespace(flow_run=argparse.Namespace(deployment_id="a deployment"))
    parents = iter([1, 2])
    monkeypatch.setattr("prefect.context.FlowRunContext.get", lambda: context)
    monkeypatch.setattr("os.getppid", lambda: next(parents))
    monkeypatch.setattr(pipeline, "is_up", lambda _: True)
    monkeypatch.setattr(pipeline, "wait", lambda *_, **__: argparse.Namespace(not_done={"a stage"}))
    runner = FakeRunner(StageResult("align", "ran", 1.0))
    with pytest.raises(RuntimeError, match="has ended"):
        pipeline._wait([], runner, "run-1")
    with pytest.raises(StageError, match=r"was stopped$"):
        StageRunner.run(runner, "align", print)


def test_options_are_the_settings() -> None:
    assert read_options(PipelineSettings, parsed()) == PipelineSettings()
    options = parsed("--targets", "align", "report", "--workers", "2", "--retries", "0", "--timeout-minutes", "1.5")
    assert options.targets == ["align", "report"]
    assert read_options(PipelineSettings, options) == PipelineSettings(workers=2, retries=0, timeout_minutes=1.5)
    with pytest.raises(InputError, match="--timeout-minutes"):
        read_options(PipelineSettings, parsed("--timeout-minutes", "0"))


def parsed(*words: str) -> argparse.Namespace:
    return pipeline_parser("A flow.").parse_args(words)
