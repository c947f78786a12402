"""A sweep whose replay and decoding are shared between processes: the rows of the serial one, whichever process dies."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.decoding.decoder import Rows, Step
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.speculative import AdaptiveSettings
from tasks.evaluation.sweep import fan_out
from tasks.evaluation.sweep.fan_out import FanOut, Work, map_units
from tasks.evaluation.sweep.grid import BASELINES, SweepPoint
from tasks.evaluation.sweep.point import PointEvaluator
from tasks.evaluation.sweep.replay import GridReplay, ReplayedGrid, ReplayUnit, Split, replay_grid
from tasks.locks import MachineBusyError
from tests.sweeps import BEAMS, GRID, TIMES, Row, Sweep, in_file
from tests.ticking import LIMIT, Clock, TickingDecoder, evaluator_of, split_of, sweep_settings, ticking_pair
from tests.unit.evaluation.sweep.test_replay import breaks

HOLDER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from tasks.locks import timing_lock
with timing_lock("cpu"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def timing(folder: Path) -> Iterator[None]:
    """Something is timed by another process during the block."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield
        finally:
            holder.stdin.close()


def twice(unit: int) -> int:
    return 2 * unit


def open_twice() -> Work[int, int]:
    return twice


def test_a_worker_stays_out_while_something_is_timed_on_its_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = fan_out._DaskWork(pickle.dumps(open_twice), "another machine", "cpu")
    assert opened(pickle.dumps(4)) == 8
    with timing(tmp_path):
        with pytest.raises(MachineBusyError, match="uses the cpu"):
            opened(pickle.dumps(4))
        with pytest.raises(MachineBusyError):
            fan_out._DaskWork(pickle.dumps(open_twice), "another machine", "cpu")
        # The sweep itself holds the lock of its own machine.
        own = fan_out._DaskWork(pickle.dumps(open_twice), fan_out.machine(), "cpu")
        assert own(pickle.dumps(4)) == 8
    assert opened(pickle.dumps(4)) == 8


FEW = [*GRID[:3], *GRID[12:14], *GRID[18:]]


def toy_pair() -> Pair:
    return ticking_pair(Clock())


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> FanOut:
    """A fan-out whose units are all done as by another process: by what is unpickled there, one worker a unit."""

    def mapped(units: Sequence[Any], work: Any, open_worker: Any, processes: int, on_done: Any, _: Any) -> list[Any]:
        if processes == 1:
            return map_units(units, work, open_worker, processes, on_done)
        found = []
        for unit in units:
            worker = pickle.loads(pickle.dumps(open_worker))()  # noqa: S301 (made one line above)
            found.append(pickle.loads(pickle.dumps(worker(pickle.loads(pickle.dumps(unit))))))  # noqa: S301
            on_done(unit)
        return found

    monkeypatch.setattr("tasks.evaluation.sweep.fan_out.map_units", mapped)
    return FanOut(2, toy_pair)


def without_times(rows: Sequence[Row]) -> list[Row]:
    """Rows apart from measured times, whose last digits depend on when a simulated clock was read."""
    return [
        {name: value for name, value in row.items() if name not in {*TIMES, "rounds", "time_ms", "predicted"}} for row in rows
    ]


@pytest.mark.parametrize(
    "settings",
    [{}, {"plan": False, "latency_rounds": 2}, {"request": Request(LIMIT, SamplingSettings(temperature=1.0))}],
    ids=["planned", "not planned", "sampled"],
)
def test_rows_are_those_of_the_serial_sweep_in_its_order(tmp_path: Path, elsewhere: FanOut, settings: dict[str, Any]) -> None:
    grid = [point for point in FEW if "request" not in settings or point is not BEAMS]
    serial, shared = Sweep(tmp_path / "serial", **settings), Sweep(tmp_path / "shared", fan_out=elsewhere, **settings)
    wanted, found = ([*sweep.validate(grid), *sweep.report()] for sweep in (serial, shared))
    assert without_times(found) == without_times(wanted)
    assert without_times(in_file(shared.path)) == without_times(in_file(serial.path))
    assert [row.get("speedup") for row in found] == pytest.approx([row.get("speedup") for row in wanted], nan_ok=True)


