"""Speed and fidelity of reduced precision: the large model in bfloat16 and int8, beside itself in float32 and CTranslate2."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from functools import partial

import torch

from tasks.bench import ctranslate
from tasks.bench.cases import Case, LoadedCase
from tasks.bench.ctranslate import TranslatorProcess
from tasks.bench.limits import step_limits
from tasks.bench.timing import Found, TimedWork, fastest, median_ratio, time_interleaved, timed_by
from tasks.decoding.decoder import Decoder, Rows, Runtime
from tasks.decoding.registry import Pair, Request, decode
from tasks.decoding.runtimes.choose import open_decoder
from tasks.decoding.settings import VanillaSettings
from tasks.errors import InputError
from tasks.evaluation.mismatches import find_mismatches, widest_margin

EXACT = "float32"
Quality = Callable[[Decoder], float]
"""The quality of a decoder's own texts."""


def number_formats(
    loaded: LoadedCase,
    translators: Mapping[str, TranslatorProcess],
    threads: int,
    rounds: int,
    quality: Quality | None,
) -> dict[str, Found]:
    """Compare every number format that a runtime here supports with float32, and with CTranslate2 where that has the format.

    Args:
        loaded: The case.
        translators: CTranslate2 by environment; the fastest one of a format is compared.
        threads: CPU threads of CTranslate2.
        rounds: Timed rounds.
        quality: Measures quality; None leaves it out.

    Returns:
        By format: speed over float32 and over CTranslate2 in the same format (None without it), texts that differ,
        `worst_margin` (the widest top-2 logit margin, in float32, at which a text takes another token), quality, and `step`
        (`limits.step_limits`).
    """
    case = loaded.case
    decoders = _decoders(loaded)
    runs = {(name, ""): timed_by(partial(_decode_round, decoder, case)) for name, decoder in decoders.items()}
    supported = ctranslate.compute_types() if case.converted.exists() else frozenset()
    peers = {name: list(translators) if name in supported else [] for name in decoders}
    for name, environments in peers.items():
        runs |= {(name, one): _translated(translators[one], case, threads, name) for one in environments}
    seconds = time_interleaved(runs, rounds, random.Random(0))  # noqa: S311 (an order, not a secret)
    texts = {name: _new_tokens(decoder, case.sources, case.limit) for name, decoder in decoders.items()}
    found = {}
    for name, decoder in decoders.items():
        different = find_mismatches(loaded.reference, case.sources, texts[EXACT], texts[name])
        found[name] = {
            "over_float32": round(median_ratio(seconds[name, ""], seconds[EXACT, ""]), 3),
            "over_ctranslate2": _over_fastest(seconds[name, ""], {one: seconds[name, one] for one in peers[name]}),
            "texts": len(case.sources),
            "differ": len(different),
            "worst_margin": round(widest_margin(different), 4),
            "quality": None if quality is None else round(quality(decoder), 3),
            "step": step_limits(decoder, case.sources[0]),
        }
    return found


def _over_fastest(ours: list[float], theirs: Mapping[str, list[float]]) -> float | None:
    return round(median_ratio(ours, theirs[fastest(theirs)]), 3) if theirs else None


def _translated(process: TranslatorProcess, case: Case, threads: int, number_format: str) -> TimedWork:
    return lambda round_index: process.run(
        case.converted, case.window(round_index, case.examples), case.limit, threads, number_format=number_format
    )[0]


def _decoders(loaded: LoadedCase) -> dict[str, Decoder]:
    made = {EXACT: loaded.pair.large}
    makers: dict[str, Callable[[], Decoder]] = {
        "bfloat16": lambda: open_decoder(copy.deepcopy(loaded.large).to(torch.bfloat16), "large", loaded.case.vocabulary),
        "int8": lambda: open_decoder(loaded.large, "large", loaded.case.vocabulary, Runtime(int8=True)),
    }
    for name, make in makers.items():
        try:
            made[name] = make()
        except InputError:  # no runtime here supports the format
            continue
    return made


def _decode_round(decoder: Decoder, case: Case, round_index: int) -> None:
    for source in case.window(round_index, case.examples):
        _new_tokens(decoder, [source], case.limit)


def _new_tokens(decoder: Decoder, sources: Rows, limit: int) -> Rows:
    done = decode("vanilla_large", VanillaSettings(), Pair(decoder, decoder), sources, Request(limit))
    return [one.tokens for one in done]
