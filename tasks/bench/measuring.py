"""Measure one case: check that tokens are equal, find each contender's fastest setting, then time the final rounds."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tasks.bench import memory
from tasks.bench.cases import LoadedCase
from tasks.bench.contenders import RATIOS, STATIC, Settings, batches, label, singles, thread_counts
from tasks.bench.ctranslate import TranslatorProcess
from tasks.bench.shares import matrix_sizes, shares
from tasks.bench.timing import Found, fastest, median_ratio, time_interleaved
from tasks.decoding.settings import SpeculativeSettings, VanillaSettings
from tasks.evaluation.mismatches import MARGIN_TOLERANCE, Mismatch, find_mismatches, widest_margin

_COMPARED = 12
_SLOW = 1.5
"""A setting whose first round takes longer than this multiple of the fastest one's is not tried again."""
_TRIALS = 2


class UnequalError(RuntimeError):
    """Decoding here generated other tokens than a baseline."""


@dataclass
class CaseResult:
    """Results of one case."""

    name: str
    settings: dict[str, str] = field(default_factory=dict)
    """The fastest setting of each contender."""
    tried: dict[str, dict[str, float]] = field(default_factory=dict)
    """Milliseconds per token of every setting in a short trial."""
    ms_per_token: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    ratios_at_threads: dict[str, float] = field(default_factory=dict)
    """The same ratios with every contender on the requested number of threads."""
    mismatches: Found = field(default_factory=dict)
    limit_shares: dict[str, float] = field(default_factory=dict)
    """Share of the machine's limit that a contender uses; see `shares.shares`."""
    memory_mib: Found = field(default_factory=dict)
    accepted: float | None = None
    """Share of the drafted tokens that speculative decoding accepts."""
    bild: Found = field(default_factory=dict)
    formats: dict[str, Found] = field(default_factory=dict)
    """Vanilla in reduced precision; see `formats.number_formats`."""


def require_equal(loaded: LoadedCase, translators: Mapping[str, TranslatorProcess]) -> tuple[Found, float | None]:
    """Compare the tokens of all contenders on a few sources.

    Returns:
        Mismatches by comparison, and the share of drafted tokens that were accepted (None without a small model).

    Raises:
        UnequalError: our tokens differ beyond `MARGIN_TOLERANCE`. Differences of CTranslate2 are only counted, since its
            kernels are not part of this project.
    """
    case = loaded.case
    sources = case.window(0, min(_COMPARED, len(case.sources)))
    ours = [loaded.vanilla([source], case.limit)[0] for source in sources]
    theirs = [loaded.generated([source], case.limit)[0] for source in sources]
    found = {
        "vanilla and generate": find_mismatches(loaded.reference, sources, ours, theirs),
        "batched and vanilla": find_mismatches(loaded.reference, sources, loaded.vanilla(sources, case.limit), ours),
    }
    accepted = None
    if case.small is not None:
        drafted = loaded.here("speculative", SpeculativeSettings(), sources, case.limit)
        accepted = sum(one.counts.accepted for one in drafted) / max(1, sum(one.counts.drafted for one in drafted))
        found["speculative and vanilla"] = find_mismatches(loaded.reference, sources, [one.tokens for one in drafted], ours)
    for name, different in found.items():
        if widest_margin(different) >= MARGIN_TOLERANCE:
            raise UnequalError(
                f"{case.name}: the tokens of {name} differ at a top-2 logit margin of {widest_margin(different):.2g}"
            )
    for process in list(translators.values())[:1]:
        texts = process.run(case.converted, sources, case.limit, 1)[1]
        found["vanilla and ctranslate2"] = find_mismatches(loaded.reference, sources, ours, texts)
    return {name: _counted(different, len(sources)) for name, different in found.items()}, accepted


def _counted(different: list[Mismatch], texts: int) -> Found:
    return {"texts": texts, "differ": len(different), "worst_margin": widest_margin(different)}