def test_what_was_decoded_ahead_is_not_decoded_again(
    tmp_path: Path, elsewhere: FanOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise KilledError

    ahead = Sweep(tmp_path, fan_out=elsewhere, plan=False)
    monkeypatch.setattr(ahead.runner, "_time", kill)
    with pytest.raises(KilledError):
        ahead.validate(FEW)
    assert len(list((tmp_path / "this work").glob("decoded-validation-*.json"))) == len(FEW)

    class Nobody(FanOut):
        def map(self, units: Sequence[Any], *_: Any) -> list[Any]:
            assert not units
            return []

    rows = Sweep(tmp_path, fan_out=Nobody(2), plan=False).validate(FEW)
    assert without_times(rows) == without_times(Sweep(tmp_path / "serial", plan=False).validate(FEW))


def test_what_another_machine_decoded_is_kept_here(tmp_path: Path, elsewhere: FanOut, monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherDisk(FanOut):
        def map(self, *arguments: Any) -> list[Any]:
            results = super().map(*arguments)
            for file in tmp_path.glob("*/decoded-*.json"):
                file.unlink()
            return results

    decoded: list[SweepPoint] = []
    whole = PointEvaluator.decoded

    def counted(self: PointEvaluator, point: SweepPoint, split: Split) -> Any:
        decoded.append(point)
        return whole(self, point, split)

    monkeypatch.setattr(PointEvaluator, "decoded", counted)
    rows = Sweep(tmp_path, fan_out=OtherDisk(elsewhere.processes, elsewhere.open_pair), plan=False).validate(FEW)
    assert set(decoded) == set(BASELINES)
    assert without_times(rows) == without_times(Sweep(tmp_path / "serial", plan=False).validate(FEW))


@pytest.mark.parametrize("plan", [True, False], ids=["replayed", "decoded"])
def test_what_a_drafter_costs_is_measured_once_for_all_processes(
    tmp_path: Path, elsewhere: FanOut, monkeypatch: pytest.MonkeyPatch, plan: bool
) -> None:
    measured: list[float] = []

    def measure(*_: Any) -> float:
        measured.append(0.1)
        return 0.1

    monkeypatch.setattr("tasks.decoding.methods.speculative.measured_cost_ratio", measure)
    points = [SweepPoint("speculative_adaptive", AdaptiveSettings(drafter="copy", max_draft=length)) for length in (2, 4)]
    Sweep(tmp_path, fan_out=elsewhere, plan=plan).validate([*points, GRID[0]])
    assert measured == [0.1]


def broken(side: str, example: int, length: int) -> Pair:
    """A pair whose `side` breaks after some tokens of the small model's own text of one example."""
    pair = toy_pair()
    split = split_of(pair, sweep_settings())
    text = evaluator_of(pair, Clock(), sweep_settings()).decoded(BASELINES[1], split).tokens[example]
    model = getattr(pair, side)
    model.predict = breaks(model.predict, (0, *text[:length]))
    return pair


@pytest.mark.parametrize("side", ["small", "large"])
@pytest.mark.parametrize("example", [0, 3, 7])
@pytest.mark.usefixtures("elsewhere")
def test_a_point_fails_by_its_first_failure_in_any_process(tmp_path: Path, side: str, example: int) -> None:
    split = split_of(toy_pair(), sweep_settings())

    def replayed(fan_out: FanOut, folder: str) -> ReplayedGrid:
        pair = broken(side, example, 2)
        return replay_grid(GRID, pair, Request(LIMIT), split, tmp_path / folder, "test", fan_out=fan_out)

    wanted = replayed(FanOut(), "serial")
    found = replayed(FanOut(3, functools.partial(broken, side, example, 2)), "shared")
    assert wanted.errors and wanted.outputs
    assert found == wanted
    assert list(found.errors) == list(wanted.errors) == sorted(wanted.errors), "in the grid's order"


def mortal_pair(folder: Path) -> Pair:
    """The toy pair of another process; that of the first one is killed in its fourth run of the small model."""
    pair = toy_pair()
    try:
        (folder / "victim").touch(exist_ok=False)
    except FileExistsError:
        (folder / f"survivor-{os.getpid()}").touch()
        return pair
    (folder / "victim").write_text(str(os.getpid()), encoding="utf-8")
    small, forward = pair.small, pair.small.forward
    assert isinstance(small, TickingDecoder)

    def dying(tokens: Rows) -> Step:
        if small.ran >= 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(tokens)

    small.forward = dying  # type: ignore[method-assign]
    return pair


def dead(process: str) -> bool:
    return bool(process) and (not psutil.pid_exists(int(process)) or psutil.Process(int(process)).status() == "zombie")


def test_a_worker_killed_in_the_replay_changes_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    require_serial_rows_of(FanOut(3, functools.partial(mortal_pair, tmp_path)), tmp_path, monkeypatch)
    assert capfd.readouterr().err.count("has ended; the others do its part") == 1


def require_serial_rows_of(fan_out: FanOut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep with two further processes that open `mortal_pair`; fail unless one died, the other worked, and no row differs."""
    wanted, victim, own, by_others = Sweep(tmp_path / "serial").validate(FEW), tmp_path / "victim", list[int](), list[int]()
    whole = GridReplay.__call__

    def patient(self: GridReplay, unit: ReplayUnit) -> ReplayedGrid:
        """Replays here once one of the other processes is dead and the other one has replayed something."""
        deadline = time.monotonic() + 600
        while unit.first and not (victim.is_file() and dead(victim.read_text(encoding="utf-8")) and len(by_others) > 1):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        own.append(unit.first)
        return whole(self, unit)

    def watched(units: Any, work: Any, open_worker: Any, processes: int, on_done: Any, elsewhere: Any) -> list[Any]:
        def noted(unit: ReplayUnit) -> None:
            by_others.append(unit.first)
            on_done(unit)

        return map_units(units, work, open_worker, processes, noted, elsewhere)

    monkeypatch.setattr("tasks.evaluation.sweep.fan_out.map_units", watched)
    monkeypatch.setattr(GridReplay, "__call__", patient)
    found = Sweep(tmp_path / "shared", fan_out=fan_out).validate(FEW)
    assert without_times(found) == without_times(wanted)
    assert sorted(own + by_others) == list(range(8)), "each example once"
