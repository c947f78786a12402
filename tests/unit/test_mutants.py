"""The tool that breaks the code on purpose: it refuses what does not apply, and names what survives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import check
from tests.mutants.breaks import BREAKS
from tests.mutants.patching import Break, PatchError, broken

PYTHON = """\
LIMIT = 3


class Row:
    @property
    def over(self) -> bool:
        return self.length >= LIMIT


def over(length: int) -> bool:
    def inner() -> bool:
        return length >= LIMIT

    return inner()
"""
CPP = """\
struct Text { int64_t count; };
int64_t later(const Text& text);

int64_t later(const Text& text) {
    if (text.count) { return 2; }
    return 1;
}
int64_t other(const Text& text) { return later(text) + 1; }
"""


def change(symbol: str, old: str, new: str = "7", place: str = "toy") -> Break:
    return Break("name", place, symbol, old, new, ("tests/test_toy.py",))


@pytest.mark.parametrize(
    ("symbol", "old", "new", "line"),
    [
        ("over.inner", ">= LIMIT", "> LIMIT", "        return length > LIMIT"),
        ("Row.over", ">= LIMIT", "> LIMIT", "        return self.length > LIMIT"),
        ("LIMIT", "3", "4", "LIMIT = 4"),
    ],
)
def test_only_the_named_symbol_changes(symbol: str, old: str, new: str, line: str) -> None:
    after = broken(PYTHON, change(symbol, old, new)).splitlines()
    assert [one for one, known in zip(after, PYTHON.splitlines(), strict=True) if one != known] == [line]


@pytest.mark.parametrize(
    ("symbol", "old", "new", "reason"),
    [
        ("over.inner", "length > LIMIT", "", "occurs 0 times"),
        ("over", "length", "", "occurs 2 times"),
        ("over.absent", "length", "", "defined 0 times"),
        ("over.inner", ">= LIMIT", ">= (", "no valid Python"),
    ],
)
def test_a_break_that_does_not_apply_is_refused(symbol: str, old: str, new: str, reason: str) -> None:
    with pytest.raises(PatchError, match=f"^name: .*{reason}"):
        broken(PYTHON, change(symbol, old, new))


def test_a_function_of_the_kernel_is_found_by_its_definition() -> None:
    assert broken(CPP, change("later", "2", place="kernel/toy.h")) == CPP.replace("return 2", "return 7")
    assert broken(CPP, change("other", "1", place="kernel/toy.h")) == CPP.replace("+ 1", "+ 7")
    with pytest.raises(PatchError, match="occurs 2 times"):
        broken(CPP, change("later", "return", place="kernel/toy.h"))


def test_every_break_is_named_once_and_says_what_must_notice_it() -> None:
    assert len({one.name for one in BREAKS}) == len(BREAKS) >= 42
    for one in BREAKS:
        assert one.old != one.new
        assert one.tests and all(test.startswith("tests/") for test in one.tests)


def test_every_break_applies_to_the_code_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(Path(__file__).parents[2], BREAKS, only_list=True) == 0, capsys.readouterr().err


RUN = """
import sys
from pathlib import Path
from tests.mutants.__main__ import check
from tests.mutants.patching import Break
known = {
    "noticed": ("over", ">= 3", "> 3", "test_the_limit_is_over"),
    "unnoticed": ("over", ">= 3", "== 3", "test_the_limit_is_over"),
    "uncollected": ("over", "over", "under", "test_the_limit_is_over"),
    "half-noticed": ("over", ">= 3", "> 3", "test_the_limit_is_over test_four_is_over"),
    "noticed-twice": ("over", ">= 3", "> 4", "test_the_limit_is_over test_four_is_over"),
}
breaks = [
    Break(name, "toy", symbol, old, new, tuple("tests/test_toy.py::" + test for test in tests.split()), every=True)
    for name, (symbol, old, new, tests) in known.items() if name in sys.argv
]
sys.exit(check(Path.cwd() / "toy", breaks))
"""
TOY_TEST = """
import subprocess, sys
from toy import over


def test_the_limit_is_over():
    assert over(3)
    assert subprocess.run([sys.executable, "-c", "import toy; assert toy.over(3)"]).returncode == 0


def test_four_is_over():
    assert over(4)
"""


@pytest.mark.parametrize(
    ("names", "status", "survivors"),
    [
        (["noticed", "noticed-twice"], 0, []),
        (["noticed", "unnoticed", "uncollected", "half-noticed"], 1, ["half-noticed", "uncollected", "unnoticed"]),
    ],
)
def test_a_survivor_is_named_and_ends_in_status_1(tmp_path: Path, names: list[str], status: int, survivors: list[str]) -> None:
    """Tests that cannot be collected have not noticed a break."""
    toy = tmp_path / "toy"
    (toy / "tests").mkdir(parents=True)
    (toy / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (toy / "toy.py").write_text("def over(length):\n    return length >= 3\n")
    (toy / "tests" / "test_toy.py").write_text(TOY_TEST)
    subprocess.run(["git", "init", "--quiet"], cwd=toy, check=True)
    done = subprocess.run(
        [sys.executable, "-c", RUN, *names],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["mutants"], last["killed"], last["survived"]) == (len(names), len(names) - len(survivors), len(survivors))
    assert last["survivors"] == survivors
    assert (toy / "toy.py").read_text() == "def over(length):\n    return length >= 3\n"
