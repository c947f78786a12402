"""Decoding speed on a GPU compared with `transformers.generate` on the same weights and inputs, in one run.

On a GPU, a decoding step of a small batch runs a few hundred kernels of microseconds each, so a loop that launches them one by
one is bound by Python rather than by memory bandwidth. This benchmark measures how far decoding here and `generate` are from
the bandwidth limit, and whether a drafter pays for its steps. It needs only torch and transformers: models are random, in pairs
that agree on most tokens. The fused runtime's tokens are first checked against the reference's.

Run `python -m tasks.bench gpu`. After `--minutes` it interrupts what is running and prints JSON; its ratios are those of the
first pair, and above 1 where decoding here is faster. `claims` in it are the sentences that it allows about this GPU.
`--device cpu --quick` runs every part on tiny models. The exit status is 1 if float32 tokens differ at a top-2 margin of
`MARGIN_TOLERANCE` or more.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tasks.bench import contenders, harness
from tasks.bench.contenders import Shape, assisted, new_tokens, random_model, window
from tasks.bench.harness import Found, TimedWork, UnequalError, Work, timed_by
from tasks.console import log, quieten_transformers
from tasks.decoding.decoder import MARGIN_TOLERANCE, REFERENCE, Rows, Runtime, first_mismatch, top_two_margin
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.generation import Generation, total
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.blueprint import blueprint_of
from tasks.decoding.runtimes.choose import open_decoders
from tasks.decoding.runtimes.fused import WHOLE_DRAFT
from tasks.errors import InputError
from tasks.evaluation.timing import Clock, synchronised_clock

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RATIOS = {
    "vanilla_over_generate": ("vanilla", "generate"),
    "drafter_step_over_generate": ("drafter", "generate, drafter"),
    "speculative_over_assisted": ("speculative", "assisted"),
    "speculative_over_vanilla": ("speculative", "vanilla"),
    "bild_over_vanilla": ("bild", "vanilla"),
    "batched_over_generate": ("batched", "generate, batched"),
}
"""By name: our contender and the baseline."""
METHODS: dict[str, object] = {"vanilla_large": VanillaSettings(), "speculative": SpeculativeSettings(), "bild": BildSettings()}
SWEEP: dict[str, tuple[str, object]] = {
    f"speculative, {length} drafted": ("speculative", SpeculativeSettings(draft_length=length)) for length in (2, 3, 5, 7, 10)
} | {
    f"bild, fallback {fallback}, rollback {rollback}": (
        "bild",
        BildSettings(fallback_threshold=fallback, rollback_threshold=rollback),
    )
    for fallback in (0.3, 0.6, 0.9)
    for rollback in (1.0, 2.0, 4.0)
}
"""The settings of the sweep, by name."""
PARTS = ("float32_tokens", "bfloat16_tokens", "sweep", "compared", "sampled", "energy", "steps")
"""What is measured of a pair, most wanted first; `sweep` of the first pair alone."""
BATCH, STEPS = 32, 30
METERED_SECONDS = 3.0
"""Seconds over which energy is metered: the counter moves several times a second."""
_VERIFIED = (1, 2, 4, 6, 11)
_WRITTEN = 8
_COPIES = 5
_COPIED = {"cpu": 1 << 26, "cuda": 1 << 33}


@dataclass(frozen=True)
class PairShape:
    """A large model and its drafter."""

    name: str
    large: Shape
    small: Shape
    compiled: bool = False
    """Whether `--compiled` times `generate` with a preallocated cache too, which compiles the model for minutes."""
    swept: bool = False
    checked: int = 8
    """Sources whose tokens are compared with the reference's."""
    length: int = 48
    """Tokens of each text, and most tokens of a source."""


