"""A sweep that real Dask workers share: the rows of the serial one, whichever worker dies."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.decoding.method import Pair
from tasks.errors import InputError
from tasks.evaluation.sweep.fan_out import DaskCluster, FanOut, find_cluster, map_units
from tests.dask_cluster import dask_scheduler, dask_workers
from tests.served import PATIENCE, until
from tests.services import HOST
from tests.sweeps import Sweep
from tests.unit.evaluation.sweep.test_fan_out import FEW, mortal_pair, require_serial_rows_of, toy_pair, without_times

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="distributed is missing (extra dask)"),
]


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dask_scheduler(tmp_path_factory.mktemp("dask")) as (address, _):
        yield address


def cluster_of(scheduler: str, open_pair: Callable[[], Pair], size: int = 2) -> DaskCluster:
    """The cluster once it has so many workers."""

    def found() -> DaskCluster | None:
        with contextlib.suppress(InputError):
            cluster = find_cluster(scheduler, open_pair, "cpu")
            return cluster if cluster.size == size else None
        return None

    cluster: DaskCluster = until(f"{size} workers", found)
    return cluster


def test_a_scheduler_without_workers_is_refused(scheduler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal() -> str:
        with pytest.raises(InputError) as refused:
            find_cluster(scheduler, toy_pair, "cpu")
        return str(refused.value)

    until("the scheduler", lambda: f"the scheduler at {scheduler} has no worker" in refusal())
    monkeypatch.setattr("tasks.evaluation.sweep.fan_out._PATIENCE_SECONDS", 5)
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1 "):
        find_cluster(f"tcp://{HOST}:1", toy_pair, "cpu")


@pytest.fixture(scope="module")
def workers(scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dask_workers(scheduler, 2, tmp_path_factory.mktemp("workers")):
        yield scheduler


def test_a_killed_dask_worker_changes_no_row(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = cluster_of(workers, functools.partial(mortal_pair, tmp_path))
    require_serial_rows_of(FanOut(1, toy_pair, cluster), tmp_path, monkeypatch)
    assert capfd.readouterr().err.count("has ended; the others do its part") == 1


def test_points_that_are_decoded_are_shared_too(workers: str, tmp_path: Path) -> None:
    """Also with the worker that Dask has started in place of the killed one."""
    fan_out = FanOut(1, toy_pair, cluster_of(workers, toy_pair))
    rows = Sweep(tmp_path / "shared", fan_out=fan_out, plan=False).validate(FEW)
    assert without_times(rows) == without_times(Sweep(tmp_path / "serial", plan=False).validate(FEW))


def test_without_a_scheduler_the_sweep_goes_on_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks.evaluation.sweep.fan_out._PATIENCE_SECONDS", 5)
    gone = DaskCluster(f"tcp://{HOST}:1", 2, toy_pair, "cpu")
    rows = Sweep(tmp_path / "shared", fan_out=FanOut(1, toy_pair, gone)).validate(FEW)
    assert "no Dask scheduler answers" in capfd.readouterr().err
    assert without_times(rows) == without_times(Sweep(tmp_path / "serial").validate(FEW))


def stuck(folder: Path, unit: int) -> int:
    (folder / "at-work").touch()
    time.sleep(PATIENCE)
    return unit


def open_stuck(folder: Path) -> Callable[[int], int]:
    return functools.partial(stuck, folder)


def test_a_scheduler_killed_at_work_costs_no_unit(tmp_path: Path) -> None:
    with dask_scheduler(tmp_path) as (address, scheduler):

        def double(unit: int) -> int:
            """Works here once the worker has a unit and its scheduler is dead."""
            until("the worker", (tmp_path / "at-work").exists)
            for process in scheduler.children(recursive=True) if scheduler.is_running() else ():
                process.kill()
            return 2 * unit

        with dask_workers(address, 1, tmp_path):
            cluster = cluster_of(address, toy_pair, 1)
            open_worker = functools.partial(open_stuck, tmp_path)
            with cluster.connected(open_worker) as channels:
                assert len(channels) == 1
                assert map_units(range(4), double, open_worker, 1, channels=channels) == [0, 2, 4, 6]
