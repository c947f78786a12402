"""Work shared between processes: every unit once, in order, whichever process dies. Imports no torch, which each would load."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tasks.evaluation.sweep.fan_out import map_units

UNITS = list(range(12))


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def double(folder: Path, unit: int) -> int:
    """Twice the unit; a file says which process did it."""
    (folder / f"{os.getpid()}-{unit}").touch()
    return 2 * unit


def open_doubling(folder: Path) -> Callable[[int], int]:
    return functools.partial(double, folder)


def done_by(folder: Path) -> dict[int, list[int]]:
    """The units that each process did."""
    found: dict[int, list[int]] = {}
    for file in folder.iterdir():
        process, unit = map(int, file.name.split("-"))
        found.setdefault(process, []).append(unit)
    return found


def patient(folder: Path, others: int) -> Callable[[int], int]:
    """What this process does: it begins when so many units were done by others."""

    def work(unit: int) -> int:
        wait_for(lambda: sum(len(done) for process, done in done_by(folder).items() if process != os.getpid()) >= others)
        return double(folder, unit)

    return work


def test_one_process_does_it_alone(tmp_path: Path) -> None:
    def never() -> Callable[[int], int]:
        raise AssertionError

    assert map_units(UNITS, functools.partial(double, tmp_path), never, 1) == [2 * unit for unit in UNITS]
    assert list(done_by(tmp_path)) == [os.getpid()]


def test_several_processes_do_each_unit_once_and_results_keep_their_order(tmp_path: Path) -> None:
    seen: list[int] = []
    found = map_units(UNITS, patient(tmp_path, 6), functools.partial(open_doubling, tmp_path), 3, seen.append)
    assert found == [2 * unit for unit in UNITS]
    done = done_by(tmp_path)
    assert sorted(unit for units in done.values() for unit in units) == UNITS
    assert len(done) > 1 and os.getpid() in done
    assert sorted(seen) == sorted(unit for process, units in done.items() if process != os.getpid() for unit in units)
    assert not psutil.Process().children(recursive=True) or all(
        "resource_tracker" in " ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)
    )


def double_and_die(folder: Path, unit: int) -> int:
    """Does one unit; is killed in its second, which leaves a trace."""
    if str(os.getpid()) in {file.name.split("-")[0] for file in folder.iterdir()}:
        (folder / f"{os.getpid()}-{unit}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return double(folder, unit)


def open_mortal(folder: Path) -> Callable[[int], int]:
    return functools.partial(double_and_die, folder)


def test_the_units_of_killed_processes_are_done_by_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # Both others die in their second unit; four traces are two finished and two unfinished units.
    found = map_units(UNITS, patient(tmp_path, 4), functools.partial(open_mortal, tmp_path), 3)
    assert found == [2 * unit for unit in UNITS]
    done = done_by(tmp_path)
    assert len(done) == 3
    assert len(done.pop(os.getpid())) == len(UNITS) - 2, "all but the units that the others finished"
    assert capfd.readouterr().err.count("has ended; the others do its part") == 2


def open_sleeping(folder: Path) -> Callable[[int], int]:
    (folder / "starts").write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(3600)
    raise AssertionError


def test_nothing_is_left_running_where_a_process_has_not_even_opened(tmp_path: Path) -> None:
    def work(unit: int) -> int:
        wait_for(lambda: (tmp_path / "starts").is_file() and (tmp_path / "starts").stat().st_size)
        return unit

    begun = time.monotonic()
    assert map_units(UNITS[:2], work, functools.partial(open_sleeping, tmp_path), 2) == [0, 1]
    assert time.monotonic() - begun < 3000
    assert not psutil.pid_exists(int((tmp_path / "starts").read_text(encoding="utf-8")))


def test_an_error_here_ends_the_work_and_the_other_processes(tmp_path: Path) -> None:
    def work(unit: int) -> int:
        raise KeyError(unit)

    with pytest.raises(KeyError):
        map_units(UNITS, work, functools.partial(open_doubling, tmp_path), 2)
    assert len(done_by(tmp_path)) <= 1