_T5_SMALL = Shape("t5", 512, 6, 2048, 8, 8)
_V11_SMALL = Shape("t5", 512, 8, 1024, 6, 6, head_width=64, gated=True)
_MT5_SMALL = Shape("t5", 512, 8, 1024, 6, 6, 250112, head_width=64, gated=True)
SHAPES = (
    PairShape("t5-large", Shape("t5", 1024, 24, 4096, 16, 16), _T5_SMALL, compiled=True, swept=True),
    PairShape("t5-v1.1-xl", Shape("t5", 2048, 24, 5120, 32, 32, gated=True), _V11_SMALL, checked=2),
    PairShape("mt5-large", Shape("t5", 1024, 24, 2816, 16, 16, 250112, gated=True), _MT5_SMALL, checked=2),
    PairShape("t5-v1.1-xxl", Shape("t5", 4096, 24, 10240, 64, 64, gated=True), _V11_SMALL, checked=2),
    PairShape("llama-1b", Shape("llama", 2048, 16, 8192, 32, 8), Shape("llama", 512, 4, 2048, 8, 2)),
    PairShape("t5-base", Shape("t5", 768, 12, 3072, 12, 12), _T5_SMALL),
    PairShape("t5-small", _T5_SMALL, Shape("t5", 512, 2, 2048, 8, 8)),
)
QUICK = (
    PairShape("tiny t5", Shape("t5", 64, 3, 96, 4, 4, 96), Shape("t5", 64, 1, 96, 4, 4, 96), True, True, 2, 8),
    PairShape("tiny llama", Shape("llama", 64, 3, 96, 4, 2, 96), Shape("llama", 64, 1, 96, 4, 2, 96), checked=2, length=8),
)


# --- tokens ---------------------------------------------------------------------------------------------------------------


def agreement(ours: Pair, reference: Pair, sources: Rows, limit: int) -> tuple[int, list[float]]:
    """Compare the texts of every method of `METHODS` on every source, decoded as a batch and alone.

    Returns:
        The number of compared texts, and the top-2 logit margin at the first mismatch of each differing one.
    """
    texts, margins, request = 0, list[float](), Request(limit)
    for method, settings in METHODS.items():
        expected = [one.tokens for one in decode(method, settings, reference, sources, request)]
        batched = [one.tokens for one in decode(method, settings, ours, sources, request)]
        alone = [decode(method, settings, ours, [source], request)[0].tokens for source in sources]
        for source, text, *others in zip(sources, expected, batched, alone, strict=True):
            texts += len(others)
            for other in (one for one in others if one != text):
                # A text of BiLD comes from both models, so the closer of the two decides.
                prefix = text[: first_mismatch(other, text)]
                margins.append(min(top_two_margin(model, source, prefix) for model in (reference.small, reference.large)))
    return texts, margins


# --- the bandwidth limit --------------------------------------------------------------------------------------------------


