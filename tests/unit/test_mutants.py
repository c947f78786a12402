"""The tool that breaks the code on purpose: its breaks apply, and it names what survives."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.mutants.__main__ import check
from tests.mutants.breaks import BREAKS
from tests.mutants.patching import Break


def test_every_break_applies_to_the_code_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(Path(__file__).parents[2], BREAKS, only_list=True) == 0, capsys.readouterr().err


LIMIT_TEST, FOUR_TEST = (f"tests/test_toy.py::test_{name}" for name in ("the_limit_is_over", "four_is_over"))
TOY_BREAKS = [
    Break(name, "toy", "over", old, new, tests, every=True)
    for name, old, new, tests in (
        ("noticed", ">= 3", "> 3", (LIMIT_TEST,)),
        ("unnoticed", ">= 3", "== 3", (LIMIT_TEST,)),
        ("uncollected", "over", "under", (LIMIT_TEST,)),
        ("half-noticed", ">= 3", "> 3", (LIMIT_TEST, FOUR_TEST)),
    )
]
TOY_TEST = """
import subprocess, sys
from toy import over


def test_the_limit_is_over():
    assert over(3)
    assert subprocess.run([sys.executable, "-c", "import toy; assert toy.over(3)"]).returncode == 0


def test_four_is_over():
    assert over(4)
"""


def test_survivors_are_named_and_end_in_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests that cannot be collected have not noticed a break."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (tmp_path / "toy.py").write_text("def over(length):\n    return length >= 3\n")
    (tmp_path / "tests" / "test_toy.py").write_text(TOY_TEST)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    assert check(tmp_path, TOY_BREAKS) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    survivors = ["half-noticed", "uncollected", "unnoticed"]
    assert last == {"mutants": 4, "killed": 1, "survived": 3, "survivors": survivors}
    assert (tmp_path / "toy.py").read_text() == "def over(length):\n    return length >= 3\n"
