"""Commands that the documentation prints, each given to its own parser.

`python -m tests.documented_commands [PAGE ...]` prints a line for each that its parser refuses. It is a process of its own,
since a command may set its process up before it reads its arguments.
"""

import argparse
import contextlib
import io
import re
import runpy
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tasks.command import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")
_COMMAND = re.compile(r"(?:\bpython -m ((?:tasks|flows|tests)[\w.]*)|(?:^|[$&|] )draftline ([a-z]+))((?: [^|<>;#&]*)?)")
_BY_DVC = "dvc repro"
"""What `draftline run` becomes: its arguments are DVC's."""
_VARIABLES = {"$P": "--params params.yaml", "$m": "large", "$d": "aligned"}
"""Shell variables of the printed loops."""


@dataclass(frozen=True)
class Command:
    """A command as a page prints it."""

    page: str
    module: str
    arguments: tuple[str, ...]
    whole: bool
    """Whether it stands in a block to be pasted; in a sentence, required arguments may be left out."""

    def __str__(self) -> str:
        return f"{self.page}: python -m {shlex.join((self.module, *self.arguments))}"


class _ParsedError(BaseException):
    """Ends a command as soon as its arguments are read."""


def commands(pages: Sequence[Path] = PAGES) -> Iterator[Command]:
    """Every command of the project on these pages, and the examples of `draftline`; those with an ellipsis for a part are left
    out."""
    for page in pages:
        text, name = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT) if page.is_relative_to(ROOT) else page)
        for block in _BLOCK.findall(text):
            lines = re.sub(r"\\\n", " ", block).splitlines()
            yield from _found(name, [line for line in lines if line.startswith("$ ")], whole=True)
        sentences = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        yield from _found(name, [re.sub(r"\s+", " ", code) for code in _INLINE.findall(sentences)], whole=False)
    shown = [f"draftline {example}" for one in COMMANDS.values() for example in one.examples]
    yield from _found("tasks/command.py", shown, whole=True)


def _found(page: str, texts: Sequence[str], *, whole: bool) -> Iterator[Command]:
    for text in texts:
        for module, word, rest in _COMMAND.findall(text):
            # No module is named like a word that is no command.
            module = module or (COMMANDS[word].module if word in COMMANDS else f"tasks.{word}")
            for name, value in _VARIABLES.items():
                rest = rest.replace(name, value)
            if module != _BY_DVC and "…" not in module + re.sub(r'"…"', "", rest):
                yield Command(page, module, tuple(shlex.split(rest)), whole)


def refusal(command: Command) -> str | None:
    """What the command's own parser says against the arguments; None where it takes them."""
    said = io.StringIO()
    parse = argparse.ArgumentParser.parse_args

    def parse_and_end(parser: argparse.ArgumentParser, *given: Any, **named: Any) -> NoReturn:
        parse(parser, *given, **named)
        raise _ParsedError

    argparse.ArgumentParser.parse_args = parse_and_end  # type: ignore[method-assign, assignment]
    before, sys.argv = sys.argv, [command.module, *command.arguments]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            runpy.run_module(command.module, run_name="__main__", alter_sys=True)
    except _ParsedError:
        return None
    except SystemExit:
        last = said.getvalue().strip().splitlines()[-1:]
        lacking = "arguments are required" in " ".join(last)
        return None if lacking and not command.whole else " ".join(last)
    except ImportError as error:
        return str(error)
    finally:
        sys.argv, argparse.ArgumentParser.parse_args = before, parse  # type: ignore[method-assign]
    return "it ended without reading its arguments"


def main() -> None:
    """Prints a line for each documented command that its parser refuses."""
    pages = [Path(name) for name in sys.argv[1:]] or PAGES
    distinct = {(one.module, one.arguments, one.whole): one for one in commands(pages)}.values()
    for command in distinct:
        if says := refusal(command):
            print(f"{command}: {says}")


if __name__ == "__main__":
    main()