def copy_bandwidth(device: torch.device, size: int, clock: Clock) -> float:
    """Return the bytes read and written per second while copying `size` random bytes on the device; a median."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = timed_by(lambda _: target.copy_(source), clock)
    return 2 * size / statistics.median([copy(index) for index in range(_COPIES + 1)][1:])


def step_bytes(model: PreTrainedModel, rows: int, written: int, source: int) -> int:
    """Return the bytes that one decoding step must read.

    Args:
        model: An encoder-decoder or decoder-only model of `transformers`.
        rows: Texts decoded as a batch; the weights are read once for all of them.
        written: Tokens of each text so far, whose keys and values are read.
        source: Tokens of each source, whose cross-attention keys and values are read; 0 without an encoder.

    Raises:
        ValueError: the architecture has no blueprint.
    """
    blueprint = blueprint_of(model)
    if blueprint is None:
        raise ValueError(f"no blueprint of a {model.config.model_type}")
    stack = blueprint.decoder
    used = [] if stack.head is None else [stack.head]
    for layer in stack.layers:
        used += [layer.query_key_value, layer.out, layer.feed_in, layer.feed_out]
        if layer.cross is not None:
            used += [layer.cross.query, layer.cross.out]
    weights = sum(part.numel() for linear in used for part in linear.parts)
    weights += sum(linear.bias.numel() for linear in used if linear.bias is not None)
    own = 2 * stack.key_value_heads * stack.head_width * written
    cross = 2 * stack.heads * stack.head_width * source if stack.layers[0].cross is not None else 0
    return int(model.dtype.itemsize * (weights + rows * len(stack.layers) * (own + cross)))


# --- timings --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairBenchmark:
    """A loaded pair of models, its sources, and how it is timed."""

    models: tuple[PreTrainedModel, PreTrainedModel]
    """The small and the large model of `transformers`."""
    pair: Pair
    sources: Rows
    limit: int
    rounds: int
    clock: Clock

    def decoded(self, method: str, settings: object, count: int = 1) -> Work:
        """Decode the sources of a round with a method of this project."""
        return lambda index: decode(method, settings, self.pair, window(self.sources, index, count), Request(self.limit))

    def generated(self, model: PreTrainedModel, count: int = 1, **options: Any) -> Work:
        """Decode the sources of a round with `generate`."""
        return lambda index: contenders.generate(model, window(self.sources, index, count), self.limit, **options)

    def assisted(self, draft_length: int | None) -> Work:
        """Decode the source of a round with `generate` and a drafter."""
        small, large = self.models
        return lambda index: assisted(large, small, window(self.sources, index, 1)[0], self.limit, draft_length)

    def timed(self, ours: dict[str, Work], theirs: dict[str, Work]) -> dict[str, list[float]]:
        """Return the seconds of each contender in each round. Ours run each round once before, to capture their CUDA graphs."""
        clocked = [{name: timed_by(run, self.clock) for name, run in side.items()} for side in (ours, theirs)]
        return self.interleaved(*clocked)

    def interleaved(self, ours: dict[str, TimedWork], theirs: dict[str, TimedWork]) -> dict[str, list[float]]:
        """Do the same for contenders that take their time themselves."""
        for run in ours.values():
            for round_index in range(self.rounds + 1):
                run(round_index)
        return harness.time_interleaved(ours | theirs, self.rounds)

    def per_token(self, run: Callable[[Rows], int]) -> TimedWork:
        """Return work that decodes the source of a round, counts new tokens, and returns the seconds of each."""

        def timed(round_index: int) -> float:
            begun = self.clock()
            count = run(window(self.sources, round_index, 1))
            return (self.clock() - begun) / count

        return timed


def comparisons(bench: PairBenchmark) -> Found:
    """Return ratios to `generate`, milliseconds per token of every contender, the encoder included, and acceptance."""
    small, large = bench.models
    speculative = SpeculativeSettings()
    ours = {
        "vanilla": bench.decoded("vanilla_large", VanillaSettings()),
        "drafter": bench.decoded("vanilla_small", VanillaSettings()),
        "speculative": bench.decoded("speculative", speculative),
        "bild": bench.decoded("bild", BildSettings()),
        "batched": bench.decoded("vanilla_large", VanillaSettings(), BATCH),
    }
    theirs = {
        "generate": bench.generated(large),
        "generate, drafter": bench.generated(small),
        "assisted": bench.assisted(speculative.draft_length),
        "assisted, its own lengths": bench.assisted(None),
        "generate, batched": bench.generated(large, BATCH),
    }
    seconds = bench.timed(ours, theirs)
    seconds["assisted"] = min(seconds["assisted"], seconds["assisted, its own lengths"], key=statistics.median)
    return {
        "ratios": {name: harness.median_ratio(seconds[one], seconds[other]) for name, (one, other) in RATIOS.items()},
        "ms_per_token": {
            name: milliseconds(taken) / (bench.limit * (BATCH if "batched" in name else 1)) for name, taken in seconds.items()
        },
        "acceptance": {method: _acceptance(_outputs(bench, method, METHODS[method])) for method in ("speculative", "bild")},
    }


def sweep(bench: PairBenchmark) -> Found:
    """Return the speed of each setting of `SWEEP` over vanilla, its acceptance, and the share of texts that are vanilla's."""
    vanilla = VanillaSettings()
    runs = {name: bench.decoded(method, settings) for name, (method, settings) in SWEEP.items()}
    seconds = bench.timed({"vanilla": bench.decoded("vanilla_large", vanilla)} | runs, {})
    expected = [one.tokens for one in _outputs(bench, "vanilla_large", vanilla)]
    found: Found = {}
    for name, (method, settings) in SWEEP.items():
        outputs = _outputs(bench, method, settings)
        equal = sum(one.tokens == text for one, text in zip(outputs, expected, strict=True)) / len(expected)
        ratio = harness.median_ratio(seconds[name], seconds["vanilla"])
        found[name] = {"over_vanilla": ratio, "equal_texts": equal} | _acceptance(outputs)
    return found


