"""A sweep that real Dask workers share: the rows of the serial one, whichever worker dies."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.decoding.method import Pair
from tasks.errors import InputError
from tasks.evaluation.sweep.fan_out import FanOut, count_workers
from tests.dask_cluster import dask_scheduler, dask_workers
from tests.optional import slow_with
from tests.served import PATIENCE, until
from tests.services import HOST
from tests.sweeps import FEW, Sweep
from tests.unit.evaluation.sweep.test_fan_out import mortal_pair, toy_pair, without_times

pytestmark = slow_with("distributed")


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dask_scheduler(tmp_path_factory.mktemp("dask")) as (address, _):
        yield address


def shared_by(scheduler: str, open_pair: Callable[[], Pair], size: int = 2) -> FanOut:
    """The workers of a scheduler once it has so many."""

    def found() -> FanOut | None:
        with contextlib.suppress(InputError):
            if count_workers(scheduler) == size:
                return FanOut(size, open_pair, scheduler)
        return None

    fan_out: FanOut = until(f"{size} workers", found)
    return fan_out


def test_a_scheduler_without_workers_is_refused(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal() -> str:
        with pytest.raises(InputError) as refused:
            count_workers(scheduler)
        return str(refused.value)

    until("the scheduler", lambda: f"the scheduler at {scheduler} has no worker" in refusal())
    monkeypatch.setattr("tasks.evaluation.sweep.fan_out._PATIENCE_SECONDS", 5)
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1 "):
        count_workers(f"tcp://{HOST}:1")


@pytest.fixture(scope="module")
def workers(scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dask_workers(scheduler, 2, tmp_path_factory.mktemp("workers")):
        yield scheduler


def test_a_killed_dask_worker_changes_no_row(workers: str, tmp_path: Path) -> None:
    fan_out = shared_by(workers, functools.partial(mortal_pair, tmp_path))
    rows = Sweep(tmp_path / "shared", fan_out=fan_out).validate(FEW)
    assert (tmp_path / "victim").exists()
    assert without_times(rows) == without_times(Sweep(tmp_path / "serial").validate(FEW))


def test_points_that_are_decoded_are_shared_too(workers: str, tmp_path: Path) -> None:
    """Also with the worker that Dask has started in place of the killed one."""
    rows = Sweep(tmp_path / "shared", fan_out=shared_by(workers, toy_pair), plan=False).validate(FEW)
    assert without_times(rows) == without_times(Sweep(tmp_path / "serial", plan=False).validate(FEW))


def test_no_scheduler_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tasks.evaluation.sweep.fan_out._PATIENCE_SECONDS", 5)
    gone = FanOut(2, toy_pair, f"tcp://{HOST}:1")
    assert gone.map(range(3), doubled, of_doubled, toy_pair(), id) == [0, 2, 4]
    assert "no Dask scheduler answers" in capfd.readouterr().err


def doubled(unit: int) -> int:
    return 2 * unit


def of_doubled(_: Pair) -> Callable[[int], int]:
    return doubled


def stuck(folder: Path, unit: int) -> int:
    (folder / "at-work").touch()
    time.sleep(PATIENCE)
    return unit


def of_stuck(folder: Path, _: Pair) -> Callable[[int], int]:
    return functools.partial(stuck, folder)


def test_a_scheduler_killed_at_work_costs_no_unit(tmp_path: Path) -> None:
    with dask_scheduler(tmp_path) as (address, scheduler), dask_workers(address, 1, tmp_path):

        def kill() -> None:
            until("the worker", (tmp_path / "at-work").exists)
            for process in scheduler.children(recursive=True):
                process.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        fan_out = shared_by(address, toy_pair, 1)
        assert fan_out.map(range(4), doubled, functools.partial(of_stuck, tmp_path), toy_pair(), id) == [0, 2, 4, 6]
        killer.join()
