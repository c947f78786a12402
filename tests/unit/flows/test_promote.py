"""The flow of a promotion without a server: its states, artifact and exit statuses; the comparison itself is replaced."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows import promote

FOUND = {"line": "promoted: faster", "markdown": "# toy"}


class Command:
    """Stands for `python -m tasks.promote`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int, last: str = FOUND["line"]) -> None:
        self.given: list[str] = []
        self.artifacts: list[tuple[str, str]] = []
        self._status, self._last = status, last
        monkeypatch.setattr(promote, "_run", self.run)
        monkeypatch.setattr(
            promote, "create_markdown_artifact", lambda text, key, description: self.artifacts.append((key, text))
        )

    def run(self, command: list[str]) -> tuple[int, str]:
        self.given = command[3:]
        if self._status in (0, 3):
            Path(command[command.index("--json") + 1]).write_text(json.dumps(FOUND), encoding="utf-8")
        return self._status, self._last


@pytest.mark.parametrize(("status", "name"), [(0, "Promoted"), (3, "NotPromoted")])
def test_the_state_says_whether_it_was_promoted(monkeypatch: pytest.MonkeyPatch, status: int, name: str) -> None:
    command = Command(monkeypatch, status)
    state = promote.promote.fn("Toy_1", rounds=4, again=True)
    assert (state.name, state.message, state.is_completed()) == (name, FOUND["line"], True)
    assert command.artifacts == [("promotion-toy-1", "# toy")]
    assert command.given[:4] == ["--task", "Toy_1", "--params", "params.yaml"]
    assert command.given[6:] == ["--rounds", "4", "--again"]


@pytest.mark.parametrize(("status", "name"), [(2, "Refused"), (1, "Failed"), (-9, "Failed")])
def test_a_comparison_that_fails_leaves_no_artifact(monkeypatch: pytest.MonkeyPatch, status: int, name: str) -> None:
    command = Command(monkeypatch, status, "error: no such thing")
    state = promote.promote.fn("toy", roll_back=True)
    assert (state.name, state.message, state.is_failed()) == (name, "no such thing", True)
    assert command.given[-1] == "--roll-back"
    assert command.artifacts == []


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (Completed(name="Promoted", message="promoted: x"), 0),
        (Completed(name="NotPromoted", message="not promoted: x"), 3),
        (Failed(name="Refused", message="x"), 2),
        (Failed(message="x"), 1),
    ],
)
def test_the_exit_status_is_that_of_the_comparison(
    state: State[Any], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(promote, "prefect_server", contextlib.nullcontext)
    monkeypatch.setattr(promote, "promote", lambda *_, **__: state)
    monkeypatch.setattr(sys, "argv", ["promote", "--task", "translation"])
    monkeypatch.chdir(Path(__file__).parents[3])
    assert promote.main() == status
    shown = capsys.readouterr()
    assert (shown.out or shown.err).strip() == (state.message if status in (0, 3) else "error: x")


def test_an_unknown_task_is_refused_before_a_server_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    monkeypatch.setattr(sys, "argv", ["promote", "--task", "nothing"])
    with pytest.raises(SystemExit) as ended:
        promote.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: params.yaml has no task 'nothing'")