def sampled(bench: PairBenchmark) -> Found:
    """Return ratios to `generate` that samples at temperature 1, and milliseconds a token: a sampled text may end early."""
    small, large = bench.models
    request, speculative = Request(bench.limit, SamplingSettings(temperature=1.0)), SpeculativeSettings()
    drawn: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0}

    def ours(method: str, settings: object) -> TimedWork:
        return bench.per_token(lambda sources: total(decode(method, settings, bench.pair, sources, request)).tokens)

    def theirs(generate: Callable[[Rows], torch.Tensor]) -> TimedWork:
        return bench.per_token(lambda sources: len(new_tokens(large, generate(sources), sources)[0]))

    seconds = bench.interleaved(
        {"vanilla": ours("vanilla_large", VanillaSettings()), "speculative": ours("speculative", speculative)},
        {
            "generate": theirs(lambda rows: contenders.generate(large, rows, bench.limit, **drawn)),
            "assisted": theirs(lambda rows: assisted(large, small, rows[0], bench.limit, speculative.draft_length, **drawn)),
        },
    )
    compared = ("vanilla_over_generate", "speculative_over_assisted", "speculative_over_vanilla")
    ratios = {name: harness.median_ratio(seconds[RATIOS[name][0]], seconds[RATIOS[name][1]]) for name in compared}
    outputs = _outputs(bench, "speculative", speculative, request)
    taken = {name: milliseconds(one) for name, one in seconds.items()}
    return {"ratios": ratios, "ms_per_token": taken, "acceptance": _acceptance(outputs)}


def _outputs(bench: PairBenchmark, method: str, settings: object, request: Request | None = None) -> list[Generation]:
    """Return the texts of the sources of all rounds."""
    return decode(method, settings, bench.pair, bench.sources[: bench.rounds + 1], request or Request(bench.limit))


def _acceptance(outputs: list[Generation]) -> Found:
    counts = total(outputs)
    return {
        "accepted_of_drafted": counts.accepted / max(1, counts.drafted),
        "large_calls_per_token": counts.large_calls / counts.tokens,
        "small_steps_per_token": counts.small_steps / counts.tokens,
    }


def steps(bench: PairBenchmark, bandwidth: float) -> Found:
    """Return milliseconds of single runs of each model, and their ratio to the memory-bandwidth bound of one token."""
    result: Found = {}
    for model, name, decoder in zip(bench.models, ("small", "large"), (bench.pair.small, bench.pair.large), strict=True):
        taken = _step_milliseconds(bench, decoder)
        source = len(bench.sources[0]) if model.config.is_encoder_decoder else 0
        moved = step_bytes(model, 1, _WRITTEN, source)
        floor = 1000 * moved / bandwidth
        over = {"floor_ms": floor, "run_over_floor": taken["1"] / floor, "chained_over_floor": taken["chained"] / floor}
        result[name] = {"ms": taken, "bytes_moved": moved} | over
    return result


def _step_milliseconds(bench: PairBenchmark, decoder: Any) -> dict[str, float]:
    """Return milliseconds of a run over each number of new tokens, and of a step of a greedy loop that synchronises once."""
    [start] = decoder.start(decoder.encode([bench.sources[0]]))
    decoder.forward([start + [2] * _WRITTEN])
    kept, taken = decoder.lengths[0], {}
    for count in _VERIFIED:
        seconds = []
        for _ in range(STEPS + 3):
            begun = bench.clock()
            decoder.forward([[3] * count])
            seconds.append(bench.clock() - begun)
            decoder.rewind([kept])
        taken[str(count)] = milliseconds(seconds[3:])
    before, decoder.sync_policy = decoder.sync_policy, WHOLE_DRAFT
    seconds = []
    for _ in range(6):
        begun = bench.clock()
        found = decoder.continue_greedily([3], STEPS, DraftRule(), with_logits=False)
        seconds.append((bench.clock() - begun) / len(found.tokens))
        decoder.rewind([kept])
    decoder.sync_policy = before
    return taken | {"chained": milliseconds(seconds[1:])}


def static_generate(bench: PairBenchmark) -> Found:
    """Time `generate` with a preallocated cache, with which it compiles the model; a failure of the compiler is a result."""
    try:
        static = bench.generated(bench.models[1], static=True)
        first = timed_by(static, bench.clock)(0)
        for round_index in range(bench.rounds + 1):
            static(round_index)
        seconds = bench.timed({"vanilla": bench.decoded("vanilla_large", VanillaSettings())}, {"static": static})
    except Exception as error:  # noqa: BLE001 (any failure is the result)
        reason = (str(error).splitlines() or [""])[0]
        return {"failed": f"{type(error).__name__}: {reason}"[:300]}
    return {
        "first_run_s": first,
        "ms_per_token": milliseconds(seconds["static"]) / bench.limit,
        "vanilla_over_static": harness.median_ratio(seconds["vanilla"], seconds["static"]),
    }


