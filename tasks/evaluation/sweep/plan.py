"""The cost model, and the plan of a sweep: which replayed points to time.

The parts of decoding are timed once for each sweep: encoders, a step of each model, and how much longer a run of the large
model over k positions takes than a run over one. What decoding takes besides these runs is fitted to the timed points of all
methods and to the small model alone. Predicted latencies are never reported as measured ones.

The plan times points on or near the predicted frontier (one of several similar points), points that would be chosen, and a
random sample of the rest to measure the prediction error. Quality and counts are exact before anything is timed; only speed is
predicted. Each timed point refines the cost model, so a plan proceeds step by step until every wanted point has its first
round. Further rounds are for those that are on or near the frontier, or chosen, by all their rounds so far.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tasks.decoding.decoder import Decoder
from tasks.decoding.generation import Counts
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.compiled import bandwidth_share
from tasks.errors import InputError
from tasks.evaluation.results.codec import Source, read, text_of
from tasks.evaluation.results.pair import Costs, PredictionError
from tasks.evaluation.selection import TradeOff, choose, keeps_quality, resolution
from tasks.evaluation.settings import CHOICES, SweepSettings
from tasks.files import atomic_write, warn_of_damage

# Overheads: what decoding takes besides the model runs. Most of it is common to the methods that use both models: composing a
# text's loop, and caches that one model fills and the other empties. So the first timed point of one method tells much about
# all others. The fit is a Bayesian linear regression: a common overhead for each text and for each call of the large model, a
# slow-down of the small model's steps (beside the large model they find colder caches than alone), and for each method a small
# deviation from the common two. Priors are normal around 0.

Array = NDArray[np.float64]
_TEXT, _CALL, _SMALL = 3.0, 0.15, 0.5
"""Prior standard deviations: of the overhead of a text and of a call, in steps of the large model, and of the slow-down."""
_OWN_TEXT, _OWN_CALL = 0.4, 0.3
"""Of a method's deviations from the common overheads, in steps of the large model."""
_NOISE = 0.03
"""Standard deviation of a measured latency, as a share of it."""
_NOISES, _SPREADS = (1.0, 2.0, 4.0, 8.0), (1.0, 3.0, 10.0, 30.0)
"""Factors of the noise, on a busy machine, and of the methods' deviations; the pair that explains the points best is taken."""
_COMMON = 3
"""Columns that all methods share: text, call, small."""
_MIN_SHARE_OF_RUNS = 0.1
"""Lower bound of a predicted latency as a share of its model runs, since a fitted overhead may extrapolate below 0."""


@dataclass(frozen=True)
class Work:
    """What the latency of a text depends on: means over the timed examples."""

    runs_ms: float
    """Milliseconds of all model runs, as they were timed alone."""
    small_ms: float
    """Those of the small model's steps."""
    calls: float
    """Of the large model."""
    mixed: float
    """Share of the texts in which the large model ran and a drafter proposed something."""


class MethodOverhead(NamedTuple):
    """Milliseconds that a method takes besides its model runs."""

    text: float = 0.0
    """For each text."""
    call: float = 0.0
    """For each call of the large model."""


@dataclass(frozen=True)
class Overheads:
    """Milliseconds besides the model runs."""

    common: MethodOverhead = field(default_factory=MethodOverhead)
    """Of a method without a timed point."""
    by_method: dict[str, MethodOverhead] = field(default_factory=dict)
    small: float = 0.0
    """Slow-down of the small model's steps, as a share of their time alone; it may be negative."""

    def latency(self, method: str, work: Work) -> float:
        """Predicted mean milliseconds of a text, model runs included."""
        one = self.by_method.get(method, self.common)
        more = one.text * work.mixed + one.call * work.calls * (work.mixed > 0) + self.small * work.small_ms
        return max(work.runs_ms + more, _MIN_SHARE_OF_RUNS * work.runs_ms)


def _posterior(design: Array, rest: Array, noise: Array, prior: Array) -> tuple[float, Array]:
    """The logarithm of the evidence for these standard deviations of the points and of the coefficients, and the mean of the
    coefficients given the points."""
    weighted = design * prior**2
    covariance = weighted @ design.T + np.diag(noise**2)
    solved = np.linalg.solve(covariance, rest)
    evidence = -0.5 * (rest @ solved + np.linalg.slogdet(covariance).logabsdet)
    return float(evidence), weighted.T @ solved


