"""What `nightly` does after the stages; the stages, the sending and the comparison are replaced."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from flows import nightly, serve
from flows.settings import PipelineSettings

STAGES = ("prepare@a", "report@a", "prepare@b", "report@b", "report")
UP_TO_DATE: State[None] = Completed(message="5 stages are up to date: 5 ran, 0 cached")
PROMOTED: State[Any] = Completed(name="Promoted", message="promoted: faster")
REFUSED: State[Any] = Completed(name="NotPromoted", message="not promoted: slower")

Nightly = Callable[..., tuple[State[None], list[str]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Nightly:
    """Return a function that runs the flow and returns its state and what it did after the stages, in order."""

    def run(stages: State[None], *decisions: State[Any], targets: Sequence[str] = (), promotes: bool = True) -> Any:
        done, waiting = list[str](), list(decisions)

        def promote(task: str, *, return_state: bool) -> State[Any]:
            assert return_state
            done.append(task)
            return waiting.pop(0)

        def read_graph(root: Path, chosen: Sequence[str]) -> list[SimpleNamespace]:
            return [SimpleNamespace(name=name) for name in STAGES if not chosen or name in chosen]

        monkeypatch.setattr(nightly, "in_workspace", lambda work: work(Path(), "run"))
        monkeypatch.setattr(nightly, "run_graph", lambda *_: stages)
        monkeypatch.setattr(nightly, "send_records", lambda *_, **__: done.append("records"))
        monkeypatch.setattr(nightly, "promote", promote)
        monkeypatch.setattr(nightly, "read_graph", read_graph)
        return nightly.nightly.fn(list(targets) or None, promotes=promotes), done

    return run


def test_each_report_offers_its_pair_after_the_records_are_sent(run: Nightly) -> None:
    state, done = run(UP_TO_DATE, PROMOTED, REFUSED)
    assert done == ["records", "a", "b"]
    assert state.is_completed()
    assert state.message == f"{UP_TO_DATE.message}; a: promoted: faster; b: not promoted: slower"


def test_only_reports_among_the_targets_are_offered(run: Nightly) -> None:
    assert run(UP_TO_DATE, PROMOTED, targets=["report@b"])[1] == ["records", "b"]
    assert run(UP_TO_DATE, targets=["prepare@a", "report"])[1] == ["records"]


def test_a_comparison_that_fails_fails_the_run_and_spares_the_other_tasks(run: Nightly) -> None:
    state, done = run(UP_TO_DATE, Failed(name="Refused", message="MLflow does not open\nmore"), PROMOTED)
    assert (state.is_failed(), done) == (True, ["records", "a", "b"])
    assert state.message == f"{UP_TO_DATE.message}; a: MLflow does not open; b: promoted: faster"


@pytest.mark.parametrize("stages", [Failed(message="stage 'report@a' failed"), Cancelled(message="cancelled")])
def test_nothing_is_offered_unless_all_stages_are_up_to_date(run: Nightly, stages: State[None]) -> None:
    assert run(stages) == (stages, ["records"])


def test_the_comparison_can_be_left_out(run: Nightly) -> None:
    assert run(UP_TO_DATE, promotes=False) == (UP_TO_DATE, ["records"])
    assert serve._parser().parse_args([]).promotes
    assert not serve._parser().parse_args(["--no-promotion"]).promotes


@pytest.mark.parametrize("options", [[], ["--no-promotion"]])
def test_the_command_hands_its_option_to_the_flow(options: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from contextlib import nullcontext

    from flows import pipeline

    given: dict[str, Any] = {}

    def flow(targets: list[str] | None, **parameters: Any) -> State[None]:
        given.update(parameters, targets=targets)
        return UP_TO_DATE

    flow.name = "nightly"  # type: ignore[attr-defined]  # as of a flow
    monkeypatch.setattr(nightly, "nightly", flow)
    monkeypatch.setattr(pipeline, "prefect_server", nullcontext)
    monkeypatch.setattr(pipeline, "read_graph", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["nightly", "--workers", "2", *options])
    assert nightly.main() == 0
    assert given == {
        "targets": None,
        "execution": PipelineSettings(workers=2),
        "promotes": not options,
        "return_state": True,
    }
