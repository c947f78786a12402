"""The cost model: times of encoders and model runs on this machine, and the latency that they predict for a method's counts.

The parts are timed once for each sweep: encoders, a step of each model, and how much longer a run of the large model over k
positions takes than a run over one. What decoding takes besides these runs is fitted to the timed points of all methods and to
the small model alone (`overheads`). Predicted latencies are never reported as measured ones.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tasks.decoding.decoder import Decoder
from tasks.decoding.generation import Counts
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes.compiled import LEAST_SHARE, bandwidth_share
from tasks.decoding.settings import VanillaSettings
from tasks.evaluation.results.codec import encode
from tasks.evaluation.results.pair import MeasuredCosts, interpolated
from tasks.evaluation.sweeping.overheads import Overheads, Work, fitted_overheads
from tasks.files import atomic_write

_WIDTHS = (1, 2, 3, 4, 6, 8, 11, 16)
"""Positions of the timed runs of the large model; other widths are interpolated."""
_ROUNDS = 5
_MIN_SHARE_OF_RUNS = 0.1
"""Lower bound of a predicted latency as a share of its model runs, since a fitted overhead may extrapolate below 0."""


@dataclass
class Costs:
    """Milliseconds of the parts that decoding one example is made of."""

    encode_small_ms: float
    """0 where the large model's encoder serves both."""
    encode_large_ms: float
    small_step_ms: float
    verify_ms: dict[int, float]
    """A run of the large model by the number of positions that it predicts; 1 is one of its decoding steps."""
    overheads: Overheads = field(default_factory=Overheads)
    """Milliseconds besides these runs, fitted to the timed points."""
    _cache: dict[int, tuple[Sequence[Counts], Work]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def cost_ratio(self) -> float:
        """c: a run of the small model over one of the large (SD, Definition 3.7)."""
        return self.small_step_ms / self.verify_ms[1]

    def verify(self, positions: int) -> float:
        """Milliseconds of a run over `positions` tokens, extrapolated linearly beyond the widest timed run."""
        return interpolated(self.verify_ms, positions)

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
        work = self._work(by_example)
        return max(work.runs_ms + self.overheads.of(method, work), _MIN_SHARE_OF_RUNS * work.runs_ms)

    def fit_overheads(self, timed: Sequence[tuple[str, Sequence[Counts], float]]) -> None:
        """Fit the overheads to timed points.

        Args:
            timed: Method, counts by example and measured mean milliseconds, for each timed point.
        """
        observed = [(method, self._work(by_example), measured) for method, by_example, measured in timed]
        self.overheads = fitted_overheads(observed, self.verify_ms[1])

    def _work(self, by_example: Sequence[Counts]) -> Work:
        """Means over the examples of what their latency depends on."""
        # A plan asks about the same points in every round. The entry keeps its key object alive, so that no id is reused.
        if id(by_example) not in self._cache:
            parts = [self.parts(counts) for counts in by_example]
            work = Work(
                runs_ms=statistics.fmean(sum(part.values()) for part in parts),
                small_ms=statistics.fmean(part["small"] for part in parts),
                calls=statistics.fmean(counts.large_calls for counts in by_example),
                mixed=statistics.fmean(
                    counts.large_calls > 0 and counts.small_steps + counts.drafted > 0 for counts in by_example
                ),
            )
            self._cache[id(by_example)] = by_example, work
        return self._cache[id(by_example)][1]

    def record(self) -> MeasuredCosts:
        """The costs as `pair.json` holds them."""
        return MeasuredCosts(
            encode_small_ms=self.encode_small_ms,
            encode_large_ms=self.encode_large_ms,
            small_step_ms=self.small_step_ms,
            verify_ms=dict(self.verify_ms),
            overhead_ms=dict(self.overheads.by_method),
            small_step_slowdown=self.overheads.small,
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


def slow_step_warning(large: Decoder, costs: Costs) -> str:
    """A warning where vanilla uses less than half of the machine, so that every speed-up over it flatters; otherwise empty."""
    share = bandwidth_share(large.capabilities.step_bytes, costs.verify_ms[1] / 1000)
    if share is None or share >= LEAST_SHARE:
        return ""
    return (
        f"a step of the large model uses {share:.0%} of this machine's bandwidth for its weights, so that "
        "speed-ups over vanilla look better than they are; python -m tasks.bench decoding measures where the time goes"
    )