class GpuMeter:
    """A GPU's energy counter and its memory, by the library of NVIDIA's driver: nothing has to be installed for it."""

    def __init__(self, uuid: str) -> None:
        """Find the GPU.

        Raises:
            OSError: there is no such library or GPU.
        """
        self._library, self._gpu = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self._ask("nvmlInit_v2")
        self._ask("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.pointer(self._gpu))

    def joules(self) -> float:
        """Return the energy that the GPU has taken since its driver was loaded.

        Raises:
            OSError: the GPU has no counter.
        """
        millijoules = ctypes.c_ulonglong()
        self._ask("nvmlDeviceGetTotalEnergyConsumption", self._gpu, ctypes.pointer(millijoules))
        return millijoules.value / 1000

    def gib(self) -> float:
        """Return the memory in use on the GPU, by all processes together.

        Raises:
            OSError: the driver does not say.
        """
        total_free_used = (ctypes.c_ulonglong * 3)()
        self._ask("nvmlDeviceGetMemoryInfo", self._gpu, total_free_used)
        return float(total_free_used[2] / 2**30)

    def _ask(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise OSError(f"{function} of NVIDIA's driver ends with status {status}")


def energy(bench: PairBenchmark, device: torch.device) -> Found:
    """Return the joules of a token, the GPU's idle power included, its watts, and memory in GiB, for each contender.

    Memory is torch's peak (`allocated_gib`), and what the driver reports behind the work (`device_gib`).
    """
    large = bench.models[1]
    runs = {name: bench.decoded(name, settings) for name, settings in METHODS.items()} | {"generate": bench.generated(large)}
    found: Found = {}
    try:
        meter = GpuMeter(str(torch.cuda.get_device_properties(device).uuid))
        for name, run in runs.items():
            run(0)
            torch.cuda.reset_peak_memory_stats(device)
            texts, begun, before = 0, bench.clock(), meter.joules()
            while (seconds := bench.clock() - begun) < METERED_SECONDS:
                run(texts)
                texts += 1
            joules = meter.joules() - before
            memory = {"allocated_gib": torch.cuda.max_memory_allocated(device) / 2**30, "device_gib": meter.gib()}
            found[name] = {"joules_per_token": joules / (texts * bench.limit), "watts": joules / seconds} | memory
    except (OSError, RuntimeError, AssertionError) as error:
        return {"failed": str(error).splitlines()[0][:300]}
    return found


def milliseconds(seconds: list[float]) -> float:
    """Return the median of seconds, in milliseconds."""
    return 1000 * statistics.median(seconds)


# --- the command ----------------------------------------------------------------------------------------------------------


class PairRun:
    """The measurements of one pair of models."""

    def __init__(self, shape: PairShape, rounds: int, device: torch.device, clock: Clock) -> None:
        self.shape = shape
        self.wrong = 0
        """Texts whose float32 tokens differ at a margin of `MARGIN_TOLERANCE` or more."""
        self.found: Found = {"left_out": [part for part in PARTS if part != "sweep" or shape.swept]}
        self._rounds, self._device, self._clock = rounds, device, clock
        self._sources = contenders.random_sources(shape.large.vocabulary, max(BATCH, rounds + 1), shape.length)

    def measure_compiled(self) -> None:
        """Time bfloat16 against `generate` that is compiled, where the shape asks for it."""
        if self.shape.compiled:
            bench = self._benchmark(*self._models())
            self._part("static_generate", lambda: static_generate(bench))

    def measure(self, bandwidth: float) -> None:
        """Check the tokens in float32 and bfloat16, then time bfloat16; a pair that is too large for the GPU is a result."""
        try:
            self._measure(bandwidth)
        except torch.OutOfMemoryError as error:
            self.found["failed"] = str(error).splitlines()[0][:300]
        # The next pair needs the memory.
        gc.collect()
        torch.cuda.empty_cache()

    def _measure(self, bandwidth: float) -> None:
        small, large = self._models()
        self._part("float32_tokens", lambda: self._agreement(small, large))
        bench = self._benchmark(small, large)
        self._part("bfloat16_tokens", lambda: self._agreement(small, large))
        if self.shape.swept:
            self._part("sweep", lambda: sweep(bench))
        self._part("compared", lambda: comparisons(bench))
        self._part("sampled", lambda: sampled(bench))
        self._part("energy", lambda: energy(bench, self._device))
        self._part("steps", lambda: steps(bench, bandwidth))

    def _models(self) -> tuple[PreTrainedModel, PreTrainedModel]:
        return random_model(self.shape.small, self._device, 0), random_model(self.shape.large, self._device, 1)

    def _benchmark(self, small: PreTrainedModel, large: PreTrainedModel) -> PairBenchmark:
        """Return the benchmark of the models, which are bfloat16 from here on."""
        pair = open_decoders(small.bfloat16(), large.bfloat16(), runtime=Runtime("fused"))
        return PairBenchmark((small, large), pair, self._sources, self.shape.length, self._rounds, self._clock)

    def _part(self, name: str, work: Callable[[], object]) -> None:
        begun = time.monotonic()
        self.found[name] = _rounded(work())
        self.found["left_out"] = [part for part in self.found["left_out"] if part != name]
        log.info(f"{self.shape.name}: {name} ({time.monotonic() - begun:.0f} s): {json.dumps(self.found[name])}")

    def _agreement(self, small: PreTrainedModel, large: PreTrainedModel) -> Found:
        ours, reference = (open_decoders(small, large, runtime=runtime) for runtime in (Runtime("fused"), REFERENCE))
        texts, margins = agreement(ours, reference, self._sources[: self.shape.checked], self.shape.length)
        if large.dtype == torch.float32:
            self.wrong += sum(margin >= MARGIN_TOLERANCE for margin in margins)
        return {"texts": texts, "different": len(margins), "widest_margin": max(margins, default=0.0)}


def _rounded(value: object) -> object:
    """Return the value with floats rounded to four significant digits."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


class TimeUpError(BaseException):
    """The time is up; not an `Exception`, which a part may take for its result."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeUpError` in the main thread after that time, and again each second if it was swallowed."""
    going = True

    def stop(*_: object) -> None:
        if going:
            raise TimeUpError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3), 1.0)
    try:
        yield
    finally:
        going = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def claims(result: Found) -> list[str]:
    """Return the sentences about this GPU that a run allows: of float32 tokens, and of ratios whose interval is above 1."""
    shapes: dict[str, Found] = result["shapes"]
    where = f"on {result['hardware'].get('gpu', 'this GPU')}, random weights of {{}}'s shape, bfloat16"
    texts = {name: found["float32_tokens"]["texts"] for name, found in shapes.items() if "float32_tokens" in found}
    said = []
    if texts and not result["float32_wrong"]:
        said.append(f"All {sum(texts.values())} float32 texts of the fused runtime are the reference's ({', '.join(texts)}).")
    for name, found in shapes.items():
        ratios = {f"{kind} (greedy)": one for kind, one in found.get("compared", {}).get("ratios", {}).items()}
        ratios |= {f"{kind} (temperature 1)": one for kind, one in found.get("sampled", {}).get("ratios", {}).items()}
        swept = {kind: one["over_vanilla"] for kind, one in found.get("sweep", {}).items() if one["equal_texts"] == 1}
        if swept:
            # The choice of the fastest favours it: the interval is of that setting alone.
            fastest = max(swept, key=lambda kind: float(swept[kind]["ratio"]))
            ratios[f"{fastest} over vanilla, the fastest of {len(found['sweep'])} settings"] = swept[fastest]
        for kind, one in ratios.items():
            if one["interval"] is not None and one["interval"][0] > 1:
                said.append(f"{kind.replace('_', ' ')}: {harness.shown(one)} times as fast ({where.format(name)}).")
        spent = {kind: one["joules_per_token"] for kind, one in found.get("energy", {}).items() if kind != "failed"}
        if spent:
            said.append(f"joules a token: {', '.join(f'{kind} {one}' for kind, one in spent.items())} ({where.format(name)}).")
    return said


