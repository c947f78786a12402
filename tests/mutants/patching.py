"""Deliberate breaks as data: a piece of text inside a named symbol, and what replaces it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Break:
    """One deliberate mistake, and the tests that have to notice it."""

    name: str
    """Unique; the report names survivors by it."""
    place: str
    """A dotted module of this project, or a path from the repository root: of a C++ file, or of a package's `__init__.py`."""
    symbol: str
    """Qualified name inside it: `function`, `Class.method`, `outer.inner`, or a module's constant."""
    old: str
    """The text to replace; it occurs exactly once inside the symbol."""
    new: str
    tests: tuple[str, ...]
    """Pytest ids, from the repository root; at least one of them fails with the break and none without it."""
    every: bool = False
    """Whether each of `tests` has to notice by itself: the tests of each caller of what is broken."""

    @property
    def file(self) -> Path:
        """The file to change, relative to the repository root."""
        return Path(self.place) if "/" in self.place else Path(*self.place.split(".")).with_suffix(".py")


class PatchError(Exception):
    """A break does not apply to the code as it is."""


def broken(source: str, change: Break) -> str:
    """Return the file's text with the break in it.

    Raises:
        PatchError: the symbol is missing or ambiguous, its text does not hold `old` exactly once, or the result does not parse.
    """
    begin, end = (_python_symbol if change.file.suffix == ".py" else _cpp_symbol)(source, change)
    body = source[begin:end]
    found = body.count(change.old)
    if found != 1:
        raise PatchError(f"{change.name}: {change.old!r} occurs {found} times in {_where(change)}; it must occur exactly once")
    result = source[:begin] + body.replace(change.old, change.new) + source[end:]
    if change.file.suffix == ".py":
        try:
            ast.parse(result)
        except SyntaxError as error:
            raise PatchError(f"{change.name}: {_where(change)} is no valid Python after the change ({error})") from None
    return result


def missing_tests(root: Path, change: Break) -> list[str]:
    """Return those of the break's tests that are not in the tree at `root`: no such file, or no such function in it."""
    return [test for test in change.tests if not _is_there(root, *test.split("::"))]


def _is_there(root: Path, file: str, *names: str) -> bool:
    if not (root / file).is_file():
        return False
    scope = list(_scope(ast.parse((root / file).read_text(encoding="utf-8"))))
    return all(any(_defines(node, name.partition("[")[0]) for node in scope) for name in names)


def _where(change: Break) -> str:
    return f"{change.symbol} of {change.file}"


def _python_symbol(source: str, change: Break) -> tuple[int, int]:
    """Return where the symbol's text begins and ends, decorators included."""
    node: ast.AST = ast.parse(source)
    for name in change.symbol.split("."):
        matches = [inner for inner in _scope(node) if _defines(inner, name)]
        if len(matches) != 1:
            raise PatchError(f"{change.name}: {name!r} is defined {len(matches)} times in {_where(change)}; it must be once")
        node = matches[0]
    if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign):
        raise PatchError(f"{change.name}: {_where(change)} names no class, function or constant")
    decorators = [] if isinstance(node, ast.Assign | ast.AnnAssign) else node.decorator_list
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: first - 1])), sum(map(len, lines[: node.end_lineno]))


def _scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a module, class or function holds, without what its own classes and functions hold."""
    for inner in ast.iter_child_nodes(node):
        yield inner
        if not isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _scope(inner)


def _defines(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name == name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _cpp_symbol(source: str, change: Break) -> tuple[int, int]:
    """Return where a function's definition begins and ends: its name, its parameters and its braces."""
    definition = re.compile(rf"\b{re.escape(change.symbol)}\s*\([^;{{}}]*\)\s*(const\s*)?\{{")
    matches = list(definition.finditer(source))
    if len(matches) != 1:
        raise PatchError(f"{change.name}: {_where(change)} is defined {len(matches)} times; it must be once")
    depth, end = 1, matches[0].end()
    while depth:
        if end == len(source):
            raise PatchError(f"{change.name}: the braces of {_where(change)} do not match")
        depth += {"{": 1, "}": -1}.get(source[end], 0)
        end += 1
    return matches[0].start(), end
