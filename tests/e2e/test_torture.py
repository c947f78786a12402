"""A few faults inside the work of the quickest stage; `make torture` does harm to every stage, hundreds of times."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture.__main__ import drawn, run_all
from tests.torture.children import Forks, compiled, forks
from tests.torture.project import Undisturbed, build
from tests.torture.trials import Fault, Trial

STAGE = "prepare"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torture")


@pytest.fixture(scope="module")
def worker(folder: Path) -> Iterator[Forks]:
    with forks(compiled(folder), 1) as [one]:
        yield one


@pytest.fixture(scope="module")
def undisturbed(folder: Path, worker: Forks) -> Undisturbed:
    return build(folder / "undisturbed", [worker], [STAGE])[STAGE]


def test_faults_leave_no_trace(undisturbed: Undisturbed, worker: Forks, folder: Path) -> None:
    done = run_all(drawn(6, 1, [STAGE]), {STAGE: undisturbed}, folder, [worker])
    assert all(one.place for one in done)
    assert [one for one in done if one.found] == []


def test_what_differs_is_noticed(undisturbed: Undisturbed, worker: Forks, folder: Path) -> None:
    """Of a project that should hold one more file, and another content of a second one."""
    [first, *_] = undisturbed.after.files
    after = dataclasses.replace(undisturbed.after, files=undisturbed.after.files | {"data/more": "", first: "0" * 64})
    fault = Fault(0, STAGE, "kill", "1")
    outcome = Trial(fault, dataclasses.replace(undisturbed, after=after), folder / "noticed", worker).run()
    assert sorted(outcome.found) == [("lost", "data/more is missing"), ("wrong", f"{first} differs")]