def measure_case(
    loaded: LoadedCase, translators: Mapping[str, TranslatorProcess], threads: int, rounds: int, say: Callable[[str], None]
) -> CaseResult:
    """Check, time and measure the memory of every contender on a case.

    Raises:
        UnequalError: see `require_equal`.
    """
    case = loaded.case
    translators = translators if case.converted.exists() else {}
    result = CaseResult(case.name)
    result.mismatches, result.accepted = require_equal(loaded, translators)
    for name, counted in result.mismatches.items():
        say(f"  tokens: {name}: {counted['differ']} of {counted['texts']} texts differ {_margin(counted)}".rstrip())
    rng = random.Random(0)  # noqa: S311 (an order, not a secret)
    counts = thread_counts(threads)
    for contenders, number, examples, limit in (
        (singles(loaded, translators, counts), rounds, case.examples, case.limit),
        (batches(loaded, translators, counts), min(rounds, case.batch_rounds), case.batch, case.batch_limit),
    ):
        texts = [case.window(round_index, examples) for round_index in range(number + 1)]
        large = [sum(map(len, loaded.vanilla(some, limit))) for some in texts]
        small = [sum(len(one.tokens) for one in loaded.here("vanilla_small", VanillaSettings(), some, limit)) for some in texts]
        tokens = {name: small if name.startswith("drafter") else large for name in contenders}
        leave_out_failing(contenders, say)
        _time(contenders, tokens, number, threads, rng, result)
        settings = {name: result.settings[name] for name in contenders}
        source_tokens = sum(len(source) for some in texts[1:] for source in some) / sum(large[1:])
        result.limit_shares |= shares(settings, result.ms_per_token, matrix_sizes(loaded.large), source_tokens)
    if case.memory:
        result.memory_mib = memory.peaks(case, _measured_for_memory(loaded, translators))
    return result


def leave_out_failing(contenders: dict[str, Settings], say: Callable[[str], None]) -> None:
    """Remove static-cache settings that fail, since not every model of `transformers` supports that cache."""
    for name, settings in contenders.items():
        for one in [one for one in settings if one.startswith(STATIC)]:
            try:
                settings[one](0)
            except (RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
                say(f"  {name}: {one} fails and is left out: {' '.join(str(error).split())[:200]}")
                del settings[one]


def _margin(counted: Found) -> str:
    return f"(top-2 margins up to {counted['worst_margin']:.2g})" if counted["differ"] else ""


def _time(
    contenders: dict[str, Settings],
    tokens: dict[str, list[int]],
    rounds: int,
    threads: int,
    rng: random.Random,
    result: CaseResult,
) -> None:
    """Try all settings briefly, then time each contender's fastest setting and its fastest one at `threads`."""
    trial = _trial(contenders, rng)
    finals: dict[str, list[str]] = {}
    for name, settings in contenders.items():
        taken = {one: trial[name, one] for one in settings}
        result.tried[name] = {one: _ms_per_token(seconds, tokens[name]) for one, seconds in taken.items()}
        at_threads = fastest({one: seconds for one, seconds in taken.items() if one.split(", ")[-1] == label("", threads)})
        finals[name] = list(dict.fromkeys((at_threads, fastest(taken))))
    runs = {(name, one): contenders[name][one] for name, chosen in finals.items() for one in chosen}
    seconds = time_interleaved(runs, rounds, rng)
    for name, chosen in finals.items():
        result.settings[name] = fastest({one: seconds[name, one] for one in chosen})
        result.ms_per_token[name] = _ms_per_token(seconds[name, result.settings[name]], tokens[name])
    for ratio, (ours, theirs) in RATIOS.items():
        if ours in contenders and theirs in contenders:
            free, alike = (
                [seconds[name, chosen[name]] for name in (ours, theirs)] for chosen in (result.settings, _firsts(finals))
            )
            result.ratios[ratio] = round(median_ratio(*free), 3)
            result.ratios_at_threads[ratio] = round(median_ratio(*alike), 3)


def _firsts(finals: Mapping[str, list[str]]) -> dict[str, str]:
    return {name: chosen[0] for name, chosen in finals.items()}


def _trial(contenders: Mapping[str, Settings], rng: random.Random) -> dict[tuple[str, str], list[float]]:
    """Seconds of a few rounds of every setting; slow settings get a single round."""
    runs = {(name, one): run for name, settings in contenders.items() for one, run in settings.items()}
    first = time_interleaved(runs, 1, rng)
    least = {name: min(first[name, one][0] for one in settings) for name, settings in contenders.items()}
    close = {key: run for key, run in runs.items() if first[key][0] <= _SLOW * least[key[0]]}
    return first | time_interleaved(close, _TRIALS, rng)


def _ms_per_token(seconds: list[float], tokens: list[int]) -> float:
    """The median over the rounds; the first round's tokens are skipped because that round is not timed."""
    return round(1000 * statistics.median(one / count for one, count in zip(seconds, tokens[1:], strict=False)), 4)


def _measured_for_memory(loaded: LoadedCase, translators: Mapping[str, TranslatorProcess]) -> list[str]:
    names = ["vanilla", "generate", "batched", "batched by generate"]
    names += ["ctranslate2", "batched by ctranslate2"] if translators else []
    names += ["speculative", "assisted"] if loaded.case.small is not None else []
    return names + (["bild"] if loaded.case.bild is not None else [])
