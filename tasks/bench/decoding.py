"""Decoding speed compared with `transformers.generate` and CTranslate2 on the same weights and inputs, in one run.

A speed-up counts only against a baseline that is no slower than what everybody can install: any method looks good against a
slow vanilla. Every result of this project is a ratio to vanilla decoding, so vanilla is compared with both baselines, one text
at a time and in batches; the drafter and the methods are compared with their counterparts in `generate`. All contenders run
interleaved, each at the fastest setting that a short trial finds, and only after their tokens were found equal.

`python -m tasks.bench decoding` times random weights of three shapes; `--task translation`, after `make repro`, adds the
trained pair, the only case in which BiLD is meaningful. It prints JSON; a ratio above 1 means that decoding here is
faster.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.bench import contenders, harness
from tasks.bench.contenders import Converted, Shape, translate, window
from tasks.bench.harness import Found, TimedWork, UnequalError, Work, shown, timed_by
from tasks.config import Params, load
from tasks.console import log, quieten_transformers
from tasks.corpora.example import read_jsonl
from tasks.decoding import load_pair
from tasks.decoding.batches import MOST
from tasks.decoding.decoder import MARGIN_TOLERANCE, REFERENCE, Decoder, Rows, Runtime, find_mismatches, widest_margin
from tasks.decoding.generation import Generation, total
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode, decode_all
from tasks.decoding.runtimes.choose import open_decoder, open_decoders
from tasks.errors import InputError
from tasks.evaluation.scoring.quality import Quality, score
from tasks.evaluation.settings import CHOSEN_ON
from tasks.machine import on_threads
from tasks.models.checkpoints import load_model
from tasks.models.pair import vocabulary_size
from tasks.models.prompting import encode_sources
from tasks.models.tokenizers import load_tokenizer
from tasks.paths import TaskPaths

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Settings = dict[str, TimedWork]
"""One contender: its work by the label of a setting."""
Translators = Mapping[str, Executor]
"""Processes of CTranslate2 by the names of their environments."""

CACHES = {"dynamic cache": False, "static cache": True}
"""Caches of `generate`: label to whether it is preallocated."""
DRAFT_LENGTHS = (3, 5, 8)
RATIOS = {
    "vanilla_over_generate": ("vanilla", "generate"),
    "vanilla_over_ctranslate2": ("vanilla", "ctranslate2"),
    "drafter_step_over_generate": ("drafter", "drafter by generate"),
    "speculative_over_assisted": ("speculative", "assisted"),
    "speculative_over_vanilla": ("speculative", "vanilla"),
    "bild_over_vanilla": ("bild", "vanilla"),
    "bild_over_ctranslate2": ("bild", "ctranslate2"),
    "batched_over_generate": ("batched", "batched by generate"),
    "batched_over_ctranslate2": ("batched", "batched by ctranslate2"),
}
"""By name: our contender and the baseline."""
_COMPARED, _SHOWN, _TRIALS = 12, 2, 2
_SLOW = 1.5
"""A setting whose first round takes longer than this multiple of the fastest one's is not tried again."""


# --- cases ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One pair of models, its sources, and how much of them is timed."""

    name: str
    large: PreTrainedModel
    small: PreTrainedModel | None
    sources: Rows
    limit: int
    """Most new tokens of a text."""
    examples: int
    """Sources of a round, decoded one after the other."""
    batch: int
    """Sources of a round of batched decoding."""
    batch_limit: int
    """Most new tokens of a text in a batch."""
    batch_rounds: int
    vocabulary: int | None = None
    """Number of token ids that are predicted; None for all of the model's."""
    bild: BildSettings | None = None
    """None where the small model is untrained, so that BiLD's speed would mean nothing."""
    bild_from: str = ""
    """Origin of these settings, described."""

    @cached_property
    def pair(self) -> Pair:
        """Both models in the fastest runtimes; the large model twice for a case without a small one."""
        if self.small is None:
            alone = open_decoder(self.large, "large", self.vocabulary)
            return Pair(alone, alone)
        return open_decoders(self.small, self.large, self.vocabulary)

    @cached_property
    def reference(self) -> Decoder:
        """The large model in the reference runtime, whose margins say how close a token was."""
        return open_decoder(self.large, "large", runtime=REFERENCE)

    def here(self, method: str, settings: object, sources: Rows, limit: int) -> list[Generation]:
        """Decode the sources as one batch with a method of this project."""
        return decode(method, settings, self.pair, sources, Request(limit))

    def vanilla(self, sources: Rows, limit: int) -> Rows:
        """Return the new tokens of the large model alone, in this project."""
        return [one.tokens for one in self.here("vanilla_large", VanillaSettings(), sources, limit)]


