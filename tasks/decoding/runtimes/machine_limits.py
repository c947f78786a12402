"""What this processor gives at most, and what a decoding step asks of it: bytes read from memory, and multiplications.

A step of one token reads every weight once, so reading bounds it; a batch multiplies each weight many times, so that
multiplying does. A time beside its bound says how much of the machine is used.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import torch

from tasks.decoding.runtimes import compiled
from tasks.decoding.runtimes.huge_pages import HugePages
from tasks.decoding.runtimes.packed import FORMATS

LEAST_SHARE = 0.5
"""A step that uses less of the read bandwidth than this is worth a warning."""
_MIN_SECONDS = 2e-3
"""A timed call lasts at least this long, so that the call itself and the clock do not matter."""
_ROUNDS = 7


def read_bandwidth(size: int, threads: int = 1) -> float | None:
    """Bytes a second at which the processor reads again and again from `size` bytes; the best of several rounds.

    Args:
        size: Bytes of the working set: up to a cache's size its own bandwidth, beyond all caches that of memory.
        threads: Threads that read, each its own part of the working set.

    Returns:
        Bytes a second; None where no compiler makes the kernel.
    """
    functions = compiled.library()
    if functions is None:
        return None
    count = max(size // 4, 1024 * threads)
    memory = HugePages(4 * count).take((count,), torch.float32).zero_()
    result = ctypes.c_float()

    def read(passes: int) -> None:
        functions.draftline_read_memory(memory.data_ptr(), count, passes, threads, ctypes.byref(result))

    return 4 * count / _seconds_each(read)


def multiply_rates() -> dict[str, float] | None:
    """Multiplications a second of one thread, by number format (`FORMATS`), each with the addition that follows it.

    bfloat16 and int8 are multiplied by the processor's own instructions where it has them, and as float32 otherwise.
    """
    functions = compiled.library()
    if functions is None:
        return None
    return {name: _multiply_rate(functions, index) for index, name in enumerate(FORMATS)}


def _multiply_rate(functions: ctypes.CDLL, number_format: int) -> float:
    factor = ctypes.c_float()

    def multiply(rounds: int) -> int:
        factor.value = 0.5
        done: int = functions.draftline_multiply(number_format, rounds, ctypes.byref(factor))
        return done

    return multiply(1) / _seconds_each(multiply)


def bandwidth_share(step_bytes: int, seconds: float) -> float | None:
    """Share of the bandwidth at which one thread reads a working set of `step_bytes` that a step of `seconds` uses.

    None where the bytes are not known (0) or no compiler makes the kernel.
    """
    bandwidth = read_bandwidth(step_bytes) if step_bytes else None
    return None if bandwidth is None else step_bytes / seconds / bandwidth


def _seconds_each(repeat: Callable[[int], object]) -> float:
    """Seconds of one repetition; the best of several rounds, each of which lasts `_MIN_SECONDS` or longer."""
    count = 1
    while (taken := _seconds(repeat, count)) < _MIN_SECONDS:
        count = max(2 * count, int(count * _MIN_SECONDS / max(taken, 1e-7)))
    return min(_seconds(repeat, count) for _ in range(_ROUNDS)) / count


def _seconds(repeat: Callable[[int], object], count: int) -> float:
    begun = time.perf_counter()
    repeat(count)
    return time.perf_counter() - begun
