"""The budgets of docs/architecture.md against the tree: code lines, without blank lines, comments and docstrings, and files."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([\w/*.]+)` \| ([\d,]+) \| (\d+) \|$", re.MULTILINE)
LONGEST = 600
"""Lines of a file."""
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def budgets() -> dict[str, tuple[int, int]]:
    """Code lines and files of each package."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return {name: (int(lines.replace(",", "")), int(files)) for name, lines, files in ROW.findall(page)}


def files_of(package: str) -> list[Path]:
    """The modules in a package and below it; `tasks/*.py` are those of one folder."""
    folder = ROOT / package.removesuffix("/*.py")
    return sorted(folder.glob("*.py") if package.endswith("*.py") else folder.rglob("*.py"))


def code_lines(source: str) -> int:
    documented = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    written = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(written - documented)


def test_the_budgets_name_every_file_once() -> None:
    named = [file for package in budgets() for file in files_of(package)]
    tracked = [file for top in ("flows", "tasks") for file in (ROOT / top).rglob("*.py")]
    assert sorted(named) == sorted(tracked)


@pytest.mark.parametrize("package", budgets())
def test_a_package_keeps_its_budget(package: str) -> None:
    """A change that needs more room raises the budget in the same commit and says why."""
    sources = [file.read_text(encoding="utf-8") for file in files_of(package)]
    used = sum(map(code_lines, sources)), len(sources)
    lines, files = budgets()[package]
    assert used[0] <= lines and used[1] <= files, f"{package} has {used[0]} code lines in {used[1]} files"


def test_no_file_is_long() -> None:
    files = [file for top in ("flows", "tasks") for file in (ROOT / top).rglob("*.py")]
    assert [file for file in files if len(file.read_text(encoding="utf-8").splitlines()) > LONGEST] == []