@dataclass(frozen=True)
class RandomCase:
    """A random pair, and how much of it is timed."""

    layers: int
    """Of the encoder and of the decoder of the large model."""
    width: int
    heads: int
    small: bool = False
    """Whether it has a small model, of one layer each."""
    vocabulary: int = 32128
    tokens: int = 40
    examples: int = 1
    batch: int = 32
    batch_tokens: int = 20
    batch_rounds: int = 5

    def make(self) -> Case:
        """Make the models and the sources."""
        name, cpu = f"{self.layers} layers d {self.width}", torch.device("cpu")
        depths = [self.layers] + [1] * self.small
        shapes = [Shape("t5", self.width, one, 4 * self.width, self.heads, self.heads, self.vocabulary) for one in depths]
        large, *small = (contenders.random_model(shape, cpu, seed) for seed, shape in enumerate(shapes))
        sources = contenders.random_sources(self.vocabulary, 64, 16)
        rest = (self.examples, self.batch, self.batch_tokens, self.batch_rounds)
        return Case(name, large, small[0] if small else None, sources, self.tokens, *rest)


CASES = (
    RandomCase(2, 64, 2, examples=4, batch_tokens=40),
    RandomCase(4, 256, 4, small=True),
    RandomCase(6, 512, 8, tokens=32, batch=16, batch_rounds=3),
)
QUICK = (RandomCase(2, 32, 2, small=True, vocabulary=96, tokens=6, batch=3, batch_tokens=4),)


class TrainedTask:
    """The trained pair of a task, and quality on its validation split, on which operating points are chosen."""

    def __init__(self, name: str, params: Params) -> None:
        self.name, self._task, self._paths = name, params.task(name), TaskPaths(name)
        self._drafter = self._paths.model("aligned", self._task.seeds[0])

    @property
    def trained(self) -> bool:
        """Whether the models and the validation split exist."""
        return all(one.exists() for one in (self._paths.model("large"), self._drafter, self._paths.split(CHOSEN_ON)))

    @cached_property
    def _examples(self) -> tuple[Rows, list[tuple[str, ...]]]:
        """Token ids of the sources, and the references."""
        read = read_jsonl(self._paths.split(CHOSEN_ON))
        sources = encode_sources(self._tokenizer, [one.source for one in read], self._task.text)
        return sources, [one.references for one in read]

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self._paths.model("large"))

    def case(self, quick: bool) -> Case:
        """Open the pair, with BiLD at the setting of the task's pair folder, or else at the defaults."""
        large, small = map(load_model, (self._paths.model("large"), self._drafter))
        settings, origin, limit = BildSettings(), "the defaults", self._task.text.max_target_tokens
        folder = self._paths.results / "pair"
        if folder.is_dir() and isinstance(chosen := load_pair(folder).manifest.point.settings, BildSettings):
            settings, origin = chosen, f"the operating point of {folder}"
        sizes = (1, 2, limit, 1) if quick else (16, 32, limit, 5)
        vocabulary = vocabulary_size(self._tokenizer, large, small)
        return Case(self.name, large, small, self._examples[0][:144], limit, *sizes, vocabulary, settings, origin)

    def quality(self, method: str, settings: object, pair: Pair) -> Quality:
        """Return the quality of a method's outputs for the whole split."""
        sources, references = self._examples
        sweep, request = self._task.sweep, Request(self._task.text.max_target_tokens)
        done = decode_all(method, settings, pair, sources, request, sweep.quality_batch or MOST)
        texts: list[str] = self._tokenizer.batch_decode([one.tokens for one in done], skip_special_tokens=True)
        return score(texts, references, self._task.metric, sweep.bootstrap_samples, sweep.seed)

    def bild(self, case: Case) -> Found:
        """Return the quality of vanilla and of BiLD, and whether the interval of their difference excludes a loss."""
        ours = self.quality("bild", case.bild, case.pair)
        theirs = self.quality("vanilla_large", VanillaSettings(), case.pair)
        difference = ours.minus(theirs)
        return {
            "metric": self._task.metric,
            "examples": len(self._examples[0]),
            "vanilla": round(theirs.value, 3),
            "bild": round(ours.value, 3),
            "difference_interval": list(difference),
            "no_loss": difference[0] > -self._task.sweep.margins.no_loss,
        }


