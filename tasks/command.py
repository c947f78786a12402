"""The command `draftline`: each of its words is a module of this project, started as `python -m` starts it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NoReturn

from tasks.errors import InputError, one_line_errors

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("tasks.init", "add a task for your own files to params.yaml"),
    "check": ("tasks.config", "check params.yaml; --table, --presets and --methods list what it may hold"),
    "run": ("dvc repro", "bring a task's report up to date (run NAME), or all active tasks'"),
    "flow": ("flows.pipeline", "the same under Prefect, with stages side by side"),
    "worth": ("tasks.worth", "forecast what a drafter would bring a large model, before training one"),
    "curve": ("tasks.learning_curve", "forecast what more calibration texts would bring the aligned drafter"),
    "generate": ("tasks.generate", "decode texts with a finished pair"),
    "serve": ("tasks.serve", "put a pair behind an OpenAI-style endpoint"),
    "export": ("tasks.export", "write a pair in the form of another engine"),
    "verify": ("tasks.verify", "check a pair's certificate in another engine"),
    "compare": ("tasks.compare", "compare two results: what differs beyond noise"),
    "promote": ("tasks.promote", "make a new pair the champion where it is better"),
    "presets": ("tasks.presets", "list the papers' experiments, or add one to params.yaml"),
    "send": ("tasks.tracking", "send the runs that wait for MLflow"),
    "bench": ("tasks.bench", "time decoding and sweeping on this machine"),
    "doctor": ("tasks.doctor", "check this machine: what is missing for what"),
}
_NEEDS = {"run": "dvc", "flow": "prefect", "serve": "uvicorn", "promote": "mlflow", "send": "mlflow"}
"""Packages that a plain `pip install` of this one leaves out."""
_RUN = """\
usage: draftline run [NAME | STAGE@NAME …] [option of dvc repro …]

Bring the report of a task up to date, or without a name those of all active tasks. What is up to date is not run again,
and an interrupted run goes on where it was. DVC runs the stages; of its options (dvc repro --help lists all):

  -f, --force        run stages that are up to date too
  -s, --single-item  run the named stages alone, without those that they need

examples:
  draftline run chat
  draftline run --force align@chat"""
_COMPLETION = 'complete -o default -W "{words}" draftline'


def usage() -> str:
    """What `draftline --help` prints."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: draftline COMMAND …, in the folder of a project; draftline COMMAND --help says more\n",
            *(f"  {name.ljust(width)}  {words}" for name, (_, words) in COMMANDS.items()),
            "\nexamples:",
            "  draftline init chat messages.csv && draftline run chat",
            '  draftline generate --task chat "Where is the tea?"',
            "  draftline serve --task chat --port 8000",
            "\nCompletion in bash: source <(draftline --completion)",
        ]
    )


def command(words: Sequence[str]) -> list[str]:
    """What runs for the words behind `draftline`, of which the first is one of `COMMANDS`; for `run` the words behind `dvc`."""
    name, *rest = words
    if name == "run":
        # A name of a task stands for its last stage; options and stages are DVC's.
        return ["repro", *(word if word.startswith("-") or "@" in word else f"report@{word}" for word in rest)]
    return [sys.executable, "-m", COMMANDS[name][0], *rest]


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
    if words[0] == "run" and not {"-h", "--help"}.isdisjoint(words):
        print(_RUN)
        return 0
    # DVC starts stages by the name `python`.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])  # noqa: PTH120
    return _repro(command(words)) if words[0] == "run" else _become(words)


def _repro(words: list[str]) -> int:
    """Let DVC run stages; then print the verdicts of the named reports once more, below DVC's own last lines."""
    # pydantic and DVC would make every other command start later.
    from dvc.cli import main as dvc

    from tasks.config import DEFAULT, check_for_dvc, load
    from tasks.console import print_verdict
    from tasks.paths import TaskPaths

    check_for_dvc()
    active = load(DEFAULT).active
    named = [word.partition("@")[::2] for word in words[1:] if not word.startswith("-")]
    if "--glob" in words:
        named = []
    if wrong := next((task for _, task in named if task not in active), None):
        fix = "name one of them, or move its line there from inactive"
        raise InputError(f"{wrong} is no active task of {DEFAULT}: {', '.join(active)}; {fix}")
    status = int(dvc(words))
    if status == 0 and "--dry" not in words:
        for stage, task in named or [("report", task) for task in active]:
            if stage == "report":
                print_verdict(TaskPaths(task).results / "table.md")
    return status


def _become(words: Sequence[str]) -> NoReturn:
    found = command(words)
    os.environ["DRAFTLINE_COMMAND"] = f"draftline {words[0]}"  # which its help shows
    sys.stdout.flush()
    os.execv(found[0], found)  # noqa: S606 (this interpreter, without a shell)


if __name__ == "__main__":
    raise SystemExit(main())
