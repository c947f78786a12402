"""The flow of a promotion without a server: its states and exit statuses; the comparison itself is a script."""

import contextlib
import sys
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from flows import promote


@pytest.mark.parametrize(
    ("status", "line", "name", "message"),
    [
        (0, "promoted: faster", "Promoted", "promoted: faster"),
        (3, "not promoted: slower", "NotPromoted", "not promoted: slower"),
        (2, "error: no such thing", "Refused", "no such thing"),
        (1, "error: no such thing", "Failed", "no such thing"),
    ],
)
def test_state_and_exit_status_say_whether_it_was_promoted(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    status: int,
    line: str,
    name: str,
    message: str,
) -> None:
    script = tmp_path / "command"
    given = tmp_path / "given"
    script.write_text(f"#!/bin/sh\necho $* > {given}\necho working\necho {line}\nexit {status}\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(promote, "_COMMAND", (str(script),))
    with disable_run_logger():
        state = promote.promote.fn("toy", ["--rounds", "4"])
    assert (state.name, state.message) == (name, message)
    assert given.read_text().split() == ["--task", "toy", "--rounds", "4"]
    monkeypatch.setattr(promote, "prefect_server", contextlib.nullcontext)
    monkeypatch.setattr(promote, "promote", lambda *_, **__: state)
    monkeypatch.setattr(sys, "argv", ["promote", "--task", "translation"])
    monkeypatch.chdir(Path(__file__).parents[3])
    capsys.readouterr()
    assert promote.main() == status
    shown = capsys.readouterr()
    assert (shown.out or shown.err).strip() == line


def test_an_unknown_task_is_refused_before_a_server_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    monkeypatch.setattr(sys, "argv", ["promote", "--task", "nothing"])
    with pytest.raises(SystemExit) as ended:
        promote.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: params.yaml has no task 'nothing'")