# --- contenders -----------------------------------------------------------------------------------------------------------


def singles(case: Case, converted: Path, translators: Translators, counts: list[int]) -> dict[str, Settings]:
    """Return the contenders that decode one text at a time, end to end from source ids to output ids."""
    large, small, limit = case.large, case.small, case.limit

    def each(work: Callable[[Rows], object]) -> Work:
        """Decode the sources of a round one after the other."""
        return lambda index: [work([source]) for source in window(case.sources, index, case.examples)]

    def here(method: str, settings: object) -> Work:
        return each(lambda source: case.here(method, settings, source, limit))

    def by_generate(model: PreTrainedModel) -> dict[str, Work]:
        return {name: each(partial(contenders.generate, model, limit=limit, static=static)) for name, static in CACHES.items()}

    def assisted_by(length: int | None) -> Work:
        return each(lambda source: contenders.assisted(large, small, source[0], limit, length))

    works: dict[str, dict[str, Work]] = {
        "vanilla": {"": here("vanilla_large", VanillaSettings())},
        "generate": by_generate(large),
    }
    if small is not None:
        drafted = {f"draft length {one}": SpeculativeSettings(draft_length=one) for one in DRAFT_LENGTHS}
        works |= {
            "drafter": {"": here("vanilla_small", VanillaSettings())},
            "drafter by generate": by_generate(small),
            "speculative": {name: here("speculative", settings) for name, settings in drafted.items()},
            "assisted": {"draft length by its rules": assisted_by(None)}
            | {f"draft length {one}": assisted_by(one) for one in DRAFT_LENGTHS},
        }
    if case.bild is not None:
        works["bild"] = {"": here("bild", case.bild)}
    found = {name: _on_threads(runs, counts) for name, runs in works.items()}
    if translators:
        found["ctranslate2"] = _translated(case, converted, translators, counts, batched=False)
    return found


def batches(case: Case, converted: Path, translators: Translators, counts: list[int]) -> dict[str, Settings]:
    """Return the contenders that decode many texts as one batch."""

    def together(work: Callable[[Rows, int], object]) -> Work:
        return lambda index: work(window(case.sources, index, case.batch), case.batch_limit)

    by_cache = {name: partial(contenders.generate, case.large, static=static) for name, static in CACHES.items()}
    theirs = {name: together(work) for name, work in by_cache.items()}
    works = {"batched": {"": together(case.vanilla)}, "batched by generate": theirs}
    found = {name: _on_threads(runs, counts) for name, runs in works.items()}
    if translators:
        found["batched by ctranslate2"] = _translated(case, converted, translators, counts, batched=True)
    return found


def _on_threads(works: Mapping[str, Work], counts: list[int]) -> Settings:
    return {label(name, count): timed_by(work, threads=count) for name, work in works.items() for count in counts}


def _translated(case: Case, converted: Path, translators: Translators, counts: list[int], *, batched: bool) -> Settings:
    return {
        label(name, one): _by_ctranslate2(case, process, Converted(converted, one), batched=batched)
        for name, process in translators.items()
        for one in counts
    }


def _by_ctranslate2(case: Case, process: Executor, model: Converted, *, batched: bool = False) -> TimedWork:
    count, limit = (case.batch, case.batch_limit) if batched else (case.examples, case.limit)
    sources = partial(window, case.sources, count=count)
    return lambda index: process.submit(translate, model, sources(index), limit, batched=batched).result()[0]


