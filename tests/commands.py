"""Commands of this project, called as their modules call them, and git's."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tasks.errors import stage


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    printed: str
    said: str
    """What it wrote to standard error."""


Run = Callable[..., Ended]
"""Calls a command with these words."""


def runner(main: Callable[[], int | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that calls a command's `main` with words of the command line."""

    def run(*words: object) -> Ended:
        monkeypatch.setattr(sys, "argv", [main.__module__, *map(str, words)])
        try:
            with stage():
                status = main() or 0
        except SystemExit as end:
            status = int(end.code or 0)
        return Ended(status, *capsys.readouterr())

    return run


def git(root: Path, *arguments: str) -> str:
    """Run git with an identity, and return its output."""
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    return subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout
