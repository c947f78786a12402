"""The tutorial, command by command: its own corpus, its own task, a sentence, and the endpoint; and the Python of README."""

import contextlib
import json
import re
import shlex
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, environment, make_clone, read_params, run_in, write_params
from tests.services import free_port, service

ELSEWHERE = ("make setup", "source ")
"""Commands that the environment of the tests has done already."""


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def commands() -> list[str]:
    """Every line behind a prompt, without its remark."""
    lines = "".join(blocks("docs/tutorial.md", "console")).splitlines()
    return [re.sub(r"\s{2,}#.*", "", line[2:]) for line in lines if line.startswith("$ ")]


def shrink_task(clone: Path) -> None:
    """Give the task that `draftline init` has written the sizes and the grid of these tests."""
    params = read_params(clone)
    task, tiny = params["tasks"]["mytask"], params["tasks"]["translation"]
    # With 240 steps, no output for this page's small validation split reaches an end token.
    task["finetune"] = {**tiny["finetune"], "large": {**tiny["finetune"]["large"], "steps": 480}}
    task |= {name: tiny[name] for name in ("models", "calibrate", "align")}
    # The grid of these tests has methods for trained extras; one entry shows the way as well.
    task["sweep"] = {**tiny["sweep"], "grid": [{"method": "speculative", "values": {"draft_length": [3]}}]}
    write_params(clone, params)


@pytest.mark.slow
def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    clone = make_clone(tmp_path / "clone")
    port, done, printed = str(free_port()), [], []
    with contextlib.ExitStack() as stack:
        for command in commands():
            if command.startswith(ELSEWHERE):
                continue
            here = re.sub("^draftline", "python -m tasks.command", command.replace("8000", port))
            if command.startswith("draftline serve"):
                # The page's server asks for no key.
                variables = environment(clone) | {"DRAFTLINE_API_KEY": ""}
                health = f"http://127.0.0.1:{port}/health"
                stack.enter_context(service(shlex.split(here), health, tmp_path / "log", variables, clone))
            else:
                result = run_in(clone, "bash", "-o", "pipefail", "-c", here)
                assert result.returncode == 0, (here, result.stdout[-2000:], result.stderr[-2000:])
                printed.append(result.stdout)
            if command.startswith("draftline init"):
                shrink_task(clone)
            done.append(command)
    assert len(done) == 11
    completion, metrics = printed[-2:]
    [choice] = json.loads(completion)["choices"]
    assert choice["draftline"]["method"]
    assert "draftline:request_success_total" in metrics
    assert (clone / "results" / "mytask" / "report.html").is_file()


@pytest.mark.slow
def test_the_python_of_readme_reads_what_the_pair_gives(finished: Path) -> None:
    [code] = blocks("README.md", "python")
    result = run_in(finished, "python", "-c", code)
    assert result.returncode == 0, result.stderr[-2000:]
    assert re.search(r"\d+$", result.stdout.strip())