def label(name: str, threads: int) -> str:
    """Return the label of a setting."""
    return ", ".join(part for part in (name, f"{threads} thread{'s' if threads > 1 else ''}") if part)


# --- measuring ------------------------------------------------------------------------------------------------------------


def measure_case(case: Case, task: TrainedTask | None, translators: Translators, threads: int, rounds: int) -> Found:
    """Check the tokens of all contenders on a case, time them, and return what was found.

    Raises:
        UnequalError: see `require_equal`.
    """
    with tempfile.TemporaryDirectory() as folder, on_threads(threads):
        converted = Path(folder) / "ctranslate2"
        if case.large.config.model_type == "t5" and translators:
            contenders.convert(case.large, converted)
        else:
            translators = {}
        found: Found = {"mismatches": {}, "settings": {}, "tried": {}, "ms_per_token": {}, "ratios": {}}
        found["mismatches"], found["accepted"] = require_equal(case, converted, translators)
        for name, one in found["mismatches"].items():
            margin = f" (top-2 margins up to {one['worst_margin']:.2g})" if one["differ"] else ""
            log.info(f"  tokens: {name}: {one['differ']} of {one['texts']} texts differ{margin}")
        counts = harness.thread_counts(threads)
        for works, number, examples, limit in (
            (singles(case, converted, translators, counts), rounds, case.examples, case.limit),
            (batches(case, converted, translators, counts), min(rounds, case.batch_rounds), case.batch, case.batch_limit),
        ):
            harness.leave_out_failing(works)
            texts = [window(case.sources, index, examples) for index in range(1, number + 1)]
            tokens = {
                method: [sum(len(one.tokens) for one in case.here(method, VanillaSettings(), some, limit)) for some in texts]
                for method in ("vanilla_large", "vanilla_small")
            }
            time_case(works, tokens, number, found)
        found["formats"] = number_formats(case, converted, translators, threads, rounds, task)
        found["sampled"] = sampled(case, converted, translators, threads, rounds)
        if task is not None:
            found["bild"] = {"settings": str(case.bild), "from": case.bild_from, "quality": task.bild(case)}
    return found


def require_equal(case: Case, converted: Path, translators: Translators) -> tuple[Found, float | None]:
    """Compare the tokens of all contenders on a few sources.

    Returns:
        Mismatches by comparison, and the share of drafted tokens that were accepted (None without a small model).

    Raises:
        UnequalError: our tokens differ beyond `MARGIN_TOLERANCE`. Differences of CTranslate2 are only counted, since its
            kernels are not part of this project.
    """
    sources, limit, accepted = case.sources[:_COMPARED], case.limit, None
    ours = [case.vanilla([source], limit)[0] for source in sources]
    theirs = [contenders.new_tokens(case.large, contenders.generate(case.large, [one], limit), [one])[0] for one in sources]
    found = {
        "vanilla and generate": find_mismatches(case.reference, sources, ours, theirs),
        "batched and vanilla": find_mismatches(case.reference, sources, case.vanilla(sources, limit), ours),
    }
    if case.small is not None:
        drafted = case.here("speculative", SpeculativeSettings(), sources, limit)
        accepted = round(total(drafted).accepted / max(1, total(drafted).drafted), 3)
        found["speculative and vanilla"] = find_mismatches(case.reference, sources, [one.tokens for one in drafted], ours)
    for name, different in found.items():
        if widest_margin(different) >= MARGIN_TOLERANCE:
            margin = f"a top-2 logit margin of {widest_margin(different):.2g}"
            raise UnequalError(f"{case.name}: the tokens of {name} differ at {margin}")
    for process in list(translators.values())[:1]:
        _, texts = process.submit(translate, Converted(converted, 1), sources, limit).result()
        found["vanilla and ctranslate2"] = find_mismatches(case.reference, sources, ours, texts)
    counted = {
        name: {"texts": len(sources), "differ": len(different), "worst_margin": widest_margin(different)}
        for name, different in found.items()
    }
    return counted, accepted


