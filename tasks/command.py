"""The command `draftline`: each of its words is a module of this project, started as `python -m` starts it."""

from __future__ import annotations

import contextlib
import logging
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import NoReturn

from tasks.errors import STATUS_BAD_INPUT, InputError, causes, one_line_errors


@dataclass(frozen=True)
class Command:
    """A word behind `draftline`."""

    module: str
    words: str
    """What it is for."""
    examples: tuple[str, ...]
    """What follows `draftline`, which `--help` shows."""


COMMANDS = {
    "init": Command(
        "tasks.init",
        "add a task for your own files to params.yaml",
        ("init chat messages.csv", "init deen train.de train.en", "init news news.jsonl --source article --target summary"),
    ),
    "check": Command(
        "tasks.config",
        "check params.yaml; --table, --presets and --methods list what it may hold",
        ("check", "check --methods"),
    ),
    "run": Command(
        "dvc repro",
        "bring a task's report up to date (run NAME), or all active tasks'",
        ("run chat", "run --force align@chat", "run chat --json"),
    ),
    "flow": Command(
        "flows.pipeline", "the same under Prefect, with stages side by side", ("flow", "flow --targets report@chat --workers 2")
    ),
    "worth": Command(
        "tasks.worth",
        "forecast what a drafter would bring a large model, before training one",
        ("worth models/chat/large models/chat/small --texts texts.txt", "worth models/chat/large --texts texts.txt --count 20"),
    ),
    "curve": Command(
        "tasks.learning_curve", "forecast what more calibration texts would bring the aligned drafter", ("curve --task chat",)
    ),
    "generate": Command(
        "tasks.generate",
        "decode texts with a finished pair",
        ('generate --task chat "Where is the tea?"', "generate --task chat --file texts.txt --json"),
    ),
    "serve": Command(
        "tasks.serve",
        "put a pair behind an OpenAI-style endpoint",
        ("serve --task chat --port 8000", "serve --pair results/chat/pair --json"),
    ),
    "export": Command(
        "tasks.export", "write a pair in the form of another engine", ("export results/chat/pair --to transformers exported",)
    ),
    "verify": Command(
        "tasks.verify",
        "check a pair's certificate in another engine",
        ("verify results/chat/pair --engine transformers", "verify results/chat/pair --large models/newer --bound 0.02"),
    ),
    "compare": Command(
        "tasks.compare",
        "compare two results: what differs beyond noise",
        ("compare results/chat results/other", "compare HEAD~1:results/chat results/chat"),
    ),
    "promote": Command(
        "tasks.promote",
        "make a new pair the champion where it is better",
        ("promote --task chat", "promote --task chat --again"),
    ),
    "presets": Command(
        "tasks.presets",
        "list the papers' experiments, or add one to params.yaml",
        ("presets", "presets add xsum --paper bild --scale day", "presets plan xsum-bild"),
    ),
    "send": Command("tasks.tracking", "send the runs that wait for MLflow", ("send",)),
    "bench": Command(
        "tasks.bench",
        "time decoding on this machine",
        ("bench decoding --quick", "bench gpu --quick"),
    ),
    "doctor": Command("tasks.doctor", "check this machine: what is missing for what", ("doctor", "doctor --json")),
}
_NEEDS = {"run": "dvc", "flow": "prefect", "serve": "uvicorn", "promote": "mlflow", "send": "mlflow"}
"""Packages that a plain `pip install` of this one leaves out."""
_RUN = """\
usage: draftline run [NAME | STAGE@NAME …] [option of dvc repro …]

Bring the report of a task up to date, or without a name those of all active tasks. What is up to date is not run again,
and an interrupted run goes on where it was. DVC runs the stages; of its options (dvc repro --help lists all):

  -f, --force        run stages that are up to date too
  -s, --single-item  run the named stages alone, without those that they need

--json prints one line for programs, at the end; what DVC and the stages print then goes to standard error."""
_FIXES = {
    "DependencyDoesNotExistError": "put it there, or correct its path under active in params.yaml",
    "StageNotFound": "dvc stage list shows the stages",
    "NotDvcRepoError": "go to the folder of a project",
}
"""What to do about bad input that DVC finds itself, by the name of its error."""
_COMPLETION = 'complete -o default -W "{words}" draftline'


