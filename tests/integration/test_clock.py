"""A process that times: started anew each time, and named in one line when it dies."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.decoding.method import Request
from tasks.decoding.registry import METHODS
from tasks.errors import InputError
from tasks.evaluation.sweep.clock import Lap, PointTimer, Visit, start_elsewhere
from tasks.evaluation.sweep.grid import VANILLA, Drafter
from tasks.evaluation.sweep.run import expected
from tasks.loaded_pair import Handed, LoadedPairs, handed_pair, handed_pairs
from tasks.supervisor import workers
from tests.architectures import pair_of
from tests.sweeps import GRID
from tests.ticking import ALIGNED, LIMIT, Clock, evaluator_of, split_of, sweep_settings, ticking_pair
from tests.toy_sweep import opened


class ToyTimer(PointTimer):
    """Times a toy pair, and knows its process; asked for nothing, it dies."""

    number = -1

    def lap(self, visits: Any, *rest: Any) -> list[Lap | str]:
        if not visits:
            os.kill(os.getpid(), signal.SIGKILL)
        return [*super().lap(visits, *rest), f"{os.getpid()}, started after {self.number}"]


def open_timer(number: int) -> ToyTimer:
    timer = ToyTimer({ALIGNED: ticking_pair(Clock())}, sweep_settings(), "cpu")
    timer.number = number
    return timer


def test_every_start_is_a_process_of_its_own_and_one_that_dies_is_named() -> None:
    closed = list[int]()
    start = start_elsewhere(open_timer, lambda: closed.append(len(closed)))
    pair, settings = ticking_pair(Clock()), sweep_settings()
    split, evaluator = split_of(pair, settings), evaluator_of(pair, settings)
    visits = [Visit(ALIGNED, point, expected(evaluator.vanilla(split), split)) for point in (VANILLA, GRID[12])]
    rest = expected(evaluator.vanilla(split), split), split, Request(LIMIT), ""
    with start() as lap:
        *laps, first = lap(visits, *rest)
        assert all(isinstance(one, Lap) and min(one.latency_ms) > 0 for one in laps)
    assert closed == [0] and first.endswith(", started after 0") and not first.startswith(f"{os.getpid()},")
    with pytest.raises(OSError, match=r"the process that times has ended .* start the sweep again"), start() as lap:
        assert lap(visits, *rest)[-1].endswith(", started after 1")
        lap([], *rest)


def vanilla_elsewhere(handed: Handed) -> tuple[list[int], bool]:
    """In another process: the large model's tokens, and whether transformers was imported."""
    pair = handed_pair(handed, ALIGNED)
    [output] = METHODS["vanilla_large"].make(VANILLA.settings, pair, Request(LIMIT)).run([[5, 9, 20, 1]], [0], LIMIT)
    return output.tokens, "transformers" in sys.modules


def test_a_pair_is_handed_to_a_process_that_imports_no_transformers(tmp_path: Path) -> None:
    pair = pair_of("t5")
    pairs = LoadedPairs(lambda *_: opened(pair))
    pairs.hand_over({ALIGNED: GRID, Drafter("unaligned", 1): GRID}, tmp_path / "pairs.pt")
    assert pairs.handed is not None
    forward, backward = map(handed_pairs, pairs.handed)
    assert list(forward) == list(backward)[::-1] == [ALIGNED, Drafter("unaligned", 1)]
    handed_pairs.cache_clear()
    with workers(1) as executor:
        tokens, imported = executor.submit(vanilla_elsewhere, pairs.handed[0]).result()
    [here] = METHODS["vanilla_large"].make(VANILLA.settings, pair, Request(LIMIT)).run([[5, 9, 20, 1]], [0], LIMIT)
    assert (tokens, imported) == (here.tokens, False)
    with pairs.handed[0].file.open("ab") as file:
        file.write(b"more")
    with pytest.raises(InputError, match=r"pairs.pt is not what this sweep wrote"):
        handed_pair(pairs.handed[0], ALIGNED)
