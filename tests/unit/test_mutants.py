"""The tool that breaks the code on purpose: it refuses what does not apply, and names what survives."""

import json
import subprocess
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


def test_every_break_changes_something_that_tests_must_notice() -> None:
    assert len(BREAKS) >= 42 and all(one.tests and one.old != one.new for one in BREAKS)


def test_every_break_applies_to_the_code_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(Path(__file__).parents[2], BREAKS, only_list=True) == 0, capsys.readouterr().err


LIMIT_TEST, FOUR_TEST = (f"tests/test_toy.py::test_{name}" for name in ("the_limit_is_over", "four_is_over"))
TOY_BREAKS = {
    name: Break(name, "toy", "over", old, new, tests, every=True)
    for name, old, new, tests in (
        ("noticed", ">= 3", "> 3", (LIMIT_TEST,)),
        ("unnoticed", ">= 3", "== 3", (LIMIT_TEST,)),
        ("uncollected", "over", "under", (LIMIT_TEST,)),
        ("half-noticed", ">= 3", "> 3", (LIMIT_TEST, FOUR_TEST)),
        ("noticed-twice", ">= 3", "> 4", (LIMIT_TEST, FOUR_TEST)),
    )
}
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
    ("names", "survivors"),
    [
        (["noticed", "noticed-twice"], []),
        (["noticed", "unnoticed", "uncollected", "half-noticed"], ["half-noticed", "uncollected", "unnoticed"]),
    ],
)
def test_a_survivor_is_named_and_ends_in_status_1(
    tmp_path: Path, names: list[str], survivors: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests that cannot be collected have not noticed a break."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    (tmp_path / "toy.py").write_text("def over(length):\n    return length >= 3\n")
    (tmp_path / "tests" / "test_toy.py").write_text(TOY_TEST)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    assert check(tmp_path, [TOY_BREAKS[name] for name in names]) == (1 if survivors else 0)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    killed = len(names) - len(survivors)
    assert last == {"mutants": len(names), "killed": killed, "survived": len(survivors), "survivors": survivors}
    assert (tmp_path / "toy.py").read_text() == "def over(length):\n    return length >= 3\n"
