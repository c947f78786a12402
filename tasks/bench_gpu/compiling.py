"""Measurements that need a compiler. They may take minutes or fail, so they run last and report their failure as a result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from tasks.bench.timing import median_ratio
from tasks.bench_gpu.timings import PairBenchmark, milliseconds, step_milliseconds
from tasks.decoding.runtimes.fused import FusedDecoder
from tasks.decoding.settings import VanillaSettings

_TUNED: dict[str, object] = {"options": {"coordinate_descent_tuning": True}}
"""With this option a matrix-vector product becomes a kernel of its own."""
_BY_DEVICE: dict[str, dict[str, object]] = {"cuda": _TUNED, "cpu": {"backend": "eager"}}


def attempted(work: Callable[[], dict[str, object]]) -> dict[str, object]:
    """The result of `work`, or its failure as a result."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 (any failure is the result)
        first = (str(error).splitlines() or [""])[0]
        return {"failed": f"{type(error).__name__}: {first}"[:300]}


def static_generate(bench: PairBenchmark) -> dict[str, object]:
    """Time `generate` with a preallocated cache, with which it compiles the model."""
    static = bench.generated(bench.models[1], static=True)
    begun = bench.clock()
    static(0)
    first = bench.clock() - begun
    for round_index in range(bench.rounds + 1):
        static(round_index)
    seconds = bench.timed({"vanilla": bench.decoded("vanilla_large", VanillaSettings())}, {"static": static})
    return {
        "first_run_s": first,
        "ms_per_token": milliseconds(seconds["static"]) / bench.limit,
        "vanilla_over_static": median_ratio(seconds["vanilla"], seconds["static"]),
    }


def compiled_layers(bench: PairBenchmark) -> dict[str, object]:
    """Time steps of the large model plain, then with its layers compiled inside the CUDA graphs."""
    decoder = bench.pair.large
    if not isinstance(decoder, FusedDecoder):
        raise TypeError("only the fused runtime's layers can be compiled")
    plain = step_milliseconds(bench, decoder, (1, 6))
    begun = bench.clock()
    # torch limits how often one function is compiled.
    torch.compiler.reset()
    decoder.wrap_layers(partial(torch.compile, dynamic=False, **_BY_DEVICE[decoder.device.type]))
    try:
        compiled = step_milliseconds(bench, decoder, (1, 6))
        return {"plain_ms": plain, "compiled_ms": compiled, "took_s": bench.clock() - begun}
    finally:
        decoder.wrap_layers(None)