def time_case(works: Mapping[str, Settings], tokens: Mapping[str, list[int]], rounds: int, found: Found) -> None:
    """Try all settings briefly, then time each contender's fastest setting, and add to the results.

    Args:
        works: The contenders.
        tokens: New tokens of each timed round, of the large and of the small model.
        rounds: Timed rounds.
        found: Receives the fastest setting of each contender, milliseconds per token of every setting in the trial and of the
            fastest one in the final rounds, and the ratios.
    """
    runs = {(name, one): work for name, settings in works.items() for one, work in settings.items()}
    first = harness.time_interleaved(runs, 1)
    least = {name: min(first[name, one][0] for one in settings) for name, settings in works.items()}
    again = {key: run for key, run in runs.items() if first[key][0] <= _SLOW * least[key[0]]}
    trial = first | harness.time_interleaved(again, _TRIALS)

    def ms_per_token(name: str, seconds: list[float]) -> float:
        made = tokens["vanilla_small" if name.startswith("drafter") else "vanilla_large"]
        return round(1000 * statistics.median(one / count for one, count in zip(seconds, made, strict=False)), 4)

    for name, settings in works.items():
        found["tried"][name] = {one: ms_per_token(name, trial[name, one]) for one in settings}
        found["settings"][name] = harness.fastest({one: trial[name, one] for one in settings})
    seconds = harness.time_interleaved({name: works[name][found["settings"][name]] for name in works}, rounds)
    found["ms_per_token"] |= {name: ms_per_token(name, taken) for name, taken in seconds.items()}
    for name, (ours, theirs) in RATIOS.items():
        if ours in works and theirs in works:
            found["ratios"][name] = harness.median_ratio(seconds[ours], seconds[theirs])


def number_formats(
    case: Case, converted: Path, translators: Translators, threads: int, rounds: int, task: TrainedTask | None
) -> Found:
    """Compare the large model in every number format that a runtime here supports with float32 and with CTranslate2.

    Returns:
        By format: speed over float32 and over the fastest CTranslate2 in the same format (None without it), texts that differ,
        `worst_margin` (the widest top-2 logit margin, in float32, at which a text takes another token), quality of a trained
        model, and `step` (`harness.step_limits`).
    """
    exact = "float32"
    decoders = {exact: case.pair.large}
    with contextlib.suppress(InputError):  # no runtime here supports the format
        decoders["bfloat16"] = open_decoder(copy.deepcopy(case.large).to(torch.bfloat16), "large", case.vocabulary)
    with contextlib.suppress(InputError):
        decoders["int8"] = open_decoder(case.large, "large", case.vocabulary, Runtime(int8=True))

    vanilla = ("vanilla_large", VanillaSettings())

    def texts_of(decoder: Decoder, sources: Rows) -> Rows:
        return [one.tokens for one in decode(*vanilla, Pair(decoder, decoder), sources, Request(case.limit))]

    def ours(decoder: Decoder) -> TimedWork:
        return timed_by(lambda index: [texts_of(decoder, [one]) for one in window(case.sources, index, case.examples)])

    supported = contenders.compute_types() & set(decoders)
    runs = {(name, ""): ours(decoder) for name, decoder in decoders.items()}
    models = [Converted(converted, threads, name) for name in supported]
    runs |= {(one.number_format, name): _by_ctranslate2(case, translators[name], one) for one in models for name in translators}
    seconds = harness.time_interleaved(runs, rounds)
    texts = {name: texts_of(decoder, case.sources) for name, decoder in decoders.items()}
    found: Found = {}
    for name, decoder in decoders.items():
        different = find_mismatches(case.reference, case.sources, texts[exact], texts[name])
        peers = [seconds[key] for key in runs if key[0] == name and key[1]]
        found[name] = {
            "over_float32": harness.median_ratio(seconds[name, ""], seconds[exact, ""]),
            "over_ctranslate2": harness.median_ratio(seconds[name, ""], min(peers, key=statistics.median)) if peers else None,
            "texts": len(case.sources),
            "differ": len(different),
            "worst_margin": round(widest_margin(different), 4),
            "quality": None if task is None else round(task.quality(*vanilla, Pair(decoder, decoder)).value, 3),
            "step": harness.step_limits(decoder, case.sources[0]),
        }
    return found


