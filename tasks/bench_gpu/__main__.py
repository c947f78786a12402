"""How fast decoding is on a GPU, beside `transformers.generate` on the same weights and inputs, in one run.

Why it exists: on a GPU, a decoding step of a small batch is a few hundred kernels that each take microseconds, and whoever
starts them one by one waits for Python, not for the memory. This says how far from the memory's own pace decoding here is, how
far `generate` is, and whether a drafter is worth its steps. It needs torch and transformers alone: models are random, in pairs
that agree on most tokens. First the fused runtime's tokens are checked against the reference's.

`python -m tasks.bench_gpu`; the last line is JSON, whose ratios are those of the first pair, and above 1 where decoding here is
faster. `--device cpu --quick` goes through all of it on tiny models, for the way, not for the numbers. The exit status is 1
where float32 tokens differ without excuse.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from typing import Any

import torch

from tasks.bench.mismatches import MARGIN_TOLERANCE
from tasks.bench_gpu import timings
from tasks.bench_gpu.agreement import agreement
from tasks.bench_gpu.compiling import attempted, compiled_layers, static_generate
from tasks.bench_gpu.roofline import copy_bandwidth
from tasks.bench_gpu.shapes import QUICK, SHAPES, PairShape, random_model, random_sources
from tasks.decoding.decoder import Rows
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.runtimes.opened import REFERENCE, Runtime
from tasks.errors import InputError, stage
from tasks.evaluation.timing import synchronised_clock

_FUSED = Runtime("fused")
_COPIED = {"cpu": 1 << 26, "cuda": 1 << 33}


def main() -> int:
    """Prints what it finds as it finds it, then all of it as JSON; gives the exit status."""
    arguments = _arguments()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("bench-gpu times a CUDA GPU, and torch finds none here; --device cpu --quick shows what it does")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    until = time.monotonic() + 60 * arguments.minutes
    clock = synchronised_clock(device.type)
    bandwidth = copy_bandwidth(device, _COPIED[device.type], clock)
    result: dict[str, Any] = _hardware(device) | {"copy_GB_per_s": round(bandwidth / 1e9, 1)}
    say(json.dumps(result))
    size = (2, 8, 12) if arguments.quick else (8, 48, 48)
    runs = [_Pair(shape, device, clock, until) for shape in (QUICK if arguments.quick else SHAPES)]
    for run in runs:
        run.measure(*size, arguments.rounds, bandwidth)
    say(_as_json(result, runs))
    # Compiling may take minutes, and whoever ends it has the rest.
    for run in runs:
        run.measure_compiled()
    print(_as_json(result, runs))
    return int(any(run.wrong for run in runs))


class _Pair:
    """One pair of models, and what is found about it."""

    def __init__(self, shape: PairShape, device: torch.device, clock: Callable[[], float], until: float) -> None:
        self.shape = shape
        self.wrong = 0
        """Texts whose float32 tokens differ without excuse."""
        self.found: dict[str, Any] = {"left_out": []}
        self._device, self._clock, self._until = device, clock, until
        self._bench: timings.PairBenchmark | None = None

    def measure(self, checked: int, limit: int, longest: int, rounds: int, bandwidth: float) -> None:
        """Checks `checked` texts of `limit` tokens in both number formats, and times bfloat16."""
        say(f"\n{self.shape.name}")
        small, large = (random_model(one, self._device, seed) for seed, one in enumerate((self.shape.small, self.shape.large)))
        sources = random_sources(self.shape.large.vocabulary, max(timings.BATCH, rounds + 1), longest)
        self._part("float32_tokens", lambda: self._agreement(small, large, sources[:checked], limit))
        small, large = small.bfloat16(), large.bfloat16()
        self._part("bfloat16_tokens", lambda: self._agreement(small, large, sources[:checked], limit))
        bench = timings.PairBenchmark(
            (small, large), open_pair(small, large, runtime=_FUSED), sources, limit, rounds, self._clock
        )
        self._part("steps", lambda: timings.steps(bench, bandwidth))
        self._part("beside_generate", lambda: timings.comparisons(bench))
        self._part("encoder_ms", lambda: timings.encoder_milliseconds(bench))
        self._part("paces_ms_per_token", lambda: timings.sync_policies(bench))
        self._part("judging_ms_per_token", lambda: timings.verification_sites(bench))
        self._part("peak_GiB", lambda: timings.peaks(bench))
        self._bench = bench if self.shape.compiled else None

    def measure_compiled(self) -> None:
        """What `generate` and the runtime here gain by a compiler."""
        if self._bench is not None:
            bench = self._bench
            say(f"\n{self.shape.name}")
            self._part("compiled_layers", lambda: attempted(lambda: compiled_layers(bench)))
            self._part("static_generate", lambda: attempted(lambda: static_generate(bench)))

    def _part(self, name: str, work: Callable[[], Any]) -> None:
        if time.monotonic() > self._until:
            self.found["left_out"].append(name)
            return
        begun = time.monotonic()
        done = _short(work())
        self.found[name] = done
        say(f"  {name} ({time.monotonic() - begun:.0f} s): {json.dumps(done)}")

    def _agreement(self, small: Any, large: Any, sources: Rows, limit: int) -> dict[str, Any]:
        ours, reference = (open_pair(small, large, runtime=runtime) for runtime in (_FUSED, REFERENCE))
        found = agreement(ours, reference, sources, limit)
        unexcused = sum(margin >= MARGIN_TOLERANCE for margin in found.margins) if large.dtype == torch.float32 else 0
        self.wrong += unexcused
        return found.as_json()


def _as_json(hardware: dict[str, Any], runs: list[_Pair]) -> str:
    ratios = runs[0].found.get("beside_generate", {}).get("ratios", {})
    shapes = {run.shape.name: run.found for run in runs}
    return json.dumps(hardware | ratios | {"float32_wrong": sum(run.wrong for run in runs), "shapes": shapes})


def _short(value: Any) -> Any:
    """With fractions of four digits."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _hardware(device: torch.device) -> dict[str, Any]:
    import transformers

    found: dict[str, Any] = {"device": device.type, "torch": torch.__version__, "transformers": transformers.__version__}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        memory = round(properties.total_memory / 2**30)
        return found | {"gpu": properties.name, "memory_GiB": memory, "cuda": torch.version.cuda}
    return found | {"cpu": platform.machine(), "threads": torch.get_num_threads()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tasks.bench_gpu", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="what runs it (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="tiny models")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each comparison (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="after these, what is not begun is left out (default: %(default)s)"
    )
    return parser.parse_args()


def say(line: str) -> None:
    """At once, since it takes minutes."""
    print(line, flush=True)


if __name__ == "__main__":
    with stage():
        raise SystemExit(main())
