"""Decoding speed on a GPU compared with `transformers.generate` on the same weights and inputs, in one run.

Why it exists: on a GPU, a decoding step of a small batch runs a few hundred kernels of microseconds each, so a loop that
launches them one by one is bound by Python rather than by memory bandwidth. This benchmark measures how far decoding here and
`generate` are from the bandwidth limit, and whether a drafter pays for its steps. It needs only torch and transformers: models
are random, in pairs that agree on most tokens. The fused runtime's tokens are first checked against the reference's.

Run `python -m tasks.bench_gpu`. The last line is JSON; its ratios are those of the first pair, and above 1 where decoding here
is faster. `--device cpu --quick` runs every part on tiny models to check that it works; its numbers mean nothing. The exit
status is 1 if float32 tokens differ at a top-2 margin of `MARGIN_TOLERANCE` or more.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from tasks.bench.timing import Found
from tasks.bench_gpu import timings
from tasks.bench_gpu.agreement import agreement
from tasks.bench_gpu.compiling import attempted, compiled_layers, static_generate
from tasks.bench_gpu.roofline import copy_bandwidth
from tasks.bench_gpu.shapes import QUICK, SHAPES, PairShape, random_model, random_sources
from tasks.decoding.decoder import REFERENCE, Rows, Runtime
from tasks.decoding.runtimes.choose import open_pair
from tasks.errors import InputError, stage
from tasks.evaluation.mismatches import MARGIN_TOLERANCE
from tasks.evaluation.timing import synchronised_clock

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FUSED = Runtime("fused")
_COPIED = {"cpu": 1 << 26, "cuda": 1 << 33}


def main() -> int:
    """Print each result as it is measured, then all of them as JSON; return the exit status."""
    arguments = _arguments()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("bench-gpu times a CUDA GPU, and torch finds none; --device cpu --quick runs it on a CPU")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    until = time.monotonic() + 60 * arguments.minutes
    clock = synchronised_clock(device.type)
    bandwidth = copy_bandwidth(device, _COPIED[device.type], clock)
    result: dict[str, object] = _hardware(device) | {"copy_GB_per_s": round(bandwidth / 1e9, 1)}
    say(json.dumps(result))
    size = (2, 8, 12) if arguments.quick else (8, 48, 48)
    runs = [_Pair(shape, device, clock, until) for shape in (QUICK if arguments.quick else SHAPES)]
    for run in runs:
        run.measure(*size, arguments.rounds, bandwidth)
    say(_as_json(result, runs))
    # Compiling may take minutes; the results so far are already printed.
    for run in runs:
        run.measure_compiled()
    print(_as_json(result, runs))
    return int(any(run.wrong for run in runs))


class _Pair:
    """One pair of models and its results."""

    def __init__(self, shape: PairShape, device: torch.device, clock: Callable[[], float], until: float) -> None:
        self.shape = shape
        self.wrong = 0
        """Texts whose float32 tokens differ at a margin of `MARGIN_TOLERANCE` or more."""
        self.found: Found = {"left_out": []}
        self._device, self._clock, self._until = device, clock, until
        self._bench: timings.PairBenchmark | None = None

    def measure(self, checked: int, limit: int, longest: int, rounds: int, bandwidth: float) -> None:
        """Check `checked` texts of `limit` tokens in float32 and bfloat16, then time bfloat16."""
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
        self._part("sync_policy_ms_per_token", lambda: timings.sync_policies(bench))
        self._part("verification_ms_per_token", lambda: timings.verification_sites(bench))
        self._part("peak_GiB", lambda: timings.peaks(bench))
        self._bench = bench if self.shape.compiled else None

    def measure_compiled(self) -> None:
        """Measure what `generate` and the fused runtime gain from compilation."""
        if self._bench is not None:
            bench = self._bench
            say(f"\n{self.shape.name}")
            self._part("compiled_layers", lambda: attempted(lambda: compiled_layers(bench)))
            self._part("static_generate", lambda: attempted(lambda: static_generate(bench)))

    def _part(self, name: str, work: Callable[[], object]) -> None:
        if time.monotonic() > self._until:
            self.found["left_out"].append(name)
            return
        begun = time.monotonic()
        done = _short(work())
        self.found[name] = done
        say(f"  {name} ({time.monotonic() - begun:.0f} s): {json.dumps(done)}")

    def _agreement(self, small: PreTrainedModel, large: PreTrainedModel, sources: Rows, limit: int) -> dict[str, object]:
        ours, reference = (open_pair(small, large, runtime=runtime) for runtime in (_FUSED, REFERENCE))
        found = agreement(ours, reference, sources, limit)
        beyond_tolerance = sum(margin >= MARGIN_TOLERANCE for margin in found.margins) if large.dtype == torch.float32 else 0
        self.wrong += beyond_tolerance
        return found.as_json()


def _as_json(hardware: dict[str, object], runs: list[_Pair]) -> str:
    ratios = runs[0].found.get("beside_generate", {}).get("ratios", {})
    shapes = {run.shape.name: run.found for run in runs}
    return json.dumps(hardware | ratios | {"float32_wrong": sum(run.wrong for run in runs), "shapes": shapes})


def _short(value: object) -> object:
    """The value with floats rounded to four significant digits."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _hardware(device: torch.device) -> dict[str, object]:
    import transformers

    found: dict[str, object] = {"device": device.type, "torch": torch.__version__, "transformers": transformers.__version__}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        memory = round(properties.total_memory / 2**30)
        return found | {"gpu": properties.name, "memory_GiB": memory, "cuda": torch.version.cuda}
    return found | {"cpu": platform.machine(), "threads": torch.get_num_threads()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tasks.bench_gpu", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where models run (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="use tiny models")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each comparison (default: %(default)s)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=8.0,
        help="leave out parts that have not begun by then (default: %(default)s)",
    )
    return parser.parse_args()


def say(line: str) -> None:
    """Print a line and flush it."""
    print(line, flush=True)


if __name__ == "__main__":
    with stage():
        raise SystemExit(main())
