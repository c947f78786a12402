"""What a command says: messages and progress on standard error, through `logging`; only results are printed on standard output.

Write `log.info("%s: done", name)` instead of printing, and draw loops with `progress`. Every command takes its parser from
`command_parser`, which reads `--quiet` and `--verbose`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")

log = logging.getLogger("draftline")
_PREFIXES = {logging.WARNING: "warning: ", logging.ERROR: "error: "}
_USER_AND_PASSWORD = re.compile(r"//[^/@\s]+@")
_SECRET_VALUE = re.compile(r"([?&][\w-]*(?:token|key|password|secret|signature)=)[^&\s'\"]+", re.IGNORECASE)
_OUTPUT, _ERRORS = 1, 2
"""The descriptors of standard output and standard error."""
_SHORT = 30.0
"""Seconds: where standard error is not a terminal, what takes no longer shows no progress."""


def without_secrets(text: str) -> str:
    """Return text in which the URLs have no user, no password, and no value of a parameter that is named for a secret."""
    return _SECRET_VALUE.sub(r"\1***", _USER_AND_PASSWORD.sub("//", text))


def printable(text: str) -> str:
    """Return text in which control characters and halves of surrogate pairs are escaped: a terminal would obey the former."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


class _Lines(logging.Formatter):
    """A message in one line behind its level; in verbose output also behind its time and module."""

    def format(self, record: logging.LogRecord) -> str:
        line = _PREFIXES.get(record.levelno, "") + printable(without_secrets(super().format(record)))
        if log.level > logging.DEBUG:
            return line
        return f"{self.formatTime(record, '%H:%M:%S')} {record.module}: {line}"


class _StandardError(logging.Handler):
    """Writes to what standard error is now, above any bars."""

    def emit(self, record: logging.LogRecord) -> None:
        # tqdm is imported where something is drawn, so that the doctor starts in a Python without any package.
        drawn = sys.modules.get("tqdm")
        write = print if drawn is None else drawn.tqdm.write
        write(self.format(record), file=sys.stderr)
        sys.stderr.flush()


def set_up(level: int = logging.INFO) -> None:
    """Show the messages of this process from `level` on; commands call it before anything else."""
    log.setLevel(level)
    log.propagate = False
    if not log.handlers:
        handler = _StandardError()
        handler.setFormatter(_Lines())
        log.addHandler(handler)


class _SetLevel(argparse.Action):
    """Sets the level when the argument is read, so that a command has nothing to do for it."""

    def __call__(self, *_: object) -> None:
        set_up(self.const)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say in one line what is wrong with the words of a command, without the usage of all of them."""
        log.error("%s; %s --help shows how", " ".join(message.split()), self.prog)
        raise SystemExit(2)


def command_parser(description: str | None, *words: str) -> argparse.ArgumentParser:
    """Return the parser of the running command, with `--quiet` and `--verbose`, which take effect by themselves.

    Args:
        description: The module's docstring.
        words: What follows the module in the command's name.
    """
    # Before Python 3.14, argparse would name the module's file.
    spec = sys.modules["__main__"].__spec__
    module = [] if spec is None else [f"python -m {spec.name.removesuffix('.__main__')}"]
    if front := os.environ.get("DRAFTLINE_COMMAND"):
        module = [front]
    parser = _Parser(
        prog=" ".join([*module, *words]) or None, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    group = parser.add_mutually_exclusive_group()
    for name, level, shown in (
        ("--quiet", logging.WARNING, "show warnings and errors only"),
        ("--verbose", logging.DEBUG, "show details too, and the time and the module of each message"),
    ):
        group.add_argument(name, action=_SetLevel, nargs=0, const=level, default=argparse.SUPPRESS, help=shown)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, by which a command prints one line for programs (`answer`)."""
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead")


def answer(arguments: argparse.Namespace, text: str, **values: Any) -> None:
    """Print what a command has to say: with `--json` its values as a line of JSON, else the text."""
    print(json.dumps(values, ensure_ascii=False) if arguments.json else text)


def print_verdicts(tables: Iterable[Path], status: int, *, as_json: bool) -> None:
    """Print the headlines of reports, and where each whole report is.

    Args:
        tables: Each the `table.md` of a report, which has the headline below its title; those that are missing are left out.
        status: The exit status of what made them, for JSON.
        as_json: Print one line of JSON instead.
    """
    found = []
    for table in tables:
        written = table.read_text(encoding="utf-8") if table.is_file() else ""
        for headline in written.split("\n\n")[1:2]:
            found.append({"headline": headline, "report": os.path.relpath(table.with_name("report.html"))})
    if as_json:
        print(json.dumps({"status": status, "reports": found}, ensure_ascii=False))
        return
    for one in found:
        print(f"\n{one['headline']}\nThe whole report: {one['report']}")


@contextlib.contextmanager
def output_apart(needed: bool) -> Iterator[None]:
    """Send what this process and its children print to standard error, where standard output is for one line of JSON."""
    if not needed:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(_OUTPUT)
    os.dup2(_ERRORS, _OUTPUT)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, _OUTPUT)
        os.close(kept)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]


def aligned_columns(rows: list[list[str]]) -> list[str]:
    """Rows of equally many cells as lines of text, columns aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def quieten_transformers() -> None:
    """Leave out the bars and notes of `transformers`."""
    from transformers.utils import logging as notes

    notes.set_verbosity_error()
    notes.disable_progress_bar()


@functools.cache
def _progress_lines() -> type[tqdm[Any]]:
    """Return bars in whole lines, for a standard error that is no terminal."""
    from tqdm import tqdm

    class ProgressLines(tqdm):  # type: ignore[type-arg]  # tqdm is no generic when it runs
        def __init__(self, iterable: Iterable[Any] | None, **options: Any) -> None:
            line = "{desc}: {n_fmt} of {total_fmt} {unit}s in {elapsed}, {remaining} left{postfix}"
            self._tenth = 0
            super().__init__(iterable, **{"mininterval": 1.0, **options, "bar_format": line, "file": io.StringIO()})

        def display(self, msg: str | None = None, pos: int | None = None) -> None:  # noqa: ARG002 (tqdm calls it with both)
            """Log the state after each tenth, but nothing of what takes a short time."""
            tenth = int(10 * self.n / self.total) if self.total else 0
            if self.format_dict["elapsed"] >= _SHORT and tenth > self._tenth:
                self._tenth = tenth
                log.info("%s", self)

    return ProgressLines


@overload
def progress(iterable: Iterable[T], **options: Any) -> tqdm[T]: ...
@overload
def progress(*, total: int, **options: Any) -> tqdm[None]: ...
def progress(iterable: Iterable[Any] | None = None, **options: Any) -> tqdm[Any]:
    """Return a bar of `tqdm` on a terminal; elsewhere, as in a log file, one that logs a line at each tenth.

    Args:
        iterable: What a loop runs over; None where the caller counts with `update`.
        options: What `tqdm` takes. With `--quiet`, nothing is shown.
    """
    from tqdm import tqdm

    if not log.isEnabledFor(logging.INFO):
        options["disable"] = True
    return (tqdm if sys.stderr.isatty() else _progress_lines())(iterable, **options)
