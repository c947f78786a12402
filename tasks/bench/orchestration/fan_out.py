"""What two processes save where a sweep decodes for quality: `tasks.sweep --workers 2`, on texts of a random pair."""

from __future__ import annotations

import functools
import resource
import time
from collections.abc import Callable
from pathlib import Path

from tasks.bench.cases import Case, LoadedCase, random_case
from tasks.bench.shapes import Shape
from tasks.decoding.method import Pair
from tasks.decoding.registry import Request, decode
from tasks.decoding.settings import SpeculativeSettings
from tasks.evaluation.sweeping.fan_out import FanOut
from tasks.evaluation.timing import on_threads

_SHAPE = Shape(4, 256, 4, small_layers=1)
_TRIAL, _TEXTS, _TWO = 3, 8, 2
"""Units of the trial that finds how many fill the time; texts of a unit; processes."""
Unit = tuple[int, ...]
"""Indices of sources."""


def fan_out_costs(folder: Path, serial_seconds: float) -> dict[str, float]:
    """Decode the same texts in one process and in two, of one thread each, as a sweep with `machine.threads: 1` does.

    The second process starts, imports and loads the models within the time of the two. Where a task's threads are not
    limited, one process already uses several cores: `fanout_over_threads` compares the two processes with that.

    Args:
        folder: An empty folder.
        serial_seconds: About how much processor time one process shall take, so that other work makes the sample no smaller.
    """
    case = random_case(_SHAPE, folder)
    pair, make = LoadedCase(case).pair, functools.partial(_decoder, case)
    with on_threads(1):
        _, trial = _seconds(1, case, pair, make, _TRIAL)
        units = max(_TWO, round(_TRIAL * serial_seconds / trial))
        serial, serial_work = _seconds(1, case, pair, make, units)
        both, both_work = _seconds(_TWO, case, pair, make, units)
    with on_threads(_TWO):
        threaded, _ = _seconds(1, case, pair, make, units)
    return {
        "fanout_efficiency": round(serial / (_TWO * both), 3),
        "fanout_over_threads": round(threaded / both, 3),
        "fanout_serial_s": round(serial, 1),
        "fanout_two_processes_s": round(both, 1),
        "fanout_processor_ratio": round(serial_work / both_work, 3),
    }


def _seconds(
    processes: int, case: Case, pair: Pair, make: Callable[[Pair], Callable[[Unit], int]], units: int
) -> tuple[float, float]:
    """Return the seconds of the clock and of the processors in which so many units are decoded by so many processes."""
    count = len(case.sources)
    work = [tuple((unit * _TEXTS + text) % count for text in range(_TEXTS)) for unit in range(units)]
    begun, used = time.monotonic(), _processor()
    FanOut(processes, functools.partial(_open, case)).map(work, make(pair), make, pair, id)
    return time.monotonic() - begun, _processor() - used


def _open(case: Case) -> Pair:
    return LoadedCase(case).pair


def _decoder(case: Case, pair: Pair) -> Callable[[Unit], int]:
    """Return what decodes a unit and returns its number of tokens."""

    def work(unit: Unit) -> int:
        sources = [case.sources[index] for index in unit]
        texts = [decode("speculative", SpeculativeSettings(), pair, [source], Request(case.limit)) for source in sources]
        return sum(len(one.tokens) for text in texts for one in text)

    return work


def _processor() -> float:
    """Return the processor time of this process and of those that it has waited for, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