def main(given: Sequence[str]) -> None:
    """Print each result as it is measured, then all of them as JSON.

    Raises:
        InputError: there is no GPU, or no such time.
        UnequalError: float32 tokens differ.
    """
    parser = harness.parser_of("gpu", __doc__, rounds=(7, "timed rounds of each comparison"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where models run (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=9.0, help="stop then, and report (default: %(default)s)")
    parser.add_argument("--compiled", action="store_true", help="also time generate with a preallocated cache, for minutes")
    arguments = harness.parse(parser, given)
    if not 0 <= arguments.minutes < math.inf:
        raise InputError(f"--minutes is {arguments.minutes:g}; it must be a number, at least 0")
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("this benchmark times a CUDA GPU, and torch finds none; --device cpu --quick runs it on a CPU")
    quieten_transformers()
    until = time.monotonic() + 60 * arguments.minutes
    clock = synchronised_clock(device.type)
    bandwidth = copy_bandwidth(device, _COPIED[device.type], clock)
    result = harness.hardware() | {"device": device.type, "copy_GB_per_s": round(bandwidth / 1e9, 1)}
    log.info(json.dumps(result))
    runs = [PairRun(shape, arguments.rounds, device, clock) for shape in (QUICK if arguments.quick else SHAPES)]
    try:
        with time_limit(until - time.monotonic()):
            # First: PyTorch's compiler frees workspaces that graphs recorded before it would go on using.
            for run in runs if arguments.compiled else ():
                run.measure_compiled()
            for run in runs:
                run.measure(bandwidth)
    except TimeUpError:
        log.info(f"stopped after {arguments.minutes:g} minutes; the rest is left out")
    ratios = runs[0].found.get("compared", {}).get("ratios", {})
    wrong = sum(run.wrong for run in runs)
    result |= {name: one["ratio"] for name, one in ratios.items()} | {"float32_wrong": wrong}
    result["shapes"] = {run.shape.name: run.found for run in runs}
    # A quick run and one on a CPU measure nothing.
    result["claims"] = claims(result) if device.type == "cuda" and not arguments.quick else []
    harness.finish(result, arguments.json)
    if wrong:
        raise UnequalError(f"{wrong} float32 texts of the fused runtime are not the reference's")
