"""The flow of a promotion without a server: its states and exit statuses; the comparison itself is a script."""

import contextlib
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from flows import promote
from tests.commands import runner


@pytest.mark.parametrize(
    ("status", "line", "name"),
    [
        (0, "promoted: faster", "Promoted"),
        (3, "not promoted: slower", "NotPromoted"),
        (2, "error: no such thing", "Refused"),
        (1, "error: no such thing", "Failed"),
    ],
)
def test_state_and_exit_status_say_whether_it_was_promoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, line: str, name: str
) -> None:
    script = tmp_path / "command"
    given = tmp_path / "given"
    script.write_text(f"#!/bin/sh\necho $* > {given}\necho working\necho {line}\nexit {status}\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(promote, "_COMMAND", (str(script),))
    with disable_run_logger():
        state = promote.promote.fn("toy", ["--rounds", "4"])
    assert (state.name, state.message) == (name, line.removeprefix("error: "))
    assert given.read_text().split() == ["--task", "toy", "--rounds", "4"]
    monkeypatch.setattr(promote, "prefect_server", contextlib.nullcontext)
    monkeypatch.setattr(promote, "promote", lambda *_, **__: state)
    monkeypatch.chdir(Path(__file__).parents[3])
    capsys.readouterr()
    ended = runner(promote.main, monkeypatch, capsys)("--task", "translation")
    assert (ended.status, (ended.printed or ended.said).strip()) == (status, line)


def test_an_unknown_task_starts_no_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    ended = runner(promote.main, monkeypatch, capsys)("--task", "nothing")
    assert ended.status == 2 and ended.said.startswith("error: params.yaml has no task 'nothing'")