def fitted_overheads(timed: Sequence[tuple[str, Work, float]], step_ms: float) -> Overheads:
    """The overheads that explain the timed points best.

    Args:
        timed: Method, work and measured milliseconds of each point.
        step_ms: A step of the large model, the unit of the priors.
    """
    methods = list(dict.fromkeys(method for method, *_ in timed))
    design = np.zeros((len(timed), _COMMON + 2 * len(methods)))
    for row, (method, work, _) in zip(design, timed, strict=True):
        own = _COMMON + 2 * methods.index(method)
        row[:_COMMON] = work.mixed, work.calls * (work.mixed > 0), work.small_ms
        row[own : own + 2] = row[:2]
    measured = np.array([one for *_, one in timed])
    rest = measured - np.array([work.runs_ms for _, work, _ in timed])
    fits = []
    for noise, spread in itertools.product(_NOISES, _SPREADS):
        own_prior = [_OWN_TEXT * step_ms * spread, _OWN_CALL * step_ms * spread]
        prior = np.array([_TEXT * step_ms, _CALL * step_ms, _SMALL, *own_prior * len(methods)])
        fits.append((*_posterior(design, rest, noise * _NOISE * measured, prior), noise**2 * spread**0.5))
    # Wider factors need evidence: a few points do not tell noise from deviations.
    found = max(fits, key=lambda fit: fit[0] - math.log(fit[2]))[1]
    text, call, small = found[:_COMMON].tolist()
    by_method = {
        method: MethodOverhead(text=text + float(own_text), call=call + float(own_call))
        for method, (own_text, own_call) in zip(methods, found[_COMMON:].reshape(-1, 2), strict=True)
    }
    return Overheads(MethodOverhead(text=text, call=call), by_method, small)


# The cost model.

_WIDTHS = (1, 2, 3, 4, 6, 8, 11, 16)
"""Positions of the timed runs of the large model; other widths are interpolated."""
_ROUNDS, _ENOUGH_MS = 5, 10_000.0
"""Rounds of a part, and the time after which no further one begins."""
_LEAST_OF_STEPS = 0.01
"""Of the time of a text, the least that its steps are taken for."""


def work_of(by_example: Sequence[Counts], costs: Costs) -> Work:
    """Means over examples of what their latency depends on, from the counts of each."""

    def runs_ms(counts: Counts) -> float:
        # The large model reads the source of every draft, even one that ends the text; a shared encoder always runs.
        large = counts.large_calls > 0 or counts.drafted > 0 or costs.encode_small_ms == 0
        encoders = costs.encode_large_ms * large + costs.encode_small_ms * (counts.small_steps > 0)
        checks = sum(costs.verify(positions) * calls for positions, calls in counts.verified.items())
        return encoders + costs.small_step_ms * counts.small_steps + checks

    return Work(
        runs_ms=statistics.fmean(map(runs_ms, by_example)),
        small_ms=statistics.fmean(costs.small_step_ms * counts.small_steps for counts in by_example),
        calls=statistics.fmean(counts.large_calls for counts in by_example),
        mixed=statistics.fmean(counts.large_calls > 0 and counts.small_steps + counts.drafted > 0 for counts in by_example),
    )


def common_costs(measured: Sequence[Costs]) -> Costs:
    """The costs of all drafters of a task: their architecture is one, so that each part is the median over them."""
    median, first = statistics.median, measured[0]
    shares = [one.bandwidth_share for one in measured if one.bandwidth_share is not None]
    small_step = median(one.small_step_ms for one in measured)
    verify = {width: median(one.verify_ms[width] for one in measured) for width in first.verify_ms}
    return Costs(
        encode_small_ms=median(one.encode_small_ms for one in measured),
        encode_large_ms=median(one.encode_large_ms for one in measured),
        small_step_ms=small_step,
        verify_ms=verify,
        cost_ratio=small_step / verify[1],
        bandwidth_share=median(shares) if shares else None,
    )


