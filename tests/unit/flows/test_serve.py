"""What `nightly` does after the stages, which are replaced."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from flows import serve

STAGES = ("prepare@a", "report@a", "prepare@b", "report@b", "report")
UP_TO_DATE: State[None] = Completed(message="5 stages are up to date: 5 ran, 0 cached")
PROMOTED: State[Any] = Completed(name="Promoted", message="promoted: faster")
REFUSED: State[Any] = Completed(name="NotPromoted", message="not promoted: slower")

Nightly = Callable[..., tuple[State[None], list[str]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Nightly:
    """Return a function that runs `nightly` and returns its state and what it did after the stages, in order."""

    def run(stages: State[None], *decisions: State[Any], targets: Sequence[str] = (), promotes: bool = True) -> Any:
        done, waiting = list[str](), list(decisions)

        def promote(task: str, *, return_state: bool) -> State[Any]:
            assert return_state
            done.append(task)
            return waiting.pop(0)

        def read_graph(root: Path, chosen: Sequence[str]) -> list[SimpleNamespace]:
            return [SimpleNamespace(name=name) for name in STAGES if not chosen or name in chosen]

        monkeypatch.setattr(serve, "in_workspace", lambda work: work(Path(), "run"))
        monkeypatch.setattr(serve, "run_graph", lambda *_: stages)
        monkeypatch.setattr(serve, "send_records", lambda *_, **__: done.append("records"))
        monkeypatch.setattr(serve, "promote", promote)
        monkeypatch.setattr(serve, "read_graph", read_graph)
        return serve.nightly.fn(list(targets) or None, promotes=promotes), done

    return run


def test_each_report_offers_its_pair_after_the_records_are_sent(run: Nightly) -> None:
    state, done = run(UP_TO_DATE, PROMOTED, REFUSED)
    assert done == ["records", "a", "b"]
    assert state.is_completed()
    assert state.message == f"{UP_TO_DATE.message}; a: promoted: faster; b: not promoted: slower"
    assert run(UP_TO_DATE, PROMOTED, targets=["report@b"])[1] == ["records", "b"]
    assert run(UP_TO_DATE, targets=["prepare@a", "report"])[1] == ["records"]
    assert run(UP_TO_DATE, promotes=False) == (UP_TO_DATE, ["records"])


def test_a_comparison_that_fails_fails_the_run_and_spares_the_other_tasks(run: Nightly) -> None:
    state, done = run(UP_TO_DATE, Failed(name="Refused", message="MLflow does not open\nmore"), PROMOTED)
    assert (state.is_failed(), done) == (True, ["records", "a", "b"])
    assert state.message == f"{UP_TO_DATE.message}; a: MLflow does not open; b: promoted: faster"


@pytest.mark.parametrize("stages", [Failed(message="stage 'report@a' failed"), Cancelled(message="cancelled")])
def test_nothing_is_offered_unless_all_stages_are_up_to_date(run: Nightly, stages: State[None]) -> None:
    assert run(stages) == (stages, ["records"])
