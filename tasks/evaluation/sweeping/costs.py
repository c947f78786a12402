"""The cost model: times of encoders and model runs on this machine, and the latency that they predict for a method's counts.

The parts are timed once for each sweep: encoders, a step of each model, and how much longer a run of the large model over k
positions takes than a run over one. The overhead of a method besides its model runs is fitted to its timed points. Predicted
latencies are never reported as measured ones.
"""

from __future__ import annotations

import bisect
import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from tasks.decoding.decoder import Decoder
from tasks.decoding.generation import Counts
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.settings import VanillaSettings
from tasks.evaluation.results.codec import encode
from tasks.evaluation.results.pair import MeasuredCosts, MethodOverhead
from tasks.files import atomic_write

_WIDTHS = (1, 2, 3, 4, 6, 8, 11, 16)
"""Positions of the timed runs of the large model; other widths are interpolated."""
_ROUNDS = 5
_RIDGE = 0.1
_MIN_SHARE_OF_RUNS = 0.1
"""Lower bound of a predicted latency as a share of its model runs, since a fitted overhead may extrapolate below 0."""
_NO_OVERHEAD = MethodOverhead(text=0.0, call=0.0)


@dataclass
class Costs:
    """Milliseconds of the parts that decoding one example is made of."""

    encode_small_ms: float
    """0 where the large model's encoder serves both."""
    encode_large_ms: float
    small_step_ms: float
    verify_ms: dict[int, float]
    """A run of the large model by the number of positions that it predicts; 1 is one of its decoding steps."""
    overhead_ms: dict[str, MethodOverhead] = field(default_factory=dict)
    """Milliseconds besides the model runs, by method: decisions and everything between runs.

    They are negative where runs are cheaper than when timed alone.
    """
    _cache: dict[int, tuple[Sequence[Counts], float, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def cost_ratio(self) -> float:
        """c: a run of the small model over one of the large (SD, Definition 3.7)."""
        return self.small_step_ms / self.verify_ms[1]

    def verify(self, positions: int) -> float:
        """Milliseconds of a run over `positions` tokens, extrapolated linearly beyond the widest timed run."""
        widths = sorted(self.verify_ms)
        above = bisect.bisect_left(widths, positions)
        if above < len(widths) and widths[above] == positions:
            return self.verify_ms[positions]
        low, high = widths[max(0, min(above, len(widths) - 1) - 1)], widths[min(max(above, 1), len(widths) - 1)]
        slope = (self.verify_ms[high] - self.verify_ms[low]) / (high - low) if high > low else 0.0
        return self.verify_ms[low] + slope * (positions - low)

    def parts(self, counts: Counts) -> dict[str, float]:
        """Milliseconds of one example's model runs: `encoders`, `small` and `large`."""
        # The large model reads the source of every draft, even one that ends the text; a shared encoder always runs.
        large = counts.large_calls > 0 or counts.drafted > 0 or self.encode_small_ms == 0
        return {
            "encoders": self.encode_large_ms * large + self.encode_small_ms * (counts.small_steps > 0),
            "small": self.small_step_ms * counts.small_steps,
            "large": sum(self.verify(positions) * calls for positions, calls in counts.verified.items()),
        }

    def latency(self, method: str, by_example: Sequence[Counts]) -> float:
        """Predicted mean milliseconds of examples with these counts."""
        overhead = self.overhead_ms.get(method, _NO_OVERHEAD)
        runs, calls = self._runs(by_example)
        return max(runs + overhead.text + overhead.call * calls, _MIN_SHARE_OF_RUNS * runs)

    def fit_overhead(self, method: str, timed: Sequence[tuple[Sequence[Counts], float]]) -> None:
        """Fit the method's overhead for each text and each call of the large model to its timed points.

        The fit is a ridge regression, since points with similar numbers of calls do not determine the two separately.

        Args:
            method: Its name.
            timed: Counts by example and measured mean milliseconds, for each timed point.
        """
        rows, rest = [], []
        for by_example, measured in timed:
            runs, calls = self._runs(by_example)
            rows.append([1.0, calls])
            rest.append(measured - runs)
        design = np.array(rows)
        gram = design.T @ design + _RIDGE * np.eye(2)
        text, call = np.linalg.solve(gram, design.T @ np.array(rest))
        self.overhead_ms[method] = MethodOverhead(text=float(text), call=float(call))

    def _runs(self, by_example: Sequence[Counts]) -> tuple[float, float]:
        """Mean milliseconds of an example's model runs, and its mean number of calls of the large model."""
        # A plan asks about the same points in every round. The entry keeps its key object alive, so that no id is reused.
        _, runs, calls = self._cache.get(id(by_example)) or self._cache.setdefault(
            id(by_example),
            (
                by_example,
                statistics.fmean(sum(self.parts(counts).values()) for counts in by_example),
                statistics.fmean(counts.large_calls for counts in by_example),
            ),
        )
        return runs, calls

    def record(self) -> MeasuredCosts:
        """The costs as `pair.json` holds them."""
        return MeasuredCosts(
            encode_small_ms=self.encode_small_ms,
            encode_large_ms=self.encode_large_ms,
            small_step_ms=self.small_step_ms,
            verify_ms=dict(self.verify_ms),
            overhead_ms=dict(self.overhead_ms),
            cost_ratio=self.cost_ratio,
        )


def load_or_measure_costs(path: Path, measure: Callable[[], Costs]) -> Costs:
    """The part times of an interrupted sweep, so that a resumed sweep plans like the first; measured where there are none."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        costs = measure()
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(encode(costs.record())))
        return costs
    parts = {name: stored[name] for name in ("encode_small_ms", "encode_large_ms", "small_step_ms")}
    return Costs(**parts, verify_ms={int(positions): ms for positions, ms in stored["verify_ms"].items()})


def measure_costs(pair: Pair, sources: Sequence[list[int]], request: Request, clock: Callable[[], float]) -> Costs:
    """Time the parts on each of these sources in several rounds; each part is the median round.

    Args:
        pair: The models.
        sources: Token ids; the parts are means over them.
        request: Length limit and sampling.
        clock: Seconds, synchronised with the device.
    """
    encode_small = 0.0 if pair.shares_encoder else _encode_ms(pair.small, sources, clock)
    encode_large = _encode_ms(pair.large, sources, clock)
    small_step = _step_ms("vanilla_small", pair, sources, request, clock, _encode_ms(pair.small, sources, clock))
    large_step = _step_ms("vanilla_large", pair, sources, request, clock, encode_large)
    widths = [width for width in _WIDTHS if 2 * width <= max(2, request.max_new_tokens)]
    single, *wider = (_run_ms(pair, sources, width, request, clock) for width in widths)
    verify = {1: large_step, **{width: large_step + ms - single for width, ms in zip(widths[1:], wider, strict=True)}}
    # A wider run is never cheaper; where it seems so, that is noise.
    for before, width in itertools.pairwise(widths):
        verify[width] = max(verify[width], verify[before])
    return Costs(encode_small, encode_large, small_step, verify)


def _median_ms(run: Callable[[], object], clock: Callable[[], float]) -> float:
    """The median of several rounds in milliseconds, after a warm-up round."""
    run()
    times = []
    for _ in range(_ROUNDS):
        begun = clock()
        run()
        times.append(1000 * (clock() - begun))
    return statistics.median(times)


@torch.inference_mode()
def _encode_ms(decoder: Decoder, sources: Sequence[list[int]], clock: Callable[[], float]) -> float:
    def run() -> None:
        for source in sources:
            decoder.start(decoder.encode([source]))

    return _median_ms(run, clock) / len(sources)


def _step_ms(
    method: str, pair: Pair, sources: Sequence[list[int]], request: Request, clock: Callable[[], float], encode_ms: float
) -> float:
    """A step of a model that decodes alone: its texts' time without the encoder, by token."""
    tokens = sum(len(decode(method, VanillaSettings(), pair, [source], request)[0].tokens) for source in sources)

    def run() -> None:
        for source in sources:
            decode(method, VanillaSettings(), pair, [source], request)

    return max(0.0, _median_ms(run, clock) - encode_ms * len(sources)) / tokens


@torch.inference_mode()
def _run_ms(pair: Pair, sources: Sequence[list[int]], width: int, request: Request, clock: Callable[[], float]) -> float:
    """A run of the large model over `width` tokens in the middle of its own texts."""
    large, times = pair.large, []
    for source in sources[: max(1, len(sources) // 3)]:
        [text] = decode("vanilla_large", VanillaSettings(), pair, [source], request)
        [start] = large.start(large.encode([source]))
        tokens = start + (text.tokens * width)[: len(text.tokens) // 2 + width]
        cached = len(tokens) - width
        if cached:
            large.forward([tokens[:cached]])

        def run(cached: int = cached, new: list[int] = tokens[cached:]) -> None:
            large.rewind([cached])
            large.forward([new])

        times.append(_median_ms(run, clock))
    return statistics.fmean(times)
