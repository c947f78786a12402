"""A sweep whose replay and decoding are shared between processes: the rows of the serial one, whichever process dies."""

import contextlib
import functools
import itertools
import os
import pickle
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.evaluation.sweep.fan_out import FanOut
from tasks.evaluation.sweep.grid import BASELINES
from tasks.evaluation.sweep.replay import GridReplay, ReplayedGrid, replay_grid
from tasks.evaluation.sweep.rows import PointEvaluator
from tasks.workers import Submit, Work, Workers
from tests.sweeps import BEAMS, FEW, GRID, TIMES, Row, Sweep, in_file
from tests.ticking import LIMIT, Clock, broken_pair, split_of, sweep_settings, ticking_pair


def toy_pair() -> Pair:
    return ticking_pair(Clock())


def unpickled(value: Any) -> Any:
    """What arrives of a value in another process."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 (made in this line)


class Elsewhere(Workers):
    """Does all units as another process would: by what is unpickled there, one worker a unit."""

    def submit_to(self, size: int, open_work: Callable[[], Work[Any, Any]]) -> Submit:
        def submit(unit: Any) -> Future[Any]:
            worker = unpickled(open_work)()
            with ThreadPoolExecutor(1) as thread:  # which keeps whatever the unit raises
                return thread.submit(lambda: unpickled(worker(unpickled(unit))))

        return submit


ELSEWHERE = FanOut(2, toy_pair, Elsewhere())


def without_times(rows: Sequence[Row]) -> list[Row]:
    """Rows apart from measured times, whose last digits depend on when a simulated clock was read."""
    return [{name: value for name, value in row.items() if name not in {*TIMES, "rounds", "predicted"}} for row in rows]


@pytest.mark.parametrize(
    "settings",
    [{}, {"plan": False, "latency_rounds": 2}, {"request": Request(LIMIT, SamplingSettings(temperature=1.0))}],
    ids=["planned", "not planned", "sampled"],
)
def test_rows_are_those_of_the_serial_sweep_in_its_order(tmp_path: Path, settings: dict[str, Any]) -> None:
    grid = [point for point in FEW[::2] if "request" not in settings or point is not BEAMS]
    serial = Sweep(tmp_path / "serial", **settings)
    wanted = [*serial.validate(grid), *serial.report()]
    shared = Sweep(tmp_path / "shared", fan_out=ELSEWHERE, **settings)
    with patch.object(PointEvaluator, "decoded", autospec=True, side_effect=PointEvaluator.decoded) as decoded:
        found = [*shared.validate(grid), *shared.report()]
    here = {call.args[1] for call in decoded.call_args_list}
    assert here == set(BASELINES), "all others before the timing, by other processes"
    assert without_times(found) == without_times(wanted)
    assert without_times(in_file(shared.path)) == without_times(in_file(serial.path))
    assert [row.get("speedup") for row in found] == pytest.approx([row.get("speedup") for row in wanted], nan_ok=True)


@pytest.mark.parametrize(("side", "example"), [("small", 0), ("large", 3), ("large", 7)])
def test_a_point_fails_by_its_first_failure_in_any_process(tmp_path: Path, side: str, example: int) -> None:
    split = split_of(toy_pair(), sweep_settings())

    def replayed(fan_out: FanOut | None, folder: str) -> ReplayedGrid:
        pair = broken_pair(side, example, 2)
        return replay_grid(GridReplay(GRID, Request(LIMIT), split, tmp_path / folder), pair, "test", fan_out)

    wanted = replayed(None, "serial")
    found = replayed(FanOut(3, functools.partial(broken_pair, side, example, 2), Elsewhere()), "shared")
    assert wanted.errors and wanted.outputs
    assert found == wanted
    assert list(found.errors) == list(wanted.errors) == sorted(wanted.errors), "in the grid's order"


def mortal_pair(folder: Path) -> Pair:
    """The toy pair of another process; that of the first one is killed in its second text."""
    pair = toy_pair()
    try:
        (folder / "victim").touch(exist_ok=False)
    except FileExistsError:
        return pair
    encode, texts = pair.small.encode, itertools.count(1)

    def dying(sources: Rows) -> EncoderOutput:
        if next(texts) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return encode(sources)

    patch.object(pair.small, "encode", dying).start()
    return pair


def test_a_worker_killed_in_the_replay_changes_no_row(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(Workers()) as workers:
        shared = Sweep(tmp_path / "shared", fan_out=FanOut(2, functools.partial(mortal_pair, tmp_path), workers))
        assert without_times(shared.validate(FEW)) == without_times(Sweep(tmp_path / "serial").validate(FEW))
    assert (tmp_path / "victim").exists()
    assert "a process that shared this work has ended" in capfd.readouterr().err
    children = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert all("resource_tracker" in command for command in children)


def failing(unit: int) -> int:
    raise KeyError(unit)


def of_failing(_: Pair) -> Work[int, int]:
    return failing


def test_a_unit_that_fails_everywhere_ends_the_work() -> None:
    with pytest.raises(KeyError):
        ELSEWHERE.map(range(4), failing, of_failing, id)
