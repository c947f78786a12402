"""What each run of a model costs here, and what counts of runs therefore come to: predicted latency, never measured.

The parts are timed once a sweep: encoders, a step of each model, and how much longer a run of the large model takes over k
positions than over one. What a method costs besides its runs is learned from its points that were timed.
"""

from __future__ import annotations

import bisect
import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.decoding.decoder import Decoder
from tasks.decoding.generation import Counts
from tasks.decoding.settings import VanillaSettings
from tasks.decoding.strategies import Pair, Request, decode

_WIDTHS = (1, 2, 3, 4, 6, 8, 11, 16)
"""Positions of a run of the large model that are timed; between them it is interpolated."""
_ROUNDS = 5
_RIDGE = 0.1
_LEAST = 0.1
"""Share of its runs' time that a text takes at least: what a few points teach may come to less than nothing elsewhere."""


@dataclass
class Costs:
    """Milliseconds of the parts that decoding one example is made of."""

    encode_small_ms: float
    """0 where the large model's encoder serves both."""
    encode_large_ms: float
    small_step_ms: float
    verify_ms: dict[int, float]
    """A run of the large model by the number of positions that it predicts at; 1 is a step of it alone."""
    overhead_ms: dict[str, tuple[float, float]] = field(default_factory=dict)
    """What a text, and what each call of the large model in it, costs besides, by method: deciding, and what lies between runs.
    Below 0 where runs are cheaper than they were by themselves."""
    _asked: dict[int, tuple[Sequence[Counts], float, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def cost_ratio(self) -> float:
        """c: a run of the small model over one of the large (SD, Definition 3.7)."""
        return self.small_step_ms / self.verify_ms[1]

    def verify(self, positions: int) -> float:
        """Milliseconds of a run over so many positions; beyond the widest measured it grows as it did last."""
        widths = sorted(self.verify_ms)
        above = bisect.bisect_left(widths, positions)
        if above < len(widths) and widths[above] == positions:
            return self.verify_ms[positions]
        low, high = widths[max(0, min(above, len(widths) - 1) - 1)], widths[min(max(above, 1), len(widths) - 1)]
        slope = (self.verify_ms[high] - self.verify_ms[low]) / (high - low) if high > low else 0.0
        return self.verify_ms[low] + slope * (positions - low)

    def parts(self, counts: Counts) -> dict[str, float]:
        """Milliseconds of one example by what they were spent on, turns aside."""
        # A large model that is drafted for reads the source, even where the draft ends the text; a shared encoder always runs.
        large = counts.large_calls > 0 or counts.drafted > 0 or self.encode_small_ms == 0
        return {
            "encoders": self.encode_large_ms * large + self.encode_small_ms * (counts.small_steps > 0),
            "small": self.small_step_ms * counts.small_steps,
            "large": sum(self.verify(positions) * calls for positions, calls in counts.verified.items()),
        }

    def latency(self, method: str, by_example: Sequence[Counts]) -> float:
        """Predicted mean milliseconds of examples with these counts."""
        text, call = self.overhead_ms.get(method, (0.0, 0.0))
        runs, calls = self._runs(by_example)
        return max(runs + text + call * calls, _LEAST * runs)

    def learn(self, method: str, timed: Sequence[tuple[Sequence[Counts], float]]) -> None:
        """Sets what `method` costs besides its runs from its timed points: counts by example, and milliseconds that they took.

        Least squares, held back (a ridge) so that points with like numbers of calls do not set the two against each other.
        """
        rows, rest = [], []
        for by_example, measured in timed:
            runs, calls = self._runs(by_example)
            rows.append([1.0, calls])
            rest.append(measured - runs)
        seen = np.array(rows)
        held = seen.T @ seen + _RIDGE * np.eye(2)
        text, call = np.linalg.solve(held, seen.T @ np.array(rest))
        self.overhead_ms[method] = float(text), float(call)

    def _runs(self, by_example: Sequence[Counts]) -> tuple[float, float]:
        """Mean milliseconds of the runs of an example, and its mean number of calls of the large model."""
        # A plan asks about the same points in every round; what is kept holds them, so that none takes another's place.
        _, runs, calls = self._asked.get(id(by_example)) or self._asked.setdefault(
            id(by_example),
            (
                by_example,
                statistics.fmean(sum(self.parts(counts).values()) for counts in by_example),
                statistics.fmean(counts.large_calls for counts in by_example),
            ),
        )
        return runs, calls

    def as_json(self) -> dict[str, Any]:
        """As `pair.json` holds it."""
        return {
            "encode_small_ms": self.encode_small_ms,
            "encode_large_ms": self.encode_large_ms,
            "small_step_ms": self.small_step_ms,
            "verify_ms": {str(positions): ms for positions, ms in self.verify_ms.items()},
            "beside_ms": {method: {"text": text, "call": call} for method, (text, call) in self.overhead_ms.items()},
            "cost_ratio": self.cost_ratio,
        }


def load_or_measure_costs(path: Path, measure: Callable[[], Costs]) -> Costs:
    """The parts as they were measured when they were first asked for, so that a sweep that goes on plans as it had begun."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        costs = measure()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(costs.as_json()), encoding="utf-8")
        partial.replace(path)
        return costs
    parts = {name: kept[name] for name in ("encode_small_ms", "encode_large_ms", "small_step_ms")}
    return Costs(**parts, verify_ms={int(positions): ms for positions, ms in kept["verify_ms"].items()})


def measure_costs(pair: Pair, sources: Sequence[list[int]], request: Request, clock: Callable[[], float]) -> Costs:
    """Times the parts on these sources, one at a time, several rounds; medians count.

    Args:
        pair: The models.
        sources: What is decoded; the parts are means over them.
        request: Length limit and sampling.
        clock: Synchronised with the device.
    """
    encode_small = 0.0 if pair.shares_encoder else _encoding(pair.small, sources, clock)
    encode_large = _encoding(pair.large, sources, clock)
    small_step = _step("vanilla_small", pair, sources, request, clock, _encoding(pair.small, sources, clock))
    large_step = _step("vanilla_large", pair, sources, request, clock, encode_large)
    widths = [width for width in _WIDTHS if 2 * width <= max(2, request.max_new_tokens)]
    alone, *wider = (_run(pair, sources, width, request, clock) for width in widths)
    verify = {1: large_step, **{width: large_step + ms - alone for width, ms in zip(widths[1:], wider, strict=True)}}
    # A wider run is no cheaper: where it seems so, that is noise.
    for before, width in itertools.pairwise(widths):
        verify[width] = max(verify[width], verify[before])
    return Costs(encode_small, encode_large, small_step, verify)


def _timed(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Milliseconds, the median of a few rounds after one that is not counted."""
    run()
    times = []
    for _ in range(_ROUNDS):
        begun = clock()
        run()
        times.append(1000 * (clock() - begun))
    return statistics.median(times)


@torch.inference_mode()
def _encoding(decoder: Decoder, sources: Sequence[list[int]], clock: Callable[[], float]) -> float:
    def run() -> None:
        for source in sources:
            decoder.start(decoder.encode([source]))

    return _timed(run, clock) / len(sources)


def _step(
    method: str, pair: Pair, sources: Sequence[list[int]], request: Request, clock: Callable[[], float], encoding: float
) -> float:
    """A step of a model that decodes alone, by what its texts take beyond encoding."""
    tokens = sum(len(decode(method, VanillaSettings(), pair, [source], request)[0].tokens) for source in sources)

    def run() -> None:
        for source in sources:
            decode(method, VanillaSettings(), pair, [source], request)

    return max(0.0, _timed(run, clock) - encoding * len(sources)) / tokens


@torch.inference_mode()
def _run(pair: Pair, sources: Sequence[list[int]], width: int, request: Request, clock: Callable[[], float]) -> float:
    """A run of the large model over `width` tokens of its own text, amid that text."""
    large, times = pair.large, []
    for source in sources[: max(1, len(sources) // 3)]:
        [text] = decode("vanilla_large", VanillaSettings(), pair, [source], request)
        [start] = large.start(large.encode([source]))
        known = start + (text.tokens * width)[: len(text.tokens) // 2 + width]
        held = len(known) - width
        if held:
            large.forward([known[:held]])

        def run(held: int = held, fed: list[int] = known[held:]) -> None:
            large.rewind([held])
            large.forward([fed])

        times.append(_timed(run, clock))
    return statistics.fmean(times)