def load_or_measure_costs(path: Path, measure: Callable[[], Costs]) -> Costs:
    """The part times of an interrupted sweep, so that a resumed sweep plans like the first; measured where there are none."""
    try:
        return read(Costs, path, Source(str(path), "remove it"))
    except FileNotFoundError:
        pass
    except InputError as error:
        warn_of_damage(path, error)
    costs = measure()
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, text_of(costs))
    return costs


@torch.inference_mode()
def measure_costs(pair: Pair, sources: Sequence[list[int]], request: Request, clock: Callable[[], float]) -> Costs:
    """Time the parts on each of these sources; each is the median of several rounds, fewer where a round takes seconds.

    Args:
        pair: The models; where both are one, it is timed once.
        sources: Token ids; the parts are means over them.
        request: Length limit and sampling.
        clock: Seconds, synchronised with the device.
    """

    def median_ms(run: Callable[[], object]) -> float:
        times = list[float]()
        while len(times) <= _ROUNDS and sum(times) < _ENOUGH_MS:
            begun = clock()
            run()
            times.append(1000 * (clock() - begun))
        # The first round warms up, unless it took so long that it is the only one.
        return statistics.median(times[1:] or times)

    def alone(method: str) -> list[Sequence[int]]:
        return [decode(method, VanillaSettings(), pair, [source], request)[0].tokens for source in sources]

    def parts(model: Decoder, method: str) -> tuple[float, float, list[Sequence[int]]]:
        """The encoder, a step of the model when it decodes alone, and the texts."""
        texts, count = alone(method), len(sources)
        tokens = sum(map(len, texts))
        # A run over a prompt is a decoder-only model's encoder, and its first step as well.
        prompted = tokens > count and max(map(len, model.start(model.encode(list(sources))))) > 1

        def read_all() -> None:
            for source in sources:
                start = model.start(model.encode([source]))
                if prompted:
                    model.forward(start)

        read_ms = median_ms(read_all)
        whole_ms = median_ms(functools.partial(alone, method))
        # On a busy machine reading may seem to take all of the time; a step takes some.
        step_ms = max(_LEAST_OF_STEPS * whole_ms, whole_ms - read_ms) / (tokens - count * prompted)
        return max(0.0, read_ms / count - step_ms * prompted), step_ms, texts

    # 1. The encoders, and 2. the steps.
    large = parts(pair.large, "vanilla_large")
    encode_large, large_step, texts = large
    encode_small, small_step, _ = parts(pair.small, "vanilla_small") if pair.small is not pair.large else large
    # 3. Runs of the large model over several positions, as far as they take longer than a run over one.
    widths = [width for width in _WIDTHS if 2 * width <= max(2, request.max_new_tokens)]
    checked = list(zip(sources, texts, strict=True))[: max(1, len(sources) // 3)]
    single, *wider = (
        statistics.fmean(median_ms(_run_of(pair.large, source, text, width)) for source, text in checked) for width in widths
    )
    verify = {1: large_step, **{width: large_step + ms - single for width, ms in zip(widths[1:], wider, strict=True)}}
    # A wider run is never cheaper; where it seems so, that is noise.
    for before, width in itertools.pairwise(widths):
        verify[width] = max(verify[width], verify[before])
    return Costs(
        encode_small_ms=0.0 if pair.shares_encoder else encode_small,
        encode_large_ms=encode_large,
        small_step_ms=small_step,
        verify_ms=verify,
        cost_ratio=small_step / large_step,
        bandwidth_share=bandwidth_share(pair.large.capabilities.step_bytes, large_step / 1000),
    )


def _run_of(large: Decoder, source: list[int], text: Sequence[int], width: int) -> Callable[[], object]:
    """A run of the large model over `width` tokens in the middle of its own text."""
    [start] = large.start(large.encode([source]))
    tokens = start + (list(text) * width)[: len(text) // 2 + width]
    cached, new = tokens[: len(tokens) - width], tokens[len(tokens) - width :]
    if cached:
        large.forward([cached])

    def run() -> None:
        large.rewind([len(cached)])
        large.forward([new])

    return run


# The plan.


@dataclass(frozen=True)
class Candidate:
    """A replayed point that may be timed."""

    method: str
    quality: float
    work: Work
    """Of the timed examples."""
    lower: float | None = None
    """Corrected lower bound of its quality difference to vanilla, in points; a point without one is never chosen."""
    rule: str = ""
    """Acceptance rule of a method that has several; rules share one overhead, but keep different tokens."""


@dataclass
class Plan:
    """Timed points, predicted speed-ups, and the points to time next; it begins with nothing timed."""

    candidates: Mapping[int, Candidate]
    """By index."""
    known: Sequence[TradeOff]
    """Measured baselines; a point that is no better than one of them is not timed."""
    costs: Costs
    """The parts of decoding; what it takes besides them is fitted as points are timed."""
    vanilla: Candidate
    """The large model alone."""
    sweep: SweepSettings
    """What a choice may lose (`margins`), what is near the frontier (`near`), how many random points of the rest are timed
    (`sample`), and the seed of that sample."""
    small_model: tuple[Candidate, float] | None = None
    """The small model alone and its measured speed-up, from which the cost model learns as well."""
    timed: dict[int, float] = field(default_factory=dict)
    """Measured speed-ups by index."""
    predicted: dict[int, float] = field(default_factory=dict)
    """Speed-up predicted for each point just before it was timed."""
    why: dict[int, str] = field(default_factory=dict)
    """Why each point was timed: `anchor`, `choice`, `frontier` or `sample`."""

    def __post_init__(self) -> None:
        """Learn from the small model."""
        self._rng = random.Random(self.sweep.seed)  # noqa: S311 (a sample, not a secret)
        self._overheads = Overheads()
        if self.small_model is not None:
            self._fit()

    @property
    def vanilla_ms(self) -> float:
        """Predicted latency of the large model alone."""
        return self._overheads.latency(self.vanilla.method, self.vanilla.work)

    def speedup(self, index: int) -> float:
        """Predicted speed-up of a candidate by the current cost model."""
        candidate = self.candidates[index]
        return self.vanilla_ms / self._overheads.latency(candidate.method, candidate.work)

    def record(self, index: int, speedup: float | None, predicted: float | None = None) -> None:
        """Record a measured speed-up, and refit the overheads.

        Args:
            index: The point.
            speedup: None for a point that failed.
            predicted: Its prediction where an interrupted sweep has made it.
        """
        self.timed.pop(index, None)
        if predicted is not None:
            self.predicted[index] = predicted
        if speedup is not None:
            self.timed[index] = speedup
        self._fit()

    def _fit(self) -> None:
        timed = [(self.candidates[index], speedup) for index, speedup in self.timed.items()]
        timed += [] if self.small_model is None else [self.small_model]
        # The ratio to vanilla is fitted instead of milliseconds, since it stands when the machine slows down.
        observed = [(one.method, one.work, self.vanilla_ms / speedup) for one, speedup in timed]
        self._overheads = fitted_overheads(observed, self.costs.verify_ms[1])

    def next(self) -> list[int]:
        """The points to time now, with their reasons in `why`; empty when the plan is done."""
        wanted = self._anchors() or self._promising() or self._rest()
        for index, why in wanted.items():
            self.why[index] = why
            self.predicted[index] = self.speedup(index)
        return list(wanted)

    def _open(self) -> list[int]:
        return [index for index in self.candidates if index not in self.why]

    def _anchors(self) -> dict[int, str]:
        """For each method without a timed point, its best point by the cost of model runs alone."""
        seen = {self.candidates[index].method for index in self.why}
        points = self._points()
        found: dict[int, str] = {}
        for method in dict.fromkeys(self.candidates[index].method for index in self._open()):
            if method not in seen:
                own = [index for index in self._open() if self.candidates[index].method == method]
                good = self._choose(own, points, "one_point")
                best = max(own, key=lambda index: self.candidates[index].quality) if good is None else good
                found[best] = "anchor"
        return found

    def _points(self) -> dict[int, TradeOff]:
        """Quality and measured or predicted speed-up of every candidate; points that failed when timed are left out."""
        return {
            index: TradeOff(candidate.quality, self.timed.get(index) or self.speedup(index))
            for index, candidate in self.candidates.items()
            if index in self.timed or index not in self.why
        }

    def _promising(self) -> dict[int, str]:
        """Points on or near the frontier, and points that would be chosen."""
        points, waiting = self._points(), set(self._open())
        wanted: dict[int, str] = {}
        for own, choice in self._choices(points):
            index = self._choose(own, points, choice)
            # The fastest point of a method may be slower than vanilla, and then it is no choice worth timing.
            if index is not None and index in waiting and points[index].speedup * (1 + self.sweep.near) > 1:
                wanted[index] = "choice"
        represented = [points[index] for index in (*self.timed, *wanted)]
        # From the frontier inwards, so that points on the frontier represent those near it.
        for index in sorted(waiting - wanted.keys(), key=lambda index: points[index].speedup, reverse=True):
            if self._near_frontier(points[index], points) and not self._represented(points[index], represented):
                wanted[index] = "frontier"
                represented.append(points[index])
        return wanted

    def _choose(self, own: Sequence[int], points: Mapping[int, TradeOff], choice: str) -> int | None:
        """The one of these candidates that would be chosen, with measured or predicted speeds."""
        margin = self.sweep.margins.of(choice)
        kept = [keeps_quality(self.candidates[index].lower, margin) for index in own]
        position = choose([points[index] for index in own], kept)
        return None if position is None else own[position]

    def _choices(self, points: Mapping[int, TradeOff]) -> Iterator[tuple[list[int], str]]:
        """Indices to choose among and the choice: every choice for each method, no loss for each rule of a method."""
        methods: dict[str, list[int]] = {}
        rules: dict[tuple[str, str], list[int]] = {}
        for index in points:
            one = self.candidates[index]
            methods.setdefault(one.method, []).append(index)
            rules.setdefault((one.method, one.rule), []).append(index)
        for own in methods.values():
            yield from ((own, choice) for choice in CHOICES)
        yield from ((own, "no_loss") for own in rules.values())

    def _near_frontier(self, point: TradeOff, points: Mapping[int, TradeOff]) -> bool:
        """Whether no point of at least this quality is faster by more than the margin `near`."""
        reach = point.speedup * (1 + self.sweep.near)
        return not any(other.quality >= point.quality and other.speedup > reach for other in (*points.values(), *self.known))

    def _represented(self, point: TradeOff, represented: Sequence[TradeOff]) -> bool:
        """Whether a timed point has the same quality and speed within the resolution of a choice."""
        quality = point.quality - resolution(point.quality, self.vanilla.quality)
        speedup = point.speedup / (1 + self.sweep.near)
        return any(other.quality >= quality and other.speedup >= speedup for other in represented)

    def contenders(self, speedups: Mapping[int, float]) -> set[int]:
        """The timed points that a further round can change something about: choices among them, and points near the frontier.

        Args:
            speedups: Of the timed points, by all their rounds so far.
        """
        points = self._points()
        points |= {index: TradeOff(points[index].quality, speedup) for index, speedup in speedups.items() if index in points}
        # Not one that was never timed, whose prediction knows the first rounds alone.
        timed = {index: points[index] for index in self.timed}
        chosen = {self._choose(own, timed, choice) for own, choice in self._choices(timed)}
        return {index for index in self.timed if index in chosen or self._near_frontier(points[index], points)}

    def _rest(self) -> dict[int, str]:
        """A random sample of the remaining points, drawn once."""
        if "sample" in self.why.values():
            return {}
        left = self._open()
        return dict.fromkeys(self._rng.sample(left, min(self.sweep.sample, len(left))), "sample")


def prediction_error(plan: Plan) -> PredictionError | None:
    """Relative errors of the speed-ups that were predicted of the random sample; None where none of it was timed."""
    sample = [index for index in plan.timed if plan.why[index] == "sample"]
    sizes = [abs(plan.predicted[index] / plan.timed[index] - 1) for index in sample]
    return PredictionError(points=len(sizes), mean=statistics.fmean(sizes), worst=max(sizes)) if sizes else None