def sampled(case: Case, converted: Path, translators: Translators, threads: int, rounds: int) -> Found:
    """Compare sampling at temperature 1 with greedy decoding, and with sampling in the baselines.

    Returns:
        `sampled_over_greedy_…`: how many times as long a token of vanilla takes sampled as greedy, or a turn of a method;
        `sampled_over_generate` and `sampled_over_ctranslate2`: how many times as many tokens a second vanilla makes here;
        `sampled_…_over_vanilla`: the same of a method over vanilla, both sampled.
    """
    methods: dict[str, tuple[str, object]] = {"vanilla": ("vanilla_large", VanillaSettings())}
    if case.small is not None:
        methods["speculative"] = ("speculative", SpeculativeSettings())
    if case.bild is not None:
        methods["bild"] = ("bild", case.bild)
    drawn, made = SamplingSettings(temperature=1.0), dict[tuple[str, int], tuple[int, int]]()

    def decoded(name: str, how: str, sampling: SamplingSettings, index: int) -> None:
        request, some = Request(case.limit, sampling, seed=index), window(case.sources, index, case.examples)
        texts = [decode(*methods[name], case.pair, [one], request)[0] for one in some]
        made[f"{how} {name}", index] = sum(len(one.tokens) for one in texts), total(texts).large_calls

    def generated(index: int) -> None:
        some, limit = window(case.sources, index, case.examples), case.limit
        texts = [contenders.generate(case.large, [one], limit, do_sample=True, temperature=1.0, top_k=0) for one in some]
        made["generate", index] = sum(len(contenders.new_tokens(case.large, text, some[:1])[0]) for text in texts), 0

    def translated(name: str, process: Executor, index: int) -> float:
        some = window(case.sources, index, case.examples)
        seconds, texts = process.submit(translate, Converted(converted, threads), some, case.limit, sampled=True).result()
        made[name, index] = sum(len(text) + 1 for text in texts), 0
        return seconds

    works: dict[str, Work] = {"generate": generated}
    for name in methods:
        for how, sampling in (("greedy", SamplingSettings()), ("sampled", drawn)):
            works[f"{how} {name}"] = partial(decoded, name, how, sampling)
    runs = {name: timed_by(work, threads=threads) for name, work in works.items()}
    runs |= {f"ctranslate2, {name}": partial(translated, f"ctranslate2, {name}", one) for name, one in translators.items()}
    seconds = harness.time_interleaved(runs, rounds)

    def each(name: str, unit: int) -> list[float]:
        """Seconds a token (0) or a turn (1) in each round."""
        return [taken / made[name, index][unit] for index, taken in enumerate(seconds[name], 1)]

    vanilla, peers = each("sampled vanilla", 0), [each(name, 0) for name in runs if name.startswith("ctranslate2")]
    found = {
        f"sampled_over_greedy_{one}": harness.median_ratio(each(f"greedy {one}", 1), each(f"sampled {one}", 1))
        for one in methods
    }
    found["sampled_over_generate"] = harness.median_ratio(vanilla, each("generate", 0))
    if peers:
        found["sampled_over_ctranslate2"] = harness.median_ratio(vanilla, min(peers, key=statistics.median))
    drafting = list(methods)[1:]
    return found | {f"sampled_{one}_over_vanilla": harness.median_ratio(each(f"sampled {one}", 0), vanilla) for one in drafting}


# --- results --------------------------------------------------------------------------------------------------------------

_MIDDLE = "4 layers d 256"
"""The random shape whose step stands in the last line."""


