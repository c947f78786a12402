"""A lock file has one owner at a time, and the note of an owner that died is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flows.lockfile import AlreadyLockedError, lock_file

ROOT = Path(__file__).parents[3]


def test_a_second_owner_is_refused_with_the_note_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "new" / "held"
    with lock_file(path) as held:
        held.write("a longer note")
        held.write("run 1")
        with pytest.raises(AlreadyLockedError) as error, lock_file(path):
            pass
        assert error.value.note == "run 1"
    with lock_file(path) as held:
        assert held.stale_note == ""


def test_an_error_releases_the_file(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lock_file(tmp_path / "held") as held:
        held.write("run 1")
        raise KeyError
    with lock_file(tmp_path / "held") as held:
        assert held.stale_note == ""


def test_the_note_of_a_killed_owner_is_found(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from flows.lockfile import lock_file\n"
        "with lock_file(Path(sys.argv[1])) as held:\n    held.write('run 1'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "held")], cwd=ROOT, check=False)
    with lock_file(tmp_path / "held") as held:
        assert held.stale_note == "run 1"
