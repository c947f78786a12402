"""A little of `make torture` and `make sanitize`: faults in the quickest stage, half a minute of load, a few damaged pairs."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.served import PATIENCE
from tests.torture.__main__ import LIMITS, bounded, drawn, run_all
from tests.torture.children import Forks, compiled, forks
from tests.torture.project import Undisturbed, build
from tests.torture.trials import Fault, Trial

pytestmark = pytest.mark.slow
STAGE = "prepare"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torture")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Forks]:
    with forks(compiled(folder), 1, [f"tasks.{STAGE}"]) as [one]:
        yield one


@pytest.fixture(scope="module")
def undisturbed(folder: Path, worker: Forks) -> Undisturbed:
    return build(folder / "undisturbed", [worker], [STAGE])[STAGE]


def test_faults_leave_no_trace(undisturbed: Undisturbed, worker: Forks, folder: Path) -> None:
    with bounded() as taken:
        done = run_all(drawn(6, 1, [STAGE]), {STAGE: undisturbed}, folder, [worker])
    assert all(one.place for one in done)
    assert 0 < taken["megabytes"] < LIMITS["megabytes"] and 0 < taken["threads"] < LIMITS["threads"]
    assert [one for one in done if one.found] == []


def test_what_differs_is_noticed(undisturbed: Undisturbed, worker: Forks, folder: Path) -> None:
    """Of a project that should hold one more file, and another content of a second one."""
    [first, *_] = undisturbed.after.files
    after = dataclasses.replace(undisturbed.after, files=undisturbed.after.files | {"data/more": "", first: "0" * 64})
    fault = Fault(0, STAGE, "kill", "1")
    outcome = Trial(fault, dataclasses.replace(undisturbed, after=after), folder / "noticed", worker).run()
    assert sorted(outcome.found) == [("lost", "data/more is missing"), ("wrong", f"{first} differs")]


def last_words(*command: str) -> str:
    """Run a command of the harnesses, which must end well, and return what it printed."""
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


def test_a_loaded_server_that_is_ended_and_killed_loses_nothing() -> None:
    said = last_words("tests.torture.load", "--minutes", "0.5", "--clients", "32", "--peace", "5")
    counts = json.loads(said.splitlines()[-1])
    assert counts["faults"] > 0 and counts["answered"] > 0
    assert [counts[name] for name in ("lost", "wrong", "hung", "errors")] == [0, 0, 0, 0]


def test_the_sanitizers_find_nothing() -> None:
    printed = last_words("tests.sanitize", "--seconds", "5")
    said = json.loads(printed[printed.index("\n{") :])
    assert said["bounds"].keys() == {"answered", "refused"} and said["files"].keys() <= {"read", "refused"}