def usage() -> str:
    """What `draftline --help` prints."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: draftline COMMAND …, in the folder of a project; draftline COMMAND --help says more\n",
            *(f"  {name.ljust(width)}  {one.words}" for name, one in COMMANDS.items()),
            examples("init", "run", "generate", "serve"),
            "\nCompletion in bash: source <(draftline --completion)",
        ]
    )


def examples(*names: str) -> str:
    """The first example of each of several commands, or all of one."""
    found = [one for name in names for one in COMMANDS[name].examples[: 1 if len(names) > 1 else None]]
    return "\n  draftline ".join(["\nexamples:", *found])


def command(words: Sequence[str]) -> list[str]:
    """What runs for the words behind `draftline`, of which the first is one of `COMMANDS`; for `run` the words behind `dvc`."""
    name, *rest = words
    if name == "run":
        # A name of a task stands for its last stage; options and stages are DVC's.
        return ["repro", *(word if word.startswith("-") or "@" in word else f"report@{word}" for word in rest)]
    return [sys.executable, "-m", COMMANDS[name].module, *rest]


def main() -> int:
    """Become the command that the first word names; 2 where there is no such command."""
    with one_line_errors():
        return _run(sys.argv[1:])


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--completion":
        print(_COMPLETION.format(words=" ".join(COMMANDS)))
        return 0
    if words[0] not in COMMANDS:
        print(f"error: there is no command {words[0]!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    if (package := _NEEDS.get(words[0])) and find_spec(package) is None:
        fix = "run make setup, or pip install -e '.[orchestration,serve,train]'"
        raise InputError(f"draftline {words[0]} needs {package}; {fix}")
    # DVC starts stages by the name `python`.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])  # noqa: PTH120
    os.environ["DRAFTLINE_COMMAND"] = f"draftline {words[0]}"  # which its help shows
    if not {"-h", "--help"}.isdisjoint(words):
        return _help(words)
    return _repro(command(words)) if words[0] == "run" else _become(words)


def _help(words: Sequence[str]) -> int:
    """Let a command print its help, and its examples below."""
    if words[0] == "run":
        print(_RUN)
    else:
        sys.argv = [*words]
        with contextlib.suppress(SystemExit):
            runpy.run_module(COMMANDS[words[0]].module, run_name="__main__", alter_sys=True)
    print(examples(words[0]))
    return 0


def _repro(words: list[str]) -> int:
    """Let DVC run stages; then print the verdicts of the named reports once more, below DVC's own last lines."""
    as_json, words = "--json" in words, [word for word in words if word != "--json"]
    # pydantic and DVC would make every other command start later.
    from dvc.cli import parse_args
    from dvc.cli.parser import DvcParser

    from tasks.config import DEFAULT, check_for_dvc, load
    from tasks.console import output_apart, print_verdicts
    from tasks.paths import TaskPaths

    DvcParser.error = _refuse  # which would print all of dvc's help
    asked = parse_args(words)
    check_for_dvc()
    active = load(DEFAULT).active
    named = [] if asked.glob else [word.partition("@")[::2] for word in asked.targets]
    if wrong := next((task for _, task in named if task not in active), None):
        fix = "name one of them, or move its line there from inactive"
        raise InputError(f"{wrong} is no active task of {DEFAULT}: {', '.join(active)}; {fix}")
    with output_apart(as_json):
        status = _dvc(words)
    reported = [task for stage, task in named or [("report", task) for task in active] if stage == "report"]
    done = status == 0 and not asked.dry
    print_verdicts([TaskPaths(task).results / "table.md" for task in reported if done], status, as_json=as_json)
    return status


def _refuse(_: object, message: str, *__: object) -> NoReturn:
    raise InputError(f"{message}; draftline run --help shows how")


def _dvc(words: list[str]) -> int:
    """Let DVC run stages; return its exit status, or that of a stage which has refused bad input and said why.

    Raises:
        InputError: DVC found bad input itself.
    """
    from dvc.cli import main

    refused = list[str]()

    def is_for_dvc_to_say(record: logging.LogRecord) -> bool:
        for error in causes(record.exc_info[1] if record.exc_info else None):
            if str(error).endswith(f"exited with {STATUS_BAD_INPUT}"):
                refused.append("")
            if fix := _FIXES.get(type(error).__name__):
                refused.append(f"{error}; {fix}")
        return not refused

    logging.getLogger("dvc.cli").addFilter(is_for_dvc_to_say)
    status = int(main(words))
    if said := next(filter(None, refused), ""):
        raise InputError(said)
    return STATUS_BAD_INPUT if refused else status


def _become(words: Sequence[str]) -> NoReturn:
    found = command(words)
    sys.stdout.flush()
    os.execv(found[0], found)  # noqa: S606 (this interpreter, without a shell)


if __name__ == "__main__":
    raise SystemExit(main())