def case_lines(one: Found) -> Iterator[str]:
    """Yield each contender's time and setting, the ratios, the number formats and BiLD's quality."""
    yield f"  {'':24}{'ms/token':>10}  fastest setting (the next in a short trial)"
    for name, ms in one["ms_per_token"].items():
        tried = sorted(one["tried"][name].items(), key=lambda item: item[1])
        others = "; ".join([f"{label} {taken:.3g}" for label, taken in tried if label != one["settings"][name]][:_SHOWN])
        yield f"  {name:24}{ms:>10.3f}  {one['settings'][name]} ({others})"
    for name, found in one["ratios"].items():
        yield f"  {name:28}{shown(found)}   ({' over '.join(RATIOS[name])})"
    if one["accepted"] is not None:
        yield f"  speculative decoding accepts {one['accepted']:.0%} of the drafted tokens"
    for name, found in one["formats"].items():
        scored = "" if found["quality"] is None else f"; quality {found['quality']}"
        over = found["over_ctranslate2"]
        peer = "" if over is None else f", {shown(over)} times as CTranslate2 in {name}"
        margins = f"at top-2 margins up to {found['worst_margin']:.2g}{scored}"
        differing = f"{found['differ']} of {found['texts']} texts differ, {margins}"
        yield f"  vanilla in {name:10}{shown(found['over_float32'])} times as fast as in float32{peer}; {differing}"
        yield from harness.step_lines(name, found["step"])
    yield from (f"  {name:34}{shown(found)}" for name, found in one["sampled"].items())
    if "bild" in one:
        kept = one["bild"]["quality"]
        low, high = kept["difference_interval"]
        yield (
            f"  BiLD ({one['bild']['from']}: {one['bild']['settings']}): {kept['metric']} {kept['bild']}, vanilla's "
            f"{kept['vanilla']} on {kept['examples']} examples, difference {low:.2f} to {high:.2f}: "
            + ("no loss" if kept["no_loss"] else "a loss")
        )


def last_line(cases: Mapping[str, Found], threads: int, rounds: int) -> Found:
    """Return all measurements and the hardware that they were taken on.

    The step is that of `_MIDDLE` in float32, or null; ratios of sampling are those of the last case.
    """
    step = cases[_MIDDLE]["formats"]["float32"]["step"] if _MIDDLE in cases else {}
    last = list(cases.values())[-1:]
    return {
        **harness.hardware(),
        "threads": threads,
        "rounds": rounds,
        **{name: step.get(name) for name in ("bandwidth_share", "check_over_step")},
        **{name: ratio for one in last for name, ratio in one["sampled"].items()},
        "cases": cases,
    }


def main(given: Sequence[str]) -> None:
    """Measure every shape and the trained pair of a task; print each as it is done, then JSON.

    Raises:
        InputError: an option is out of bounds, or there is no such task.
        UnequalError: decoding here generated other tokens than a baseline.
    """
    threads = "CPU threads; every contender is tried on all cores as well"
    parser = harness.parser_of("decoding", __doc__, rounds=(9, "timed rounds of each case"), threads=(1, threads))
    parser.add_argument("--task", help="also time the trained pair of this task of params.yaml")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    arguments = harness.parse(parser, given)
    task = TrainedTask(arguments.task, load(arguments.params)) if arguments.task else None
    rounds = 1 if arguments.quick else arguments.rounds
    quieten_transformers()
    if contenders.ctranslate2_version() is None:
        log.info("CTranslate2 is not installed, so its ratios are left out (pip install 'ctranslate2>=4.8,<5')")
    cases: dict[str, Found] = {}
    with contenders.all_environments() as translators, harness.alone("cpu", quick=arguments.quick):
        makers: list[tuple[Callable[[], Case], TrainedTask | None]]
        makers = [(one.make, None) for one in (QUICK if arguments.quick else CASES)]
        if task is not None and task.trained:
            makers.append((partial(task.case, arguments.quick), task))
        elif task is not None:
            log.info(f"\n{task.name}: not trained yet, so BiLD is not timed (run make repro)")
        for make, of_task in makers:
            case = make()
            log.info(f"\n{case.name}")
            cases[case.name] = measure_case(case, of_task, translators, arguments.threads, rounds)
            for line in case_lines(cases[case.name]):
                log.info(line)
    harness.finish(last_line(cases, arguments.threads, rounds), arguments.json)
