"""What the processor gives at most, and the share of it that a decoding step uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import torch

from tasks.bench.timing import Found
from tasks.decoding.decoder import Decoder, GreedyAcceptance, Rows, StopRule
from tasks.decoding.runtimes import compiled
from tasks.decoding.runtimes.compiled import LEAST_SHARE

_WORKING_SETS = {"32 KiB": 1 << 15, "256 KiB": 1 << 18, "1 MiB": 1 << 20, "8 MiB": 1 << 23, "64 MiB": 1 << 26}
_CACHED = 8
"""Tokens in the cache of a timed step."""
_STEPS = 8
_CHECKED = 5
"""Positions of a timed check: four drafted tokens and the one that follows."""
_ROUNDS = 40


def measure_limits(counts: list[int]) -> Found:
    """Read bandwidth in GB/s by working set and threads, and multiplications of one thread in 10⁹ a second by number format.

    Args:
        counts: Numbers of threads to read with.

    Returns:
        `read_gb_s` and `multiply_g_s`; empty where no compiler makes the kernel.
    """
    rates = compiled.multiply_rates()
    if rates is None:
        return {}
    read = {
        name: {str(threads): _giga(compiled.read_bandwidth(size, threads)) for threads in counts}
        for name, size in _WORKING_SETS.items()
    }
    return {"read_gb_s": read, "multiply_g_s": {name: _giga(rate) for name, rate in rates.items()}}


def limit_lines(limits: Found) -> Iterator[str]:
    """The limits as text."""
    if not limits:
        yield "no C++ compiler: the limits of this machine are not measured"
        return
    for name, by_threads in limits["read_gb_s"].items():
        yield f"  reads {name:>8}: " + ", ".join(
            f"{rate:.0f} GB/s with {threads} thread{'s' * (threads != '1')}" for threads, rate in by_threads.items()
        )
    yield "  multiplies: " + ", ".join(f"{name} {rate:.0f} · 10⁹/s" for name, rate in limits["multiply_g_s"].items())


@torch.inference_mode()
def step_limits(decoder: Decoder, source: list[int]) -> Found:
    """Time one token and a check of five beside what the machine gives.

    Args:
        decoder: A model whose runtime declares what a step reads.
        source: Token ids that its text is generated for.

    Returns:
        `step_ms`, `check_over_step` (five tokens in one run over one token), `read_mib` (weights that a step reads) and
        `bandwidth_share` (of what one thread reads of a working set of that size); empty where the runtime declares nothing.
    """
    can = decoder.capabilities
    if not can.step_bytes or can.continue_greedily is None or can.check_draft is None:
        return {}
    [text] = _prefilled(decoder, source)
    cached = len(text) - 1
    go_on, check = can.continue_greedily, can.check_draft

    def steps() -> None:
        decoder.rewind([cached])
        go_on(text[-1:], _STEPS, StopRule(), with_logits=False)

    def checked() -> None:
        decoder.rewind([cached])
        check(text[-1:], text[1:_CHECKED], GreedyAcceptance(max_surprisal=float("inf"), keep_agreed=False))

    step, five = (_least_seconds(run) for run in (steps, checked))
    step /= _STEPS
    share = compiled.bandwidth_share(can.step_bytes, step)
    return {
        "step_ms": round(1000 * step, 4),
        "check_over_step": round(five / step, 3),
        "read_mib": round(can.step_bytes / 2**20, 2),
        "bandwidth_share": None if share is None else round(share, 3),
    }


def step_lines(formats: Mapping[str, Found]) -> Iterator[str]:
    """One line a number format, and a warning where a step uses less than half of the bandwidth."""
    for name, one in formats.items():
        found = one.get("step")
        if not found or found["bandwidth_share"] is None:
            continue
        yield (
            f"  a step in {name:10}{found['step_ms']:>8.3f} ms for {found['read_mib']:.1f} MiB of weights: "
            f"{found['bandwidth_share']:.0%} of the bandwidth; five tokens take {found['check_over_step']:.2f} steps"
        )
        if found["bandwidth_share"] < LEAST_SHARE:
            yield f"  warning: a step in {name} uses less than {LEAST_SHARE:.0%} of what this machine reads"


def _prefilled(decoder: Decoder, source: list[int]) -> Rows:
    """Start a text, run `_CACHED` tokens of it, and return them with the one that follows."""
    [start] = decoder.start(decoder.encode([source]))
    tokens = (start + source * _CACHED)[: _CACHED + 1]
    decoder.forward([tokens[:-1]])
    return [tokens]


def _least_seconds(run: Callable[[], None]) -> float:
    """The best of several rounds, as for the bandwidth: what other processes take is no property of the code."""
    times = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return min(times)


def _giga(rate: float | None) -> float:
    return round((rate or 0.0) / 1e9, 1)
